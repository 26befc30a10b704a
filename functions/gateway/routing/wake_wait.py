"""Wait of one request for the first replica of its pool: comments to the client, and what follows.

A streaming client gets comments in the stream while it waits. The head of the answer is sent with the first
comment, so a later failure is an event in the stream. Other clients see the wait only in the answer's headers. An
exchange creates the wait when it first has to wait. `exchange` starts and leaves it; `pool_wakes` notifies it.
"""

from collections.abc import Callable

from functions.api.ids import PoolName
from functions.decisions.admission.drain_rate import retry_after_s
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer
from functions.gateway.http.sink import MoreHeaders, Sink
from functions.gateway.request import replies
from functions.gateway.request.request import Admitted, Timeline
from functions.gateway.routing.pool_wakes import NotAwake, PoolWakes, whole_seconds

NOBODY_SERVES = frozenset({"pool_empty", "no_replica_ready"})  # reasons of a routing decision
SHED = "pool_at_zero"  # label of shoal_shed_total
_FEW_S = 10.0  # retry time for a pool with unknown start time


class WakeWait:
    """Wait for a pool at zero. At its end `serves` or `failed` is called, unless the wait was left.

    The waiting time is added to the timeline.
    """

    __slots__ = (
        "_admitted",
        "_clock",
        "_failed",
        "_head",
        "_serves",
        "_since_s",
        "_sink",
        "_timeline",
        "_wakes",
        "told",
    )

    def __init__(
        self,
        wakes: PoolWakes,
        clock: Callable[[], float],
        timeline: Timeline,
        sink: Sink,
        *,
        head: MoreHeaders,
        serves: Callable[[], None],
        failed: Callable[[ErrorAnswer, str], None],
    ) -> None:
        """Prepare a wait. `head` is added to the answer's headers if they are sent before there is an answer."""
        self._wakes = wakes
        self._clock = clock
        self._timeline = timeline
        self._sink = sink
        self._head = head
        self._serves = serves
        self._failed = failed
        self._admitted: Admitted | None = None
        self._since_s: float | None = None
        self.told = False  # True once the answer's head and a comment were sent

    def start(self, admitted: Admitted, deadline_s: float) -> None:
        """Wait for the pool's first replica, or call `failed` immediately if it would be late or too many wait."""
        self._admitted = admitted
        refused = self._wakes.wait(
            self, admitted.model.pool, admitted.caller.tenant, len(admitted.upstream_body), deadline_s
        )
        if refused is None:
            self._since_s = self._clock()
        else:
            self._failed(_refusal(refused, admitted), SHED)

    def leave(self) -> None:
        """Stop waiting because the request ends. Does nothing if it does not wait."""
        if self._since_s is not None and self._admitted is not None:
            self._over()
            self._wakes.leave(self, self._admitted.model.pool)

    def header(self) -> tuple[bytes, bytes]:
        return b"x-shoal-wake", b"waited=%d" % round(self._timeline.wake_s)

    # reports of `PoolWakes`

    def pool_serves(self) -> None:
        if self._over():
            self._serves()

    def pool_does_not_serve(self, refused: NotAwake) -> None:
        if self._over() and self._admitted is not None:
            self._failed(_refusal(refused, self._admitted), SHED)

    def pool_is_starting(self, expected_s: float | None) -> None:
        admitted = self._admitted
        if admitted is None or not admitted.stream:
            return
        comment = _comment(admitted.model.pool, expected_s)
        if self.told:
            self._sink.more(comment)
            return
        self.told = True
        expected = b"expected=%d" % whole_seconds(expected_s) if expected_s is not None else b"expected=unknown"
        more = (b"x-shoal-wake", expected), *self._head
        self._sink.begin_stream(replies.headers(admitted, None, self._timeline, b"text/event-stream", more), comment)

    def _over(self) -> bool:
        """End the wait, add its time to the timeline and return True; return False if it has ended before."""
        if self._since_s is None:
            return False
        self._timeline.wake_s += self._clock() - self._since_s
        self._since_s = None
        return True


def _comment(pool: PoolName, expected_s: float | None) -> bytes:
    """Return an event stream's comment, which clients ignore, that the pool is starting, with the seconds if known."""
    about = f", about {whole_seconds(expected_s)} s more" if expected_s is not None else ""
    return f": the pool {pool} is being started{about}\n\n".encode()


def _refusal(refused: NotAwake, admitted: Admitted) -> ErrorAnswer:
    pool, after_s = admitted.model.pool, refused.after_s
    about = f", which takes about {whole_seconds(after_s)} s more" if after_s is not None else ""
    again_s = retry_after_s(after_s if after_s is not None else _FEW_S, admitted.request_id)
    why = {
        "too_late": f"The pool {pool} has no replica and is being started{about}: longer than this request may wait.",
        "too_many": f"The pool {pool} has no replica and is being started{about}. Too many requests wait for it.",
        "not_started": f"The pool {pool} had no replica, and none became ready while the request waited.",
    }[refused.why]
    return errors.unavailable(f"{why} Try again in {again_s} s.", "model_not_ready", again_s)
