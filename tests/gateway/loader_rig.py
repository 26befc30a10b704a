"""Played agents that load adapters: a call waits until the test answers it."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.choice import ReplicaView
from functions.gateway.routing.load_client import LoadAnswer, LoadState


@dataclass
class Call:
    replica: ReplicaId
    engine_name: EngineName
    wait_s: float
    answer: "asyncio.Future[LoadAnswer]" = field(repr=False)

    def answers(self, state: LoadState, reason: str = "") -> None:
        if not self.answer.done():  # the gateway may have abandoned the call
            self.answer.set_result(LoadAnswer(state, reason))


class PlayedLoader:
    """`calls`: calls under way, oldest first; `asked`: every replica that was ever called."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        self.asked: list[ReplicaId] = []

    async def load(self, replica: ReplicaView, engine_name: EngineName, wait_s: float) -> LoadAnswer:
        call = Call(replica.id, engine_name, wait_s, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        self.asked.append(replica.id)
        return await call.answer

    async def close(self) -> None: ...

    async def next(self) -> Call:
        """Return the next call, made already or still to come. It polls in real time: pauses between calls are
        short."""
        async with asyncio.timeout(30):
            while not self.calls:
                await asyncio.sleep(0.001)
        return self.calls.popleft()
