"""Desired replicas of pools on disk: known to a restarted controller before it looks at what runs.

Else it would take replicas that the autoscaler has started for ones too many, and end them while they serve. A file
that cannot be read counts as empty: then pools begin at their minReplicas, and what runs beyond is drained.

Beside it, how fast a stream is that has a replica for itself (`use`): after a start in the middle of a full day nobody
is alone, and how full the pool is would not be known until the night.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from functions.controller.autoscaling.roster import Roster
from functions.controller.local.ledger import replace_file

MAX_BYTES = 1024 * 1024
MAX_SPEEDS = 4096
_SAME = 0.05
Number = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class KeptPool(msgspec.Struct, frozen=True):
    count: Number
    standby: tuple[Number, ...] = ()


class _KeptSizes(msgspec.Struct, frozen=True):
    pools: dict[str, KeptPool] = {}
    alone_tokens_per_s: dict[str, Annotated[float, msgspec.Meta(ge=0.0)]] = {}  # by pool


def read_sizes(path: Path) -> dict[str, Roster]:
    """By pool."""
    try:
        return {name: Roster(pool.count, frozenset(pool.standby)) for name, pool in _read(path).pools.items()}
    except ValueError:
        return {}


def write_sizes(path: Path, rosters: dict[str, Roster]) -> None:
    """The speeds stay."""
    pools = {name: KeptPool(roster.count, tuple(sorted(roster.standby))) for name, roster in sorted(rosters.items())}
    _write(path, _KeptSizes(pools, _read(path).alone_tokens_per_s))


class KeptSpeeds:
    """How fast a stream alone is, by pool; one owner, beside which only `write` writes the file, never at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known = dict(_read(path).alone_tokens_per_s)

    def keep(self, speeds: Mapping[str, float]) -> None:
        """Blocks, and writes only where one is another by a twentieth. The rosters stay."""
        if all(abs(speed - self.known.get(name, 0.0)) <= _SAME * speed for name, speed in speeds.items()):
            return
        newest = dict(list(speeds.items())[-MAX_SPEEDS:])
        _write(self._path, _KeptSizes(_read(self._path).pools, newest))
        self.known = dict(speeds)


def _read(path: Path) -> _KeptSizes:
    try:
        return msgspec.json.decode(path.read_bytes()[: MAX_BYTES + 1], type=_KeptSizes)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return _KeptSizes()


def _write(path: Path, what: _KeptSizes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(what))
