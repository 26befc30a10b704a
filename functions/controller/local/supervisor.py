"""Supervisor of processes: starts, probes, signals and records them. `step` decides; the supervisor only carries out.

Every `TICK_S` one round: 1. notice exits, 2. sweep what dead leaders left, 3. let time pass, 4. start what may start,
5. start due probes, 6. remove what has ended for good and write the ledger.

Rule: the children outlive this process. Only `stop_all` ends them. A killed controller leaves them serving, and the
next one adopts those that it wants.
Neighbours: `operations` sequences stops, restarts and replacements on top of this.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from functions.controller.local.adoption import Adoption
from functions.controller.local.children import Child, NotForked, fork_parked, session_members, spawn
from functions.controller.local.files import replace_file
from functions.controller.local.instances import Instance, ProcessLedger, encode_ledger
from functions.controller.local.layout import StateLayout
from functions.controller.local.lifecycle import (
    Action,
    Adopted,
    Event,
    Exited,
    GroupSwept,
    LivenessProbed,
    Permitted,
    ProcessState,
    ReadinessProbed,
    Spawned,
    SpawnFailed,
    Ticked,
)
from functions.controller.local.probes import ProbeOutcome, ProcessProber
from functions.controller.local.spec import Probe, ProcessSpec
from functions.controller.local.step import step
from functions.decisions.health.backoff import BackoffPolicy
from functions.fleet.own_stalls import StallGuard
from functions.fleet.tasks import Supervised

TICK_S = 0.2  # a crash, or that a process is ready, is noticed within this time
PROBE_EVERY_S = 1.0
# Processes that start in seconds are noticed quickly; for those that take a minute, 240 probes would be too many.
PROBE_EAGER_EVERY_S = 0.25
EAGER_FOR_S = 10.0

_log = logging.getLogger(__name__)


class Supervisor:
    def __init__(
        self,
        layout: StateLayout,
        *,
        environ: Mapping[str, str],
        controller_pid: int,
        backoff: BackoffPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instances: dict[str, Instance] = {}
        self._layout = layout
        self._environ = dict(environ)
        self._controller_pid = controller_pid
        self._backoff = backoff if backoff is not None else BackoffPolicy(cap_s=30.0)
        self._clock = clock
        self._recorded = b""
        self._prober = ProcessProber()
        self._tasks = Supervised(restart_after_s=TICK_S)
        self._rounds = StallGuard(TICK_S, clock())

    async def run(self) -> None:
        """Make a round every TICK_S until cancelled."""
        while True:
            self.run_round()
            await asyncio.sleep(TICK_S)

    async def close(self) -> None:
        """Stop watching. The processes continue."""
        await self._tasks.close()

    # -- interface for other modules ----------------------------------------------------------------------------------

    def add(self, spec: ProcessSpec, generation: int = 1) -> Instance:
        instance = Instance(spec=spec, generation=generation, state=ProcessState(since_s=self._clock()))
        self.instances[instance.name] = instance
        return instance

    def adopt(self, adoptions: Iterable[Adoption]) -> None:
        """Register processes that run already, and watch them from now on."""
        for adoption in adoptions:
            instance = self.add(adoption.spec, adoption.generation)
            instance.child = Child(pid=adoption.pid, started_at=adoption.started_at)
            self.apply(instance, Adopted(pid=adoption.pid, restarts=adoption.restarts))
            _log.info("adopted %s, process %d", instance.name, adoption.pid)

    def current(self, name: str) -> Instance | None:
        """Return the newest generation of a process, or None if there is no process of that name."""
        generations = [instance for instance in self.instances.values() if instance.spec.name == name]
        return max(generations, key=lambda instance: instance.generation, default=None)

    def specs(self) -> dict[str, ProcessSpec]:
        """Return the specs of processes that run or are about to, by name; those being removed are left out."""
        newest = {instance.spec.name: self.current(instance.spec.name) for instance in self.instances.values()}
        return {name: found.spec for name, found in newest.items() if found is not None and not found.state.removed}

    def slots(self) -> dict[str, int]:
        found = ((spec.replica_id, spec.slot) for spec in self.specs().values())
        return {replica_id: slot for replica_id, slot in found if replica_id is not None and slot is not None}

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a condition that a round may bring about. Return False if it does not hold in
        time."""
        deadline_s = self._clock() + timeout_s
        while not condition():
            if self._clock() >= deadline_s:
                return False
            await asyncio.sleep(TICK_S / 4)
        return True

    # -- one round ----------------------------------------------------------------------------------------------------

    def run_round(self) -> None:
        """Make one round over all processes: notice exits, apply time limits, start what may start, probe, forget what
        is over, and save the ledger. A late round applies no time limits, because answers may still be unread."""
        may_judge = self._rounds.is_on_time(self._clock())
        for instance in list(self.instances.values()):
            self._notice_exit(instance)
            self._sweep(instance)
            if may_judge and not (instance.state.phase == "backoff" and _is_held(instance.spec)):
                self.apply(instance, Ticked())
            if instance.state.phase == "pending" and self._may_start(instance.spec):
                self.apply(instance, Permitted())
            self._start_probe(instance)
        for name in [name for name, instance in self.instances.items() if _is_over(instance)]:
            del self.instances[name]
        self.record()

    def apply(self, instance: Instance, event: Event) -> None:
        """Apply the event to the process's state, then carry out the resulting actions, which may lead to further
        events."""
        before = instance.state
        instance.state, actions = step(before, event, self._clock(), instance.spec.timing, self._backoff)
        if instance.state.phase != before.phase:
            _log.info(
                "%s: %s -> %s %s", instance.name, before.phase, instance.state.phase, instance.state.reason or "-"
            )
        for action in actions:
            self._perform(instance, action)

    def record(self) -> None:
        entries = tuple(
            instance.ledger_entry(str(self._layout.log_file(instance.spec.name)))
            for _, instance in sorted(self.instances.items())
        )
        document = encode_ledger(ProcessLedger(self._controller_pid, entries))
        if document != self._recorded:
            replace_file(self._layout.ledger_file, document)
            self._recorded = document

    def age_s(self, instance: Instance) -> float:
        """Return the seconds since the process entered its current phase."""
        return self._clock() - instance.state.since_s

    def _perform(self, instance: Instance, action: Action) -> None:
        if action == "spawn":
            self._spawn(instance)
        elif instance.child is None:
            self.apply(instance, Exited("never started"))
        elif action == "terminate":
            instance.child.terminate()
        else:
            instance.child.kill_group()

    def _spawn(self, instance: Instance) -> None:
        spec = instance.spec
        log = self._layout.log_file(spec.name)
        if spec.role == "parked" and spec.door is not None:
            # left by a killed process: an existing socket would mean that the new one waits
            spec.door.unlink(missing_ok=True)
        try:
            instance.child = self._forked(instance, log) or spawn(
                spec, instance=instance.name, fleet=self._layout.root, log=log, environ=self._environ
            )
        except OSError as error:
            instance.child = None
            self.apply(instance, SpawnFailed(f"could not be started: {error}"))
            return
        instance.next_probe_s = 0.0
        self.apply(instance, Spawned(instance.child.pid))
        self.record()

    def _forked(self, instance: Instance, log: Path) -> Child | None:
        """Fork the process from its parked process and return it. Return None if it has none, or if that is not ready
        or refuses."""
        spec = instance.spec
        source = self.current(spec.forked_from) if spec.forked_from is not None else None
        if source is None or source.spec.door is None or source.state.phase != "ready":
            return None
        try:
            return fork_parked(
                source.spec.door,
                spec,
                instance=instance.name,
                fleet=self._layout.root,
                log=log,
                environ=self._environ,
            )
        except NotForked as why:
            _log.info("%s was not forked and imports the engine itself: %s: %s", instance.name, source.name, why)
            return None

    def _notice_exit(self, instance: Instance) -> None:
        if instance.child is not None and instance.state.pid is not None:
            how = instance.child.exited()
            if how is not None and instance.state.phase in ("starting", "ready", "unready", "draining"):
                self.apply(instance, Exited(how))

    def _sweep(self, instance: Instance) -> None:
        """If a crashed or draining process's leader is dead, kill what is left in its session, or once that is empty,
        report it as swept."""
        if instance.state.phase not in ("crashed", "draining"):
            return
        if instance.child is not None:
            if instance.child.exited() is None:
                return
            if session_members(instance.child.pid):
                instance.child.kill_group()
                return
        instance.child = None
        self.apply(instance, GroupSwept())

    def _may_start(self, spec: ProcessSpec) -> bool:
        if _is_held(spec):
            return False
        waited_for = [self.current(name) for name in spec.after]
        return all(instance is None or instance.state.ever_ready for instance in waited_for)

    def _start_probe(self, instance: Instance) -> None:
        now_s = self._clock()
        if instance.probing or instance.state.phase not in ("starting", "ready", "unready"):
            return
        if now_s < instance.next_probe_s:
            return
        eager = instance.state.phase == "starting" and self.age_s(instance) < EAGER_FOR_S
        instance.next_probe_s = now_s + (PROBE_EAGER_EVERY_S if eager else PROBE_EVERY_S)
        instance.probing = True
        self._tasks.once(f"probe {instance.name}", self._probe(instance, instance.child))

    async def _probe(self, instance: Instance, asked: Child | None) -> None:
        spec = instance.spec
        try:
            readiness = await self._prober.probe(spec.readiness)
            liveness = await self._liveness(spec.liveness, readiness, spec)
        finally:
            instance.probing = False
        if instance.child is not asked:
            return  # the answer concerns a process that no longer exists
        self.apply(instance, ReadinessProbed(readiness.ok, readiness.detail))
        if liveness is not None and (liveness.answered or not spec.liveness_by_other):
            starved_s = instance.starvation.since_last_s(asked.pid) if asked is not None else 0.0
            self.apply(instance, LivenessProbed(liveness.ok, liveness.detail, starved_s))

    async def _liveness(self, probe: Probe | None, readiness: ProbeOutcome, spec: ProcessSpec) -> ProbeOutcome | None:
        if probe is None:
            return None
        return readiness if probe == spec.readiness else await self._prober.probe(probe)


def _is_held(spec: ProcessSpec) -> bool:
    return spec.held_by is not None and spec.held_by.exists()


def _is_over(instance: Instance) -> bool:
    return instance.state.phase == "stopped" and instance.state.removed
