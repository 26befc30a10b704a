"""Run one drill on the fleet and return what was observed.

    1  check engine and replicas                               4  inject the fault; wait for effect and alert
    2  keys, short alert windows, no such alert, preparation   5  remove the fault
    3  steady load for QUIET_S                                 6  wait until the fleet is well and the alert clears

Rule: every change is undone, the last one first, before the drill returns or raises, however it ends. Work in threads
is awaited first, so that nothing changes after the undo.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx

from functions.cli.drill.accounts import DrillAccounting, owed
from functions.cli.drill.declared import Drill, DrillLoad, needs
from functions.cli.drill.load import LoadMaker, LoadTarget
from functions.cli.drill.recording import record
from functions.cli.drill.stage import DrillStage
from functions.cli.drill.timeline import AlertChange, DrillTimeline, FleetObservation, RequestOutcome
from functions.cli.drill.undoing import undo
from functions.cli.drill.watch import LOOK_EVERY_S, Alerts, FleetObserver, Pages
from functions.cli.refused import CommandRefused
from functions.telemetry.alerting.scaled import held_s

READY_S = 90.0  # time for the fleet to become ready again after an earlier drill
QUIET_S = 10.0  # load without the fault, at the start
KEY_TRAVELS_S = 30.0  # limit until the gateway knows a new key
CALM_S = 120.0  # limit for the alert of an earlier failure to clear
WINDOWS_S = 20.0
TAIL_S = 3.0  # pause after recovery, before the end
POLL_S = 0.1

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PlayedDrill:
    timeline: DrillTimeline
    engine: str
    replicas: int
    environment: str
    left_out: int  # requests that were not sent, or lost in a stall of this process
    load_average: tuple[float, float]  # load of the machine at the beginning and the end
    window_scale: float
    recorded: dict[str, str]  # values of the alert's input series


@dataclass(slots=True)
class _Seen:
    """Observations that grow during the run."""

    began_s: float = field(default_factory=time.monotonic)
    began_unix_s: float = field(default_factory=time.time)
    looks: list[FleetObservation] = field(default_factory=list)

    def now_s(self) -> float:
        return time.monotonic() - self.began_s


class Performance:
    def __init__(self, drill: Drill, stage: DrillStage, *, scale: float, consents: list[str], say: Say) -> None:
        self._drill, self._stage, self._scale, self._consents, self._say = drill, stage, scale, consents, say
        self._seen = _Seen()
        self._makers: list[LoadMaker] = []
        self._alerts: Alerts | None = None
        self._environment = ""
        self._recorded: dict[str, str] = {}

    async def play(self) -> PlayedDrill:
        """Run the drill and undo its changes. Fail if the fleet cannot or may not run it, or if not everything could be
        undone."""
        stage = self._stage
        mark, load_before = stage.journal.mark, os.getloadavg()[0]
        status = await self._ready()
        engine, replicas = self._checked(status)
        try:
            timeline = await self._play(status)
        except BaseExceptionGroup as group:
            raise _first_of(group) from group
        finally:
            self._say("undoing the remaining changes")
            wrong = stage.journal.roll_back(lambda undoing: undo(stage.context, undoing), mark)
        if wrong:
            raise CommandRefused(
                "not everything could be undone: " + "; ".join(wrong) + "; `shoal drill` tries it again"
            )
        return PlayedDrill(
            timeline=timeline,
            engine=engine,
            replicas=replicas,
            environment=self._environment,
            left_out=sum(maker.left_out for maker in self._makers),
            load_average=(load_before, os.getloadavg()[0]),
            window_scale=self._scale,
            recorded=self._recorded,
        )

    async def _ready(self) -> dict[str, Any]:
        """Wait up to READY_S until the fleet is ready, and return its last status, even if it is not ready."""
        deadline_s = time.monotonic() + READY_S
        while True:
            status = await in_thread(self._stage.status)
            if status["ready"] or time.monotonic() > deadline_s:
                return status
            await asyncio.sleep(1.0)

    def _checked(self, status: dict[str, Any]) -> tuple[str, int]:
        engine = str(status["target"]["engine"])
        replicas = sum(each["phase"] == "ready" for each in status["replicas"])
        if not status["ready"]:
            raise CommandRefused("the fleet is not ready, or is being changed: `shoal status` shows what it waits for")
        if why := needs(self._drill, engine=engine, replicas=replicas):
            raise CommandRefused(f"{self._drill.name} cannot run here: {why}")
        return engine, replicas

    async def _play(self, status: dict[str, Any]) -> DrillTimeline:
        drill, stage = self._drill, self._stage
        target = await self._target(status["target"]["engine"] == "sim")
        spikes = [(load, await self._target_of(load, target)) for load in drill.spike]
        await self._watch_alerts()
        if drill.prepare is not None:
            await in_thread(lambda: drill.prepare and drill.prepare(stage))
        pages, ledger = self._pages(status), DrillAccounting(stage, int(self._seen.began_unix_s))
        await in_thread(ledger.record_baseline)
        stop_load, stop_spike = asyncio.Event(), asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._maker(drill.load, target).run(stop_load))
                looks = FleetObserver(pages, drill.effect, drill.mend)
                await looks.record_baseline()
                watching = group.create_task(self._watch(looks))
                self._say(f"load: {drill.load.requests_per_s:g} requests/s")
                await asyncio.sleep(QUIET_S)
                self._say(f"fault: {drill.fault}")
                injected_s = self._seen.now_s()
                fault = stage.journal.mark
                for load, its_target in spikes:
                    group.create_task(self._maker(load, its_target).run(stop_spike))
                await in_thread(lambda: drill.inject(stage))
                await self._until(self._is_seen(injected_s), drill.fires_within_s, at_least_s=drill.hold_s)
                if drill.mend is not None:
                    self._say(f"until {drill.mend.words}")
                    await self._until(self._is_mended(injected_s), drill.mend.within_s)
                self._say(f"taken back: {drill.taken_back}")
                stop_spike.set()
                taken_back_s = self._seen.now_s()
                wrong = await in_thread(lambda: stage.journal.roll_back(lambda it: undo(stage.context, it), fault))
                limit_s = max(drill.clears_within_s, drill.recovers_within_s)
                await self._until(self._is_over(taken_back_s), limit_s)
                await asyncio.sleep(TAIL_S)
                stop_load.set()
                watching.cancel()
            if wrong:
                self._say("; ".join(wrong))
            timeline = await self._timeline(injected_s, taken_back_s, looks.zero)
            due = owed(timeline.outcomes, injected_s, drill.unspooled_s)
            return replace(timeline, accounts=await in_thread(lambda: ledger.settle(due)))
        finally:
            await pages.close()
            if self._alerts is not None:
                await self._alerts.close()

    # -- before the load ----------------------------------------------------------------------------------------------

    async def _target(self, echoes: bool) -> LoadTarget:
        """Create a key, wait until the gateway knows it, and return the target. Fail on production without consent."""
        stage = self._stage
        key = await self._key({})
        self._environment = environment_of(key)
        if why := refusal(self._environment, self._drill.name, self._consents):
            raise CommandRefused(why)
        verify = ssl.create_default_context(cafile=str(stage.context.layout.ca_file))
        base = await self._base_model(key, verify)
        return LoadTarget(url=stage.context.gateway_url, key=key, verify=verify, base_model=base, echoes=echoes)

    async def _target_of(self, load: DrillLoad, target: LoadTarget) -> LoadTarget:
        if not load.key_limits:
            return target
        key = await self._key(dict(load.key_limits))
        await self._base_model(key, target.verify)
        return LoadTarget(target.url, key, target.verify, target.base_model, target.echoes)

    async def _key(self, limits: dict[str, int]) -> str:
        key_id = f"drill-{os.urandom(6).hex()}"
        return await in_thread(lambda: self._stage.mint_key(key_id, limits))

    async def _base_model(self, key: str, verify: ssl.SSLContext) -> str:
        url = f"{self._stage.context.gateway_url}/v1/models"
        deadline_s = time.monotonic() + KEY_TRAVELS_S
        async with httpx.AsyncClient(verify=verify, timeout=5.0, trust_env=False) as client:
            while True:
                answer = await client.get(url, headers={"authorization": f"Bearer {key}"})
                if answer.status_code == httpx.codes.OK:
                    break
                if time.monotonic() > deadline_s:
                    raise CommandRefused(f"the gateway does not know the drill's key after {KEY_TRAVELS_S:.0f} s")
                await asyncio.sleep(0.3)
        bases = sorted(str(model["id"]) for model in answer.json()["data"] if "/" not in str(model["id"]))
        if not bases:
            raise CommandRefused(
                f"the tenant {self._stage.tenant} may not call any base model: choose another tenant with --tenant"
            )
        return bases[0]

    async def _watch_alerts(self) -> None:
        """Shorten the alerts' windows, and wait until the drill's alert is inactive, since an alert that fires already
        proves nothing; fail if it stays active. Do nothing without Prometheus."""
        drill, stage = self._drill, self._stage
        if not await in_thread(lambda: stage.shorten_windows(self._scale)):
            self._say("this fleet has no Prometheus: the alert is not checked")
            return
        alerts = self._alerts = Alerts(f"http://127.0.0.1:{stage.context.ports.prometheus}")
        deadline_s = time.monotonic() + WINDOWS_S
        while not await alerts.windows_are(drill.alert, held_s(drill.alert, self._scale)):
            if time.monotonic() > deadline_s:
                raise CommandRefused("Prometheus does not apply the short windows: see the log of `prometheus`")
            await asyncio.sleep(0.5)
        deadline_s = time.monotonic() + CALM_S
        while True:
            await alerts.refresh(0.0)
            if alerts.states.get(drill.alert, "inactive") == "inactive":
                break
            if time.monotonic() > deadline_s:
                raise CommandRefused(f"{drill.alert} fires already: fix its cause first, as its runbook says")
            await asyncio.sleep(1.0)
        alerts.changes.clear()

    def _pages(self, status: dict[str, Any]) -> Pages:
        context = self._stage.context
        slots = [entry.slot for entry in self._stage.entries("agent") if entry.slot is not None]
        token = context.layout.secret("internal-token").read_text().strip()
        return Pages(context, token, tuple(context.ports.agent(slot) for slot in slots))

    # -- while it goes on ---------------------------------------------------------------------------------------------

    def _maker(self, load: DrillLoad, target: LoadTarget) -> LoadMaker:
        maker = LoadMaker(load, target, self._seen.now_s)
        self._makers.append(maker)
        return maker

    async def _watch(self, looks: FleetObserver) -> None:
        """Poll the fleet and, if they are checked, the alerts every LOOK_EVERY_S until cancelled; record what was
        seen."""
        while True:
            async with asyncio.TaskGroup() as group:
                look = group.create_task(looks.observe(self._seen.now_s()))
                if self._alerts is not None:
                    group.create_task(self._alerts.refresh(self._seen.now_s()))
            self._seen.looks.append(look.result())
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_seen(self, injected_s: float) -> Callable[[], bool]:
        def seen() -> bool:
            shown = any(look.shows_effect for look in self._seen.looks if look.at_s >= injected_s)
            return shown and (self._alerts is None or self._has_fired(injected_s))

        return seen

    def _is_mended(self, injected_s: float) -> Callable[[], bool]:
        return lambda: any(look.is_mended for look in self._seen.looks if look.at_s >= injected_s)

    def _has_fired(self, since_s: float) -> bool:
        changes = self._alerts.changes if self._alerts is not None else []
        return any(
            change.name == self._drill.alert and change.state == "firing" and change.at_s >= since_s
            for change in changes
        )

    def _is_over(self, taken_back_s: float) -> Callable[[], bool]:
        def over() -> bool:
            later = [look for look in self._seen.looks if look.at_s > taken_back_s]
            is_well = bool(later) and later[-1].is_well
            fires = self._alerts is not None and self._alerts.states.get(self._drill.alert, "inactive") == "firing"
            return is_well and not fires

        return over

    async def _until(self, condition: Callable[[], bool], limit_s: float, at_least_s: float = 0.0) -> None:
        began_s = time.monotonic()
        while time.monotonic() < began_s + limit_s:
            if condition() and time.monotonic() >= began_s + at_least_s:
                return
            await asyncio.sleep(POLL_S)

    async def _timeline(self, injected_s: float, taken_back_s: float, zero: float) -> DrillTimeline:
        outcomes: list[RequestOutcome] = [each for maker in self._makers for each in maker.outcomes]
        seen, effect, ended_s = self._seen, self._drill.effect, self._seen.now_s()
        changes: list[AlertChange] = []
        shown: list[tuple[float, bool]] = []
        if self._alerts is not None:
            changes = await self._alerts.history(seen.began_unix_s, ended_s)
            self._recorded = await record(self._alerts, self._drill.alert, seen.began_unix_s, ended_s)
            query = effect.query
            for series in await self._alerts.range(query, seen.began_unix_s, ended_s) if query is not None else ():
                shown += [(at_s, effect.is_there(value - zero)) for at_s, value in series["values"]]
        return DrillTimeline(
            injected_s=injected_s,
            taken_back_s=taken_back_s,
            ended_s=ended_s,
            outcomes=tuple(sorted(outcomes, key=lambda each: each.began_s)),
            alerts=tuple(changes),
            looks=tuple(self._seen.looks),
            shown=tuple(shown),
            sees_alerts=self._alerts is not None,
        )


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group. Tasks fail together, and only the first error is reported."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` like asyncio.to_thread. If cancelled, wait for its end before raising."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


# Consent: on a production installation, a drill runs only if its name is given twice.
#
# Each key's text contains the environment (`SHOAL_ENVIRONMENT` of a fleet on one machine,
# `SHOAL_REGISTRY_ENVIRONMENT` elsewhere), so the drill's key shows where it runs.


PRODUCTION = frozenset({"live", "prod", "production"})


def environment_of(key: str) -> str:
    """Return the environment of a key `shoal_<environment>_<id>_<secret>`; empty if the text is not a key."""
    parts = key.split("_")
    return parts[1] if len(parts) > 3 and parts[0] == "shoal" else ""


def refusal(environment: str, drill: str, consents: list[str]) -> str:
    """Return why the drill may not run: the environment is production, or not known, and there is no consent. Empty if
    it may."""
    if environment not in PRODUCTION and environment:
        return ""
    if drill in consents:
        return ""
    what = f"this installation is production (its environment is {environment!r})"
    return f"{what}, and {drill} makes it fail on purpose: run it with --i-consent-on-production {drill}"
