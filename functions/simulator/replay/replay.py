"""A recorded gateway run and its simulation: do they choose the same?

    recorded  one input at a time (a beat, a request, a first token, an end, a look around), then what was chosen
    replayed  the same inputs at the same times, to the simulator's gateway; what it chooses is compared, one by one

Compared are each verdict of the waiting room (dispatched, waits, refused and why) and each route (replica and reason).
Taken as recorded, not recomputed, is what depends on text: the estimate of a prompt's and an answer's length, and how
much of a prompt was known to be cached where.

`test_a_recorded_run_and_its_simulation_choose_the_same` does this with a gateway process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import QuotaEntry
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.setting import PoolSetting, Setting, Zone
from functions.simulator.replay.gateway import Choice, ReplayedGateway, ReplayedWorld, choice_of
from functions.simulator.replay.recording import (
    Beat,
    Begin,
    Come,
    Event,
    First,
    Left,
    Over,
    Policy,
    RefusedEvent,
    Route,
    Serve,
    Sweep,
    Waits,
    events,
    policies,
)

_MOST_SHOWN = 20
_NOBODY_ASKED: Choice = ("nothing", "", "", "")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first choice of an event that was another one."""

    line: int
    recorded: Choice
    replayed: Choice


@dataclass(frozen=True, slots=True)
class Replay:
    requests: int
    seconds: float
    routes: int
    waits: int
    refusals: int
    differing: int
    differences: tuple[Difference, ...]  # the first ones


def replay(path: Path) -> Replay:
    """TraceUnreadable where the recording cannot be followed."""
    gateway, world = None, None
    counts = {"route": 0, "waits": 0, "refused": 0}
    requests = differing = 0
    first_s = last_s = None
    differences: list[Difference] = []
    for number, event, chosen in _happenings(path):
        if gateway is None or world is None:
            world = ReplayedWorld(_setting(path))
            gateway = world.gateway
        requests += isinstance(event, Come)
        first_s, last_s = event.t if first_s is None else first_s, event.t
        world.events.now_s = event.t
        gateway.chosen.clear()
        gateway.knows(each for each in chosen if isinstance(each, Route))
        _tell(gateway, event)
        recorded = [choice_of(each) for each in chosen]
        for choice in recorded:
            counts[choice[0]] += 1
        different = _first_difference(number, recorded, gateway.chosen)
        if different is not None:
            differing += 1
            differences = [*differences, different][:_MOST_SHOWN]
    return Replay(
        requests, (last_s or 0.0) - (first_s or 0.0), counts["route"], counts["waits"], counts["refused"], differing,
        tuple(differences),
    )  # fmt: skip


_Chosen = Route | Waits | RefusedEvent


def _happenings(path: Path) -> Iterator[tuple[int, Event, Sequence[_Chosen]]]:
    """Each input with its line and what was chosen because of it."""
    told: tuple[int, Event] | None = None
    chosen: list[_Chosen] = []
    for number, event in events(path):
        if isinstance(event, Route | Waits | RefusedEvent):
            chosen.append(event)
            continue
        if told is not None:
            yield (*told, chosen)
        told, chosen = (number, event), []
    if told is not None:
        yield (*told, chosen)


def _tell(gateway: ReplayedGateway, event: Event) -> None:
    match event:
        case Beat():
            gateway.hears(event.beat)
        case Come():
            gateway.asked(event)
        case First():
            gateway.began(event.id)
        case Over():
            gateway.ended(event)
        case Left():
            gateway.withdrawn(event.id)
        case Sweep():
            gateway.sweep()
        case Serve():
            gateway.serves(event.pool)
        case _:
            pass  # policies and the beginning are the world's


def _first_difference(line: int, recorded: Sequence[Choice], replayed: Sequence[Choice]) -> Difference | None:
    if list(recorded) == list(replayed):
        return None
    count = max(len(recorded), len(replayed))
    one, other = ([*side, *[_NOBODY_ASKED] * (count - len(side))] for side in (recorded, replayed))
    where = next(index for index in range(count) if one[index] != other[index])
    return Difference(line, one[where], other[where])


def _setting(path: Path) -> Setting:
    """The recorded pools, zone and weights; without replicas, for those are told of."""
    zone, weights = "", {}
    for _, event in events(path):
        if isinstance(event, Begin):
            zone = event.zone
        elif isinstance(event, Come) and event.weight != 1.0:
            weights[TenantId(event.tenant)] = event.weight
    pools = tuple(_pool(policy) for policy in policies(path).values())
    quotas = {tenant: QuotaEntry(name=tenant, weight=weight) for tenant, weight in weights.items()}
    return Setting(pools=pools, zones=(Zone(zone),), quotas=quotas)


def _pool(policy: Policy) -> PoolSetting:
    return PoolSetting(
        name=PoolName(policy.pool), profile=PROFILES["sim"], replicas=0,
        routing=policy.routing, admission=policy.admission,
    )  # fmt: skip
