"""What differs between the processes that run and those that are wanted. Pure.

Law: nothing is touched that is not different; what is removed or replaced is drained first. One replacement at a time
is the supervisor's care.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.controller.local.spec import ProcessSpec


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
