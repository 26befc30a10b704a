"""Cold loads that gateways request: one answer for all requests for the same adapter.

All requests for an adapter share one cold load in the plan, one fetch and one load. Each call waits at most its own
time. A caller that leaves stops nothing: the load continues for the others and for the next request. The number of
calls is bounded here, and the number of adapters by the plan (`AdapterPolicy.max_cold_loads`).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Literal, get_args

from functions.api.ids import EngineName

MAX_CALLS = 512  # waiting calls in total: a gateway sends one per adapter, so this is many gateways

# Results of a call. unknown: no snapshot here names the adapter. no_room: another replica may have room. refused: the
# artifact or the engine rejects it. failed: it may work later. not_ready: the engine or the agent is not ready.
# timed_out: a load that has begun continues.
Answer = Literal["loaded", "unknown", "no_room", "refused", "failed", "not_ready", "timed_out"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)

# Tier of the adapter when it was requested: in a slot (it runs), in the engine's host memory, on the disk, in S3.
Tier = Literal["slot", "host", "disk", "s3"]
TIERS: tuple[Tier, ...] = get_args(Tier)


@dataclass(frozen=True, slots=True)
class ColdLoadAnswer:
    answer: Answer
    reason: str = ""  # for people; empty if it is loaded
    tier: Tier | None = None  # set if it is loaded


@dataclass(slots=True)
class _Call:
    answer: asyncio.Future[ColdLoadAnswer]
    waiting: int = 0


@dataclass(slots=True)
class ColdCalls:
    """Waiting cold-load calls by adapter. Owned by one event loop."""

    _calls: dict[EngineName, _Call] = field(default_factory=dict)
    _waiting: int = 0

    @property
    def full(self) -> bool:
        return self._waiting >= MAX_CALLS

    @property
    def names(self) -> tuple[EngineName, ...]:
        return tuple(self._calls)

    async def wait(self, name: EngineName, wait_s: float) -> ColdLoadAnswer:
        """Wait for the adapter's answer, at most `wait_s` seconds. Return the answer set by `settle`, or
        `timed_out`."""
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = _Call(asyncio.get_running_loop().create_future())
        self._waiting += 1
        call.waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(call.answer)
        except TimeoutError:
            return ColdLoadAnswer(
                "timed_out", f"{name} was not loaded within {wait_s:.1f} s; a load that has begun continues"
            )
        finally:
            self._waiting -= 1
            call.waiting -= 1
            if not call.waiting and self._calls.get(name) is call:
                del self._calls[name]

    def settle(self, name: EngineName, answer: ColdLoadAnswer) -> None:
        """Answer all calls that wait for the adapter, if there are any."""
        call = self._calls.pop(name, None)
        if call is not None and not call.answer.done():
            call.answer.set_result(answer)

    def settle_all(self, answer: ColdLoadAnswer) -> None:
        for name in self.names:
            self.settle(name, answer)
