"""What `functions.gateway.decision_recorder` wrote, read back strictly: one event a line, in the order of happening.

A recording is another process's word: lines are bounded, fields are typed, and what a replay could not follow (failed
attempts, adapters that had to be loaded, policies that changed, fallbacks) is refused with its line, for a replay that
passes over it would prove nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from functions.api.snapshot import AdmissionEntry, RoutingEntry, ServiceClass
from functions.fleet.heartbeat import Heartbeat
from functions.simulator.workload.trace_text import TraceUnreadable, lines, refuse

Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**8)]
Cost = Annotated[int, msgspec.Meta(ge=0, le=3 * 10**8)]


class Begin(msgspec.Struct, tag_field="e", tag="begin"):
    t: float
    zone: str
    router: str


class Beat(msgspec.Struct, tag_field="e", tag="beat"):
    t: float
    beat: Heartbeat


class Policy(msgspec.Struct, tag_field="e", tag="policy"):
    t: float
    pool: str
    routing: RoutingEntry
    admission: AdmissionEntry


class Come(msgspec.Struct, tag_field="e", tag="come"):
    t: float
    id: str
    pool: str
    tenant: str
    model: str
    is_adapter: bool
    session: str | None
    band: ServiceClass
    prompt_tokens: Tokens
    expected_tokens: Tokens
    weight: float
    stream: bool
    deadline_ms: int | None = None


class Route(msgspec.Struct, tag_field="e", tag="route"):
    t: float
    id: str
    replica: str  # empty: nobody
    reason: str
    cached: dict[str, Tokens]
    tried: tuple[str, ...] = ()


class Waits(msgspec.Struct, tag_field="e", tag="waits"):
    t: float
    id: str


class RefusedEvent(msgspec.Struct, tag_field="e", tag="refused"):
    t: float
    id: str
    reason: str


class First(msgspec.Struct, tag_field="e", tag="first"):
    t: float
    id: str


class Over(msgspec.Struct, tag_field="e", tag="over"):
    t: float
    id: str
    usage: tuple[Tokens, Tokens, Tokens] | None  # prompt, cached of it, answer
    cost: Cost | None = None  # without a usage: what fairness has it down for; None: as was expected


class Left(msgspec.Struct, tag_field="e", tag="left"):
    t: float
    id: str


class Sweep(msgspec.Struct, tag_field="e", tag="sweep"):
    t: float


class Serve(msgspec.Struct, tag_field="e", tag="serve"):
    t: float
    pool: str


class Failed(msgspec.Struct, tag_field="e", tag="failed"):
    t: float
    replica: str
    failure: str


class PutOff(msgspec.Struct, tag_field="e", tag="put_off"):
    t: float
    id: str


class Full(msgspec.Struct, tag_field="e", tag="full"):
    t: float = 0.0


Event = (
    Begin
    | Beat
    | Policy
    | Come
    | Route
    | Waits
    | RefusedEvent
    | First
    | Over
    | Left
    | Sweep
    | Serve
    | Failed
    | PutOff
    | Full
)


def events(path: Path) -> Iterator[tuple[int, Event]]:
    """Each with its line, up to where the file was full; TraceUnreadable."""
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Event)
    broken: tuple[int, str] | None = None
    for number, line in lines(path):
        if broken is not None:  # not the last line, which a process that was killed leaves behind
            refuse(path, *broken)
        try:
            event = decoder.decode(line)
        except msgspec.DecodeError as error:
            broken = (number, str(error))
            continue
        if isinstance(event, Full):
            return
        if isinstance(event, Failed | PutOff):
            what = f"attempt at {event.replica} failed" if isinstance(event, Failed) else "wait for an adapter"
            refuse(path, number, f"a replay does not follow this: {what}")
        if isinstance(event, Begin) and event.router != "shoal":
            refuse(path, number, f"the gateway's router was {event.router}: a replay follows shoal's own")
        if isinstance(event, Policy) and (event.routing.fallback or event.routing.cascade):
            refuse(path, number, f"a replay does not follow fallbacks and cascades, which {event.pool} has")
        if isinstance(event, Come) and (event.deadline_ms is not None or not event.stream):
            refuse(path, number, "a replay follows streams without a deadline of their own")
        yield number, event


def policies(path: Path) -> dict[str, Policy]:
    """By pool; TraceUnreadable where there is none, or one changed."""
    found: dict[str, Policy] = {}
    for number, event in events(path):
        if isinstance(event, Policy):
            former = found.setdefault(event.pool, event)
            if (former.routing, former.admission) != (event.routing, event.admission):
                refuse(path, number, f"the policy of {event.pool} changed: record between two pushes")
    if not found:
        raise TraceUnreadable(f"{path}: no request in it")
    return found
