"""Detect stalls of this process's own event loop, so that it does not blame its peers for them.

A timeout or a periodic check compares a peer's last activity with this process's clock. After a stall of some seconds
(a blocking call, a starved machine, SIGSTOP) the event loop runs expired timers before it reads its sockets. Data
that peers sent in the meantime is still unread, so a check at that moment would cut off healthy clients and eject
healthy engines.

    StallGuard  for a periodic check: a late round is skipped, the next one counts
    timeout     for a single wait: like `asyncio.timeout`, but a late expiry waits SECOND_LOOK_S more

A round is late if it comes more than LATE_PERIODS periods after the last one. After a late round the limit is
LATE_PERIODS times that delay, so that a permanently slow loop still checks every other round. A single wait is late
after LATE_S.

Example (test_worked_example_of_the_prologue): rounds every 0.25 s and a stall from 10.0 s to 41.0 s. The round at
41.0 s is skipped. The round at 41.25 s runs normally, because all unread data has been read by then.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

LATE_PERIODS = 2.0
LATE_S = 0.05  # more than the delay of a busy loop
SECOND_LOOK_S = 0.5  # enough to read and process the data that arrived during a stall


@dataclass(slots=True)
class StallGuard:
    """Decide which rounds of a periodic check to skip. Times are monotonic seconds."""

    period_s: float
    since_s: float  # time of the last round, or of the start before the first one
    _late_s: float = 0.0  # delay of the last round if it was skipped, else 0

    def is_on_time(self, now_s: float) -> bool:
        """Record a round at `now_s` and return False if it must be skipped because it came late: this process was
        stalled. Call once per round."""
        waited_s, self.since_s = now_s - self.since_s, now_s
        is_late = waited_s > LATE_PERIODS * max(self.period_s, self._late_s)
        self._late_s = waited_s if is_late else 0.0
        return not is_late


@contextlib.asynccontextmanager
async def timeout(wait_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the block takes longer than `wait_s`. If the event loop itself was stalled when the time
    was up, the block has SECOND_LOOK_S more."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + wait_s
    async with asyncio.timeout(None) as scope:

        def is_over() -> None:
            now_s = loop.time()
            scope.reschedule(now_s + SECOND_LOOK_S if now_s - due_s > LATE_S else now_s)

        timer = loop.call_later(wait_s, is_over)
        try:
            yield
        finally:
            timer.cancel()
