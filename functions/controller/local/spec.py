"""Process spec: how one process of the fleet is started, probed and stopped.

A spec is a value: equal specs mean equal processes. `spec_hash` identifies what a running process was started with,
so a restarted controller recognises the processes that it wants.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["s3", "bus", "registry", "gateway", "engine", "agent", "traces", "weights", "prometheus", "parked"]

# Processes that accept requests stop first, then those that serve them, then those that these need.
STOP_ORDER: tuple[Role, ...] = (
    *("prometheus", "gateway", "agent", "engine", "parked"),
    *("weights", "registry", "traces", "bus", "s3"),
)


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Probe that succeeds if GET answers 200."""

    url: str
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Probe that succeeds if the port accepts a connection."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PathProbe:
    """Probe that succeeds if the path exists; for a link, if its target exists."""

    path: Path


Probe = HttpProbe | TcpProbe | PathProbe


@dataclass(frozen=True, slots=True)
class Timing:
    start_s: float = 60.0  # time to become ready; then the process is killed and started again
    drain_s: float = 10.0  # from SIGTERM to SIGKILL
    handover_drain_s: float = 660.0  # from the handover to SIGKILL; no other process waits for it
    liveness_failing_s: float = 15.0  # after failing for this long, the process is killed and started again


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    role: Role
    argv: tuple[str, ...]
    readiness: Probe
    env: tuple[tuple[str, str], ...] = ()  # sorted
    inherits: tuple[str, ...] = ()  # prefixes of the controller's own variables that the process gets too
    liveness: Probe | None = None
    # Another process (an engine's agent) answers the liveness probe. If that process does not answer, this is no
    # evidence.
    liveness_by_other: bool = False
    after: tuple[str, ...] = ()  # processes that must have been ready once before the first start
    stops_before: tuple[str, ...] = ()  # processes that are drained before this one and started again with it
    held_by: Path | None = None  # while this file exists, the process is not started
    takes_over: bool = False  # replaced by starting the next generation first, without a stop
    door: Path | None = None  # Unix socket of the generation that serves, which proves a takeover
    forked_from: str | None = None  # parked process to fork from; without it, the process is started directly
    timing: Timing = Timing()
    pool: str | None = None
    replica_id: str | None = None
    slot: int | None = None
    port: int | None = None

    @property
    def spec_hash(self) -> str:
        """16 hex digits of a hash over what the process was started with (name, arguments and environment), without
        probes and limits."""
        started_with = json.dumps([self.name, self.argv, self.env, self.inherits])
        return hashlib.sha256(started_with.encode()).hexdigest()[:16]

    @property
    def stop_rank(self) -> int:
        return STOP_ORDER.index(self.role)


# Difference between the running and the desired processes. Pure.
#
# Rule: nothing is touched that is not different; what is removed or replaced is drained first. `operations`
# replaces one process at a time.


@dataclass(frozen=True, slots=True)
class Difference:
    added: tuple[ProcessSpec, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[ProcessSpec, ...] = ()
    adjusted: tuple[ProcessSpec, ...] = ()  # the process is kept: only probes or limits differ

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.replaced or self.adjusted)


def difference(running: Mapping[str, ProcessSpec], wanted: Mapping[str, ProcessSpec]) -> Difference:
    """Return the difference of specs by name: removals in stop order, all others in start order. Specs with another
    hash are replacements; those that differ otherwise are adjusted without a restart."""
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
