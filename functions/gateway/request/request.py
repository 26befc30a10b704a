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
        auth_s = self.admitted_s - self.received_s
        route_s = self.routed_s - self.load_s - self.queued_s - self.admitted_s
        connect_s = self.connected_s - self.routed_s
        ttft_s = self.first_token_s - self.received_s
        timing = b"auth;dur=%.2f, queue;dur=%.2f, route;dur=%.2f, connect;dur=%.2f, ttft;dur=%.2f" % (
            auth_s * 1000 if auth_s > 0.0 else 0.0,
            self.queued_s * 1000,
            route_s * 1000 if route_s > 0.0 else 0.0,
            connect_s * 1000 if connect_s > 0.0 else 0.0,
            ttft_s * 1000 if ttft_s > 0.0 else 0.0,
        )
        return timing + b", load;dur=%.2f" % (self.load_s * 1000) if self.load_s else timing
