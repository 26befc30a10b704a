"""Process spec: how one process of the fleet is started, probed and stopped.

A spec is a value: equal specs mean equal processes. `spec_hash` names what a running process was started with, so that
a controller knows, after its own restart, whether what runs is what it wants.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["s3", "bus", "registry", "gateway", "engine", "agent", "traces", "weights", "prometheus", "parked"]

# Who stops first: those who take requests, then those who serve them, then what these need.
STOP_ORDER: tuple[Role, ...] = (
    *("prometheus", "gateway", "agent", "engine", "parked"),
    *("weights", "registry", "traces", "bus", "s3"),
)


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Well when GET answers 200."""

    url: str
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Well when the port takes a connection."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PathProbe:
    """Well when the path is there; a link counts by what it leads to."""

    path: Path


Probe = HttpProbe | TcpProbe | PathProbe


@dataclass(frozen=True, slots=True)
class Timing:
    """Limits in seconds, per process."""

    start_s: float = 60.0  # not ready by then: killed and started again
    drain_s: float = 10.0  # from SIGTERM to SIGKILL
    handover_drain_s: float = 660.0  # from the handover to SIGKILL; nothing waits for it
    liveness_failing_s: float = 15.0  # failing for this long: killed and started again


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    role: Role
    argv: tuple[str, ...]
    readiness: Probe
    env: tuple[tuple[str, str], ...] = ()  # sorted
    inherits: tuple[str, ...] = ()  # prefixes of the controller's own variables that the process gets too
    liveness: Probe | None = None
    # Somebody else answers for this process (an engine's agent): when they don't answer, that is no evidence.
    liveness_by_other: bool = False
    after: tuple[str, ...] = ()  # must have been ready once before the first start
    stops_before: tuple[str, ...] = ()  # these are drained before this one is, and started again with it
    held_by: Path | None = None  # while this file is there, it is not started
    takes_over: bool = False  # replaced by starting the next generation beside it, not by stopping it first
    door: Path | None = None  # the unix socket that whoever serves listens on; the proof of a takeover
    forked_from: str | None = None  # the process that has its imports; where that is not there, it is started by itself
    timing: Timing = Timing()
    pool: str | None = None
    replica_id: str | None = None
    slot: int | None = None
    port: int | None = None

    @property
    def spec_hash(self) -> str:
        """16 hex digits over what the process was started with; probes and limits are the controller's own affair."""
        started_with = json.dumps([self.name, self.argv, self.env, self.inherits])
        return hashlib.sha256(started_with.encode()).hexdigest()[:16]

    @property
    def stop_rank(self) -> int:
        return STOP_ORDER.index(self.role)


# Difference between the processes that run and those that are desired. Pure.
#
# Law: nothing is touched that is not different; what is removed or replaced is drained first. One replacement at a time
# is the supervisor's care.


@dataclass(frozen=True, slots=True)
class Difference:
    added: tuple[ProcessSpec, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[ProcessSpec, ...] = ()
    adjusted: tuple[ProcessSpec, ...] = ()  # the process may stay: only probes or limits differ

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.replaced or self.adjusted)


def difference(running: Mapping[str, ProcessSpec], wanted: Mapping[str, ProcessSpec]) -> Difference:
    """Between specs by name. Removals come in stop order, additions and replacements in the reverse of it."""
    both = [(running[name], wanted[name]) for name in running.keys() & wanted.keys()]
    return Difference(
        added=_start_order(spec for name, spec in wanted.items() if name not in running),
        removed=tuple(
            spec.name
            for spec in sorted(running.values(), key=lambda spec: (spec.stop_rank, spec.name))
            if spec.name not in wanted
        ),
        replaced=_start_order(new for old, new in both if old.spec_hash != new.spec_hash),
        adjusted=_start_order(new for old, new in both if old.spec_hash == new.spec_hash and old != new),
    )


def _start_order(specs: Iterable[ProcessSpec]) -> tuple[ProcessSpec, ...]:
    return tuple(sorted(specs, key=lambda spec: (-spec.stop_rank, spec.name)))
