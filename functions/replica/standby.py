"""Warm and ready: a replica that is loaded and kept without traffic, until it is promoted.

    serve -> warm     at once: gateways hear it with the next heartbeat, which is sent now; what runs goes on to its end
    warm -> serve     the engine is woken where it sleeps, then the same

Whether a replica begins warm is said by a file that whoever starts it makes (`SHOAL_REPLICA_STANDBY_FILE`), not by its
arguments: a promoted replica is the same process, and one that is started again comes back as what it was last.

An engine that runs with --enable-sleep-mode (CUDA, ROCm, XPU) is put to sleep at level 1 when it is warm and empty: its
weights go to host memory and its KV cache is dropped, so that the accelerator's memory is free for another pool's
engine. On a CPU there is nothing to free; vLLM refuses the argument there, and nothing is asked of it.

    falls asleep   SETTLED_S after it became warm: a request that a gateway sent before it heard would else end with
                   "abort", or wait in an engine that computes nothing. No adapter is loaded meanwhile (`engine_turn`)
                   An engine that does not answer in time may yet fall asleep: it is asked which it is before it serves
    is well        as long as its server says so; it is not probed, since it answers no probe (`monitor`). The same
                   while it falls asleep, which takes it a while; no longer than the client waits for an answer
    serves         only when it is awake: one that an agent finds asleep and is to serve is woken first
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from functions.decisions.health.engine_rates import EngineRates
from functions.decisions.routing.choice import ReplicaPhase
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError, EngineHung, EngineRefused, EngineUnreachable
from functions.replica.status import AgentStatus

LOOK_INTERVAL_S = 1.0
SETTLED_S = 3.0  # a heartbeat reaches gateways within one, and what they sent before it is running by then

_log = logging.getLogger(__name__)


class Standby:
    """Owned by the agent's loop. `tell` sends a heartbeat at once."""

    def __init__(
        self,
        status: AgentStatus,
        engine: EngineClient,
        tell: Callable[[], None],
        *,
        may_sleep: bool = False,
        engine_turn: asyncio.Lock | None = None,
    ) -> None:
        """`engine_turn`: whoever has it may load adapters into the engine."""
        self._status = status
        self._engine = engine
        self._tell = tell
        self._may_sleep = may_sleep
        self._engine_turn = engine_turn or asyncio.Lock()
        self._has_learnt = False  # whether the engine sleeps
        self._turn = asyncio.Lock()
        self._since_s = status.clock()  # as it stands now

    def begin(self, file: Path | None) -> None:
        """Before the first heartbeat."""
        self._status.standby = file is not None and file.exists()

    def phase(self) -> tuple[ReplicaPhase, str]:
        """What gateways are told."""
        return self._status.phase()

    async def become(self, *, standby: bool) -> None:
        """EngineError where a sleeping engine does not wake; it then stays warm."""
        async with self._turn:
            if standby == self._status.standby:
                return
            if not standby:
                await self._wake()
                self._status.rates = EngineRates()  # measured under a load that is past; routers would go by them
            self._status.standby = standby
            self._since_s = self._status.clock()
        _log.info("now %s", "warm, without new requests" if standby else "serving")
        self._tell()

    async def run(self) -> None:
        """Until cancelled: put to sleep what is warm, well and empty."""
        while self._may_sleep:
            async with self._turn:
                await self._look()
            await asyncio.sleep(LOOK_INTERVAL_S)
        await asyncio.Event().wait()

    async def _look(self) -> None:
        if not self._has_learnt:
            with contextlib.suppress(EngineError):  # it starts, or is busy falling asleep: asked again
                await self._learn()
        elif self._status.asleep and not self._status.standby:
            await self._rouse()
        elif self._can_sleep():
            await self._sleep()

    async def _learn(self) -> None:
        """An agent that is started again finds the engine as its predecessor left it, and one that got no answer does
        not know. EngineHung, EngineUnreachable: one that sleeps must not be taken for one that is awake."""
        try:
            self._status.asleep = await self._engine.is_sleeping()
        except (EngineHung, EngineUnreachable):
            raise
        except EngineError as error:  # it has no such route: `_sleep` will say so
            _log.info("the engine does not say whether it sleeps: %s", error)
        self._has_learnt = True

    def _can_sleep(self) -> bool:
        status = self._status
        is_filled = status.adapters.known and not status.adapters.loading
        is_settled = status.clock() - self._since_s >= SETTLED_S
        is_empty = is_settled and not status.load.outstanding and not self._engine_turn.locked()
        return status.phase()[0] == "warm" and is_filled and is_empty and not status.asleep

    async def _sleep(self) -> None:
        async with self._engine_turn:
            self._status.falling_asleep = True
            try:
                await self._engine.sleep()
                self._status.asleep = True
            except EngineRefused as error:
                self._may_sleep = False
                _log.warning("the engine does not sleep (VLLM_SERVER_DEV_MODE=1 opens its routes): %s", error)
            except EngineError as error:
                self._has_learnt = False
                _log.warning("whether the engine sleeps is not known; it is asked: %s", error)
            finally:
                self._status.falling_asleep = False
        self._tell()

    async def _rouse(self) -> None:
        """It was promoted while no agent was there to wake it."""
        try:
            await self._wake()
        except EngineError as error:
            _log.warning("the engine does not wake; it is asked again: %s", error)
            return
        self._tell()

    async def _wake(self) -> None:
        if self._may_sleep and not self._has_learnt:
            await self._learn()
        if self._status.asleep:
            await self._engine.wake_up()
            self._status.asleep = False
