"""What was asked for, on disk: a controller that starts again must know it before it looks at what runs.

Else it would take replicas that the autoscaler has started for ones too many, and end them while they serve. A file
that cannot be read counts as empty: then pools begin at their minReplicas, and what runs beyond is drained.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from functions.controller.local.ledger import replace_file
from functions.controller.scaling.roster import Roster

MAX_BYTES = 1024 * 1024
Number = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class KeptPool(msgspec.Struct, frozen=True):
    count: Number
    standby: tuple[Number, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    pools: dict[str, KeptPool] = {}


def read(path: Path) -> dict[str, Roster]:
    """By pool."""
    try:
        kept = msgspec.json.decode(path.read_bytes()[: MAX_BYTES + 1], type=_Kept)
        return {name: Roster(pool.count, frozenset(pool.standby)) for name, pool in kept.pools.items()}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return {}


def write(path: Path, rosters: dict[str, Roster]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pools = {name: KeptPool(roster.count, tuple(sorted(roster.standby))) for name, roster in sorted(rosters.items())}
    replace_file(path, msgspec.json.encode(_Kept(pools)))
