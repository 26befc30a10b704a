"""Stalls of one's own event loop: a loop that stood still reads before it judges who is late.

Whoever says of others that they are silent, late or idle, says so by a clock of its own; and a loop runs its timers
before it reads. After a stop of some seconds (a blocking call, a machine that is full, SIGSTOP) what others sent or
took meanwhile lies unread: judged then, a client that has read all is cut off, an engine that streams is silent, and
a process that answers is killed. So

    Rounds      of a periodic judge: a round that comes late judges nobody, the next one does
    timeout     of one wait, as `asyncio.timeout`: where its end comes late, a second look SECOND_LOOK_S later ends it

A round is late after LATE_PERIODS of its periods, and right after a late one after as many times what that took: a
loop that is always late judges every other time. The end of a wait is late after LATE_S.

Worked example (test_worked_example_of_the_prologue): rounds each 0.25 s, and a stop from 10.0 to 41.0 s. The round at
41.0 judges nobody. By the one at 41.25 whatever lay unread has been read, and it judges as ever.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

LATE_PERIODS = 2.0
LATE_S = 0.05  # a busy loop's delay is less
SECOND_LOOK_S = 0.5  # what came meanwhile is read, and answered, in less


@dataclass(slots=True)
class Rounds:
    """Of one periodic judge. Times are monotonic seconds."""

    period_s: float
    since_s: float  # the last round, or the beginning of the wait for the first one
    _late_s: float = 0.0  # the last round judged nobody: it came so long after the one before

    def may_judge(self, now_s: float) -> bool:
        """Once a round."""
        waited_s, self.since_s = now_s - self.since_s, now_s
        is_late = waited_s > LATE_PERIODS * max(self.period_s, self._late_s)
        self._late_s = waited_s if is_late else 0.0
        return not is_late


@contextlib.asynccontextmanager
async def timeout(wait_s: float) -> AsyncIterator[None]:
    """TimeoutError where what is inside takes longer."""
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
