"""Guards of the gateway's connections off the fast lane: the same protocol as every server of ours has, in its words.

Bodies are bounded and timed again where they are read (`plain.py`).
"""

from collections.abc import Callable

from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.headers import request_id_of
from functions.gateway.http.held_bytes import HeldBytes
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.request import replies
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard, Headers, Refusal

_UPLOADS = frozenset((b"/v1/files", b"/v1/artifacts"))


def guard_of(
    limits: Limits, connections: Connections, clock: Callable[[], float], metrics: Metrics, held: HeldBytes
) -> Guard:
    bounds = Bounds(
        head_bytes=limits.head_bytes,
        header_count=limits.header_count,
        head_s=limits.head_s,
        body_s=limits.body_s,
        upload_s=limits.upload_s,
        uploads=_UPLOADS,
        keep_alive_s=limits.keep_alive_s,
        lame_duck_s=limits.lame_duck_s,
        write_stall_s=limits.write_stall_s,
        least_read_bytes=limits.least_read_bytes,
    )
    return Guard(bounds, connections, _refusal, clock, metrics.refused, held, sweeps_itself=False)


def _refusal(refusal: Refusal) -> tuple[Headers, bytes]:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    after_s = 1 if refusal.status == 503 else None
    answer = ErrorAnswer(refusal.status, kind, refusal.code, refusal.message, retry_after_s=after_s)
    return replies.error_headers(request_id_of([]), answer), answer.body()
