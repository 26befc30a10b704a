"""Warm standby: a replica that is loaded and kept without traffic until it is promoted.

    serve -> warm     immediately: a heartbeat notifies gateways now; running requests finish
    warm -> serve     the engine is woken if it sleeps, then the same

A file decides if a replica starts warm (`SHOAL_REPLICA_STANDBY_FILE`), not its arguments. A promoted replica is the
same process, and a restarted one resumes its last role.

An engine with --enable-sleep-mode (CUDA, ROCm, XPU) is put to sleep at level 1 when it is warm and empty: its weights
move to host memory and its KV cache is dropped, so that the accelerator's memory is free for another pool's engine. A
CPU has nothing to free: vLLM rejects the argument there, and the agent does not use it.

    falls asleep   SETTLED_S after it became warm: a request that a gateway sent before the notice would otherwise end
                   with "abort", or wait in an engine that computes nothing. No adapter is loaded meanwhile
                   (`engine_turn`). After a timeout the engine may still fall asleep: its state is read first
    is well        as long as its server answers; it is not probed, since it answers no probe (`monitor`). The
                   same holds while it falls asleep, for at most the client's timeout
    serves         only when awake: an engine that is to serve but found asleep is woken first
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
SETTLED_S = 3.0  # a heartbeat reaches gateways within one second, and requests sent before are running by then

_log = logging.getLogger(__name__)


class Standby:
    """Role of the replica, warm or serving. Owned by the agent's loop. `tell` sends a heartbeat immediately."""

    def __init__(
        self,
        status: AgentStatus,
        engine: EngineClient,
        tell: Callable[[], None],
        *,
        may_sleep: bool = False,
        engine_turn: asyncio.Lock | None = None,
    ) -> None:
        """The holder of `engine_turn` may load adapters into the engine."""
        self._status = status
        self._engine = engine
        self._tell = tell
        self._may_sleep = may_sleep
        self._engine_turn = engine_turn or asyncio.Lock()
        self._has_learnt = False  # True if the engine's sleep state is known
        self._turn = asyncio.Lock()
        self._since_s = status.clock()  # time of the last role change

    def read_standby_file(self, file: Path | None) -> None:
        """Set the initial role: warm if the file exists, else serving, also for None. Call before the first
        heartbeat."""
        self._status.standby = file is not None and file.exists()

    def phase(self) -> tuple[ReplicaPhase, str]:
        """Return the replica's phase and its reason, as the heartbeats publish them."""
        return self._status.phase()

    async def change_role(self, *, standby: bool) -> None:
        """Change the role, and send a heartbeat if it differs from the present one. For serving, wake the engine first:
        raise EngineError and stay warm if it does not wake."""
        async with self._turn:
            if standby == self._status.standby:
                return
            if not standby:
                await self._wake()
                self._status.rates = EngineRates()  # measured under a past load, so routers must not use it
            self._status.standby = standby
            self._since_s = self._status.clock()
        _log.info("the replica is now %s", "warm, without new requests" if standby else "serving")
        self._tell()

    async def run(self) -> None:
        """Put the engine to sleep whenever it is warm, well and empty, if it may sleep; run until cancelled."""
        while self._may_sleep:
            async with self._turn:
                await self._update_sleep()
            await asyncio.sleep(LOOK_INTERVAL_S)
        await asyncio.Event().wait()

    async def _update_sleep(self) -> None:
        if not self._has_learnt:
            with contextlib.suppress(EngineError):  # it starts or is falling asleep: retried
                await self._read_sleep_state()
        elif self._status.asleep and not self._status.standby:
            await self._wake_promoted()
        elif self._can_sleep():
            await self._sleep()

    async def _read_sleep_state(self) -> None:
        """Read the engine's sleep state. Raise EngineHung or EngineUnreachable, since a sleeping engine must not pass
        for awake; other errors mean that it cannot sleep, and are logged."""
        try:
            self._status.asleep = await self._engine.is_sleeping()
        except (EngineHung, EngineUnreachable):
            raise
        except EngineError as error:  # it has no such route: `_sleep` will log it
            _log.info("the engine's sleep state cannot be read: %s", error)
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
                _log.warning("the engine refuses to sleep (VLLM_SERVER_DEV_MODE=1 opens its routes): %s", error)
            except EngineError as error:
                self._has_learnt = False
                _log.warning("the engine's sleep state is unknown and will be read: %s", error)
            finally:
                self._status.falling_asleep = False
        self._tell()

    async def _wake_promoted(self) -> None:
        """Wake an engine that was promoted while no agent was running, and send a heartbeat; log an error, so that it
        is tried again."""
        try:
            await self._wake()
        except EngineError as error:
            _log.warning("the engine does not wake; trying again: %s", error)
            return
        self._tell()

    async def _wake(self) -> None:
        if self._may_sleep and not self._has_learnt:
            await self._read_sleep_state()
        if self._status.asleep:
            await self._engine.wake_up()
            self._status.asleep = False
