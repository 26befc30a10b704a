"""From files to processes: watches the configuration and the target, and makes the fleet what they say.

Level-triggered: each pass compares what is wanted now with what runs now. A configuration with a mistake changes
nothing: the last good pools stay wanted, and the problems are kept for `shoal status`.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import load_directory
from functions.api.problems import ConfigInvalid
from functions.controller.local import pools as pool_files
from functions.controller.local import target as targets
from functions.controller.local.config_source import PoolUnusable, Signature, pool_from, signature
from functions.controller.local.context import PlanContext, context_from
from functions.controller.local.layout import StateLayout
from functions.controller.local.operations import NotReadyAgain, Operations
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool
from functions.controller.local.prepare.placeholder_model import models_root
from functions.controller.local.settings import LocalSettings
from functions.controller.local.slots import TooManyReplicas
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.supervisor import Supervisor
from functions.controller.local.target import Target

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Wanted:
    """What the files ask for, and what is wrong with them."""

    target: Target = field(default_factory=Target)
    pools: tuple[Pool, ...] = ()
    problems: tuple[str, ...] = ()  # of the files; each names one and a line
    stalled: str = ""  # why the processes are not (all) what is wanted
    settled: bool = False  # nothing is left to change


class Reconciler:
    """Owned by one event loop; file access is short and local."""

    def __init__(self, layout: StateLayout, settings: LocalSettings, config_dir: Path) -> None:
        self.wanted = Wanted()
        self.changed = asyncio.Event()  # for those who depend on the files too (publishing)
        self._layout = layout
        self._settings = settings
        self._config_dir = config_dir
        self._seen: tuple[Signature, Target] | None = None
        self._to_converge = asyncio.Event()

    def look(self) -> bool:
        """Read the files if they changed; whether they did."""
        now = (signature(self._config_dir), targets.read(self._layout.target_file))
        if now == self._seen:
            return False
        self._seen = now
        self.wanted.target = now[1]
        self.wanted.settled = False
        self._read_pools()
        return True

    def specs(self, former_slots: dict[str, int]) -> dict[str, ProcessSpec]:
        """TooManyReplicas, or BinaryMissing, where that cannot be planned."""
        return plan_fleet(self.context(), self.wanted.pools, self.wanted.target, former_slots)

    def context(self) -> PlanContext:
        return context_from(self._settings, self._layout, models_root(self._layout, self.wanted.target.engine))

    async def watch(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            if self.look():
                _log.info("the configuration changed: %d problem(s)", len(self.wanted.problems))
                self._to_converge.set()
                self.changed.set()

    async def converge(self, supervisor: Supervisor, operations: Operations) -> None:
        """Until cancelled: act whenever something changed."""
        while True:
            await self._to_converge.wait()
            self._to_converge.clear()
            self.wanted.settled = False
            slots = {
                spec.replica_id: spec.slot
                for spec in supervisor.specs().values()
                if spec.replica_id is not None and spec.slot is not None
            }
            try:
                await operations.converge(self.specs(slots))
                self.wanted.stalled = ""
            except (NotReadyAgain, TooManyReplicas) as error:
                self.wanted.stalled = str(error)
                _log.error("stopped changing processes: %s", error)
            self.wanted.settled = not self._to_converge.is_set()

    def wake(self) -> None:
        """Converge now, whatever was seen."""
        self._to_converge.set()

    def _read_pools(self) -> None:
        try:
            pools = read_pools(self._config_dir)
        except ConfigInvalid as error:
            self.wanted.problems = tuple(str(problem) for problem in error.problems)
        except PoolUnusable as error:
            self.wanted.problems = (str(error),)
        else:
            self.wanted.pools, self.wanted.problems = pools, ()
            pool_files.write_last_good(self._layout.pools_file, pools)
            return
        if not self.wanted.pools:
            self.wanted.pools = pool_files.read_last_good(self._layout.pools_file)


def read_pools(config_dir: Path) -> tuple[Pool, ...]:
    """ConfigInvalid or PoolUnusable where the directory as a whole cannot be used."""
    loaded = load_directory([config_dir], relative_to=config_dir)
    found = [pool_from(declared.value) for declared in loaded.of(InferenceService)]
    return tuple(sorted((pool for pool in found if pool is not None), key=lambda pool: pool.name))
