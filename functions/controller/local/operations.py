"""Operations in several steps: stop everything, restart one process, or change to another set of specs.

One operation runs at a time. Processes that accept requests stop before those that serve them. Processes are replaced
one by one: each must be ready again before the next is touched, and if one does not become ready, the rest is left.
Before the first engine of a pool is replaced, one extra replica is started if there is room (`surge`). A change that
does not work fails there, with nothing drained, and the pool never has fewer replicas than it wants.
Processes that do not serve are replaced first. No serving process is touched while another of its pool is out.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import groupby

from functions.controller.local.found import serving_pid
from functions.controller.local.instances import Instance
from functions.controller.local.lifecycle import (
    SERVING,
    HandedOver,
    StartRequested,
    StopRequested,
    TakeoverFailed,
    TakeoverStarted,
)
from functions.controller.local.spec import STOP_ORDER, ProcessSpec, difference
from functions.controller.local.supervisor import Supervisor
from functions.controller.local.surge import Surge, no_surge

# Time beyond a process's drain limit, for SIGKILL and the sweep of its session.
STOP_SLACK_S = 15.0
# A ready replica reports it with its next heartbeat. No other replica may be drained until gateways have received it.
UPDATE_TRAVELS_S = 2.5
TAKEOVER_S = 60.0  # limit from the start of a new generation until it serves the old one's sockets


class NoSuchProcess(Exception):
    """No process or replica has that name; the message lists those that exist."""


class NotReadyAgain(Exception):
    """A replaced process did not become ready; the others were not changed."""


class OperationSuperseded(Exception):
    """Another state is wanted now. The step under way was completed; the remaining steps were not started."""


def _never() -> bool:
    return False


class Operations:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._one_at_a_time = asyncio.Lock()
        self._current: asyncio.Task[object] | None = None

    async def stop_all(self) -> None:
        """Drain and remove everything, in the order in which requests flow. The operation under way is cancelled
        first."""
        if self._current is not None:
            self._current.cancel()
        async with self._exclusive():
            for role in STOP_ORDER:
                await self._stop([i for i in self._supervisor.instances.values() if i.spec.role == role], remove=True)

    async def restart(self, name: str) -> str:
        """Restart a process, or a replica by its id, and wait until it is ready. Return what was done, as text."""
        async with self._exclusive():
            names = self.process_names(name)
            for each in names:
                instance = self._supervisor.current(each)
                if instance is not None:
                    await self._replace(instance.spec)
            return f"restarted {', '.join(names)}"

    async def converge(
        self, wanted: Mapping[str, ProcessSpec], superseded: Callable[[], bool] = _never, surge: Surge = no_surge
    ) -> tuple[str, ...]:
        """Change the running processes to the `wanted` ones. Raises Superseded if another state is wanted before the
        end.

        `surge` returns the processes of one extra replica of a pool. Return the names of processes that are not ready
        yet, whether this call or an earlier one added them. They start by themselves: `wait_all_ready` waits for them
        without blocking other operations.
        """
        async with self._exclusive():
            self._start_stopped()
            change = difference(self._supervisor.specs(), wanted)
            for spec in change.adjusted:
                self._adjust(spec)
            for _, removed in groupby(self._instances(change.removed), key=lambda instance: instance.spec.stop_rank):
                await self._stop(removed, remove=True)
            for spec in change.added:
                self._supervisor.add(spec)
            async with self._surging(surge) as prepare:
                await self._replace_all(change.replaced, prepare, superseded)
            in_start_order = sorted(wanted.values(), key=lambda spec: (-spec.stop_rank, spec.name))
            awaited = (spec.name for spec in in_start_order if spec.role != "parked")  # engines start without them
            return tuple(name for name in awaited if self._is_still_starting(name))

    async def wait_all_ready(self, names: Iterable[str], superseded: Callable[[], bool] = _never) -> None:
        """Wait until each process is ready, one after another. Raises NotReadyAgain if one is not ready in time."""
        for name in names:
            await self._wait_ready(name, superseded)

    async def finish_takeovers(self) -> None:
        """Finish each takeover that was under way when the controller restarted, so that two generations were found."""
        async with self._exclusive():
            for name in {instance.spec.name for instance in self._supervisor.instances.values()}:
                newest = self._supervisor.current(name)
                older = [i for i in self._supervisor.instances.values() if i.spec.name == name and i is not newest]
                if newest is not None and older:
                    await self._finish_takeover(newest, older)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        async with self._one_at_a_time:
            self._current = asyncio.current_task()
            try:
                yield
            finally:
                self._current = None

    async def _replace_all(
        self,
        specs: Iterable[ProcessSpec],
        prepare: Callable[[ProcessSpec, Callable[[], bool]], Awaitable[None]],
        superseded: Callable[[], bool],
    ) -> None:
        replaced = {spec.name: spec for spec in specs}
        done: set[str] = set()
        # An engine comes before its agent and is replaced together with it; sorting is stable. If a ready engine were
        # left and only its unready agent replaced, the agent would report the new weights with an engine that has the
        # old ones.
        for spec in sorted(replaced.values(), key=self._is_in_service):
            if spec.name in done:
                continue
            await prepare(spec, superseded)
            await self._wait_for_pool(spec, superseded)
            done.update(await self._replace(spec, replaced, superseded))
            if spec.pool is not None:
                await self._supervisor.wait_until(superseded, UPDATE_TRAVELS_S)

    @asynccontextmanager
    async def _surging(
        self, surge: Surge
    ) -> AsyncIterator[Callable[[ProcessSpec, Callable[[], bool]], Awaitable[None]]]:
        """Yield the function to call before each replacement: it starts one extra replica of the engine's pool once,
        and waits until that is ready. At the end, the replicas that it started are removed."""
        extra: dict[str, list[Instance]] = {}

        async def prepare(spec: ProcessSpec, superseded: Callable[[], bool]) -> None:
            if spec.pool is None or spec.pool in extra or spec.role != "engine" or not self._is_in_service(spec):
                return
            more = sorted(surge(spec.pool).values(), key=lambda spec: (-spec.stop_rank, spec.name))
            extra[spec.pool] = [self._supervisor.add(each) for each in more]
            for each in more:
                await self._wait_ready(each.name, superseded)
            if more:
                await self._supervisor.wait_until(superseded, UPDATE_TRAVELS_S)

        try:
            yield prepare
        finally:
            started = sorted((each for some in extra.values() for each in some), key=lambda each: each.spec.stop_rank)
            for _, rank in groupby(started, key=lambda each: each.spec.stop_rank):
                await self._stop(rank, remove=True)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _start_stopped(self) -> None:
        """Start the processes that a cancelled operation has stopped and not started again."""
        for instance in self._supervisor.instances.values():
            if instance.state.phase == "stopped" and not instance.state.removed:
                self._supervisor.apply(instance, StartRequested())

    def _is_still_starting(self, name: str) -> bool:
        """Return True if the process exists and is neither ready nor unready, which a process is only if it was ready
        before."""
        instance = self._supervisor.current(name)
        return instance is not None and instance.state.phase not in ("ready", "unready")

    def _serves(self, name: str) -> bool:
        instance = self._supervisor.current(name)
        return instance is not None and instance.state.phase == "ready"

    def _is_in_service(self, spec: ProcessSpec) -> bool:
        """Return True if all processes of the spec's replica are ready; without a replica, if the process itself is."""
        if spec.replica_id is None:
            return self._serves(spec.name)
        names = (name for name, each in self._supervisor.specs().items() if each.replica_id == spec.replica_id)
        return all(self._serves(name) for name in names)

    async def _wait_for_pool(self, spec: ProcessSpec, superseded: Callable[[], bool]) -> None:
        """Wait until every other replica of the pool is ready, so that two are never out together; return at once if
        this replica is not in service itself."""
        if spec.pool is None or not self._is_in_service(spec):
            return
        for other in list(self._supervisor.specs().values()):
            if other.pool == spec.pool and other.replica_id != spec.replica_id:
                await self._wait_ready(other.name, superseded)

    async def _replace(
        self,
        spec: ProcessSpec,
        others: Mapping[str, ProcessSpec] | None = None,
        superseded: Callable[[], bool] = _never,
    ) -> list[str]:
        """Stop and start one process, and those that must be drained before it, and wait until all are ready; a process
        that takes over sockets starts its next generation instead. Return their names. `others` has new specs of the
        drained ones."""
        if spec.takes_over:
            await self._take_over(spec)
            return [spec.name]
        names = [name for name in (*spec.stops_before, spec.name) if self._supervisor.current(name) is not None]
        for name in names:
            await self._stop(self._instances([name]))
        for name in reversed(names):
            instance = self._supervisor.current(name)
            if instance is not None:
                instance.spec = spec if name == spec.name else (others or {}).get(name, instance.spec)
                self._supervisor.apply(instance, StartRequested())
        for name in reversed(names):
            await self._wait_ready(name, superseded)
        return names

    async def _take_over(self, spec: ProcessSpec) -> None:
        """Start the next generation next to the current one; it takes over the listening sockets by itself. Raises
        NotReadyAgain if it fails."""
        older = [i for i in self._supervisor.instances.values() if i.spec.name == spec.name]
        newest = max(instance.generation for instance in older) + 1
        for instance in older:
            self._supervisor.apply(instance, TakeoverStarted())
        await self._finish_takeover(self._supervisor.add(spec, newest), older)

    async def _finish_takeover(self, newest: Instance, older: list[Instance]) -> None:
        """Wait for the proof that the newest generation serves; the older ones then finish their requests. Without it
        after TAKEOVER_S, remove the newest and raise NotReadyAgain. The proof is that the newest listens at the door
        (`serving_pid`), or that the older ones have ended, as they do once they are notified and idle. The older ones
        get no signal, because they could end before the newest has their sockets."""

        def serving() -> list[Instance]:
            return [instance for instance in older if instance.state.phase in SERVING]

        def taken_over() -> bool:
            door = newest.spec.door
            return not serving() or (door is not None and serving_pid(door) == newest.state.pid is not None)

        await self._supervisor.wait_until(
            lambda: taken_over() or newest.state.phase in ("backoff", "stopped"), TAKEOVER_S
        )
        staying = serving()
        if not taken_over():
            for instance in staying:
                self._supervisor.apply(instance, TakeoverFailed())
            why = newest.state.reason or "it did not take over the sockets"
            await self._stop([newest], remove=True)
            raise NotReadyAgain(f"{newest.name} failed ({why}); {staying[0].name} continues")
        for instance in staying:
            self._supervisor.apply(instance, HandedOver())
        await self._stop([instance for instance in older if instance not in staying], remove=True)
        await self._wait_ready(newest.spec.name)

    async def _stop(self, instances: Iterable[Instance], *, remove: bool = False) -> None:
        stopping = list(instances)
        for instance in stopping:
            self._supervisor.apply(instance, StopRequested(remove=remove))
        limit_s = max((instance.spec.timing.drain_s for instance in stopping), default=0.0) + STOP_SLACK_S
        await self._supervisor.wait_until(lambda: all(i.state.phase == "stopped" for i in stopping), limit_s)

    async def _wait_ready(self, name: str, superseded: Callable[[], bool] = _never) -> None:
        instance = self._supervisor.current(name)
        if instance is None:
            return

        def is_ready() -> bool:
            return instance.state.phase == "ready"

        await self._supervisor.wait_until(lambda: is_ready() or superseded(), instance.spec.timing.start_s)
        if superseded() and not is_ready():
            raise OperationSuperseded(f"{instance.name} is {instance.state.phase}")
        if not is_ready():
            raise NotReadyAgain(
                f"{instance.name} is {instance.state.phase}: {instance.state.reason or 'no reason given'}"
            )

    def _adjust(self, spec: ProcessSpec) -> None:
        instance = self._supervisor.current(spec.name)
        if instance is not None:
            instance.spec = spec

    def _instances(self, names: Iterable[str]) -> list[Instance]:
        wanted = set(names)
        found = [instance for instance in self._supervisor.instances.values() if instance.spec.name in wanted]
        return sorted(found, key=lambda instance: instance.spec.stop_rank)

    def process_names(self, name: str) -> list[str]:
        """Return the processes that a name means: itself, or a replica's engine, whose agent restarts with it. Raises
        NoSuchProcess for any other name."""
        instances = self._supervisor.instances.values()
        known = sorted({instance.spec.name for instance in instances})
        if name in known:
            return [name]
        of_replica = [i.spec.name for i in instances if i.spec.replica_id == name and i.spec.role == "engine"]
        if not of_replica:
            raise NoSuchProcess(f"no process or replica is named {name!r}; there are: {', '.join(known) or 'none'}")
        return of_replica
