"""When a request passed each step, in monotonic seconds; 0 where it never came to it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Timeline:
    received_s: float
    admitted_s: float = 0.0
    routed_s: float = 0.0
    connected_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    queued_s: float = 0.0  # of the time to routing: in the waiting room
    load_s: float = 0.0  # of the time to routing: the wait for an adapter that no replica had loaded

    def server_timing(self) -> bytes:
        """The `server-timing` header, milliseconds; `load` where an adapter was waited for."""
        timing = b"auth;dur=%.2f, queue;dur=%.2f, route;dur=%.2f, connect;dur=%.2f, ttft;dur=%.2f" % (
            _ms(self.received_s, self.admitted_s),
            self.queued_s * 1000,
            _ms(self.admitted_s, self.routed_s - self.load_s - self.queued_s),
            _ms(self.routed_s, self.connected_s),
            _ms(self.received_s, self.first_token_s),
        )
        return timing + b", load;dur=%.2f" % (self.load_s * 1000) if self.load_s else timing


def _ms(start_s: float, end_s: float) -> float:
    return max(0.0, (end_s - start_s) * 1000)
