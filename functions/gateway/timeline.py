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

    def server_timing(self) -> bytes:
        """The `server-timing` header, milliseconds."""
        return b"auth;dur=%.2f, queue;dur=0, route;dur=%.2f, connect;dur=%.2f, ttft;dur=%.2f" % (
            _ms(self.received_s, self.admitted_s),
            _ms(self.admitted_s, self.routed_s),
            _ms(self.routed_s, self.connected_s),
            _ms(self.received_s, self.first_token_s),
        )


def _ms(start_s: float, end_s: float) -> float:
    return max(0.0, (end_s - start_s) * 1000)
