"""What of the API's models and keys has a place in the snapshot beside git's: all of it, or a fair part. Pure.

A snapshot above SNAPSHOT_MAX_BYTES is refused whole. Were the API's part of it unbounded, one tenant with a hundred
thousand versions would keep everybody's push and every new key from going out. So git's part goes in as it is, and
where the rest does not fit beside it and the splits of the rollouts under way, it is shared: no tenant gets more than
`cap`, the largest for which all fits, so that the largest tenants lose first and the others nothing. All keys come
before all models, and within a tenant models from the smallest on, each whole or not at all.

    free = SNAPSHOT_MAX_BYTES * 255 / 256 - git's - splits'     (a 256th for what this very pass holds and begins)
    all fits in free? everything    else room = free * 7 / 8;  cap: sum(min(size, cap)) = room

Worked example (test_the_largest_tenants_lose_first): a room of 100 KB; acme has 300 KB, globex 30, initech 20. Then
globex and initech get all of theirs and acme 50.
"""

from collections.abc import Iterable, Mapping, Sequence

from functions.api.snapshot import KeyEntry, ModelEntry, Snapshot
from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES, full_lines
from functions.api.snapshot_tree import line_of
from functions.decisions.rollout.lifecycle import Rollout

_SHOWN = 3
SPLIT_BYTES = 200  # beside the names in it

ApiEntry = ModelEntry | KeyEntry
Sized = tuple[int, ApiEntry]  # bytes of its line


def fitting(
    snapshot: Snapshot, entries: Iterable[ApiEntry], splits_bytes: int = 0, max_bytes: int = SNAPSHOT_MAX_BYTES
) -> tuple[list[ApiEntry], list[str]]:
    """What of the API's `entries` goes into git's `snapshot`, and what was left out, a sentence for each tenant."""
    sized = [(len(line_of(entry)) + 1, entry) for entry in entries]
    if not sized:
        return [], []
    free_bytes = max_bytes - max_bytes // 256 - splits_bytes - sum(map(len, full_lines(snapshot)))
    if _total(sized) <= free_bytes:
        return [entry for _, entry in sized], []
    room_bytes = free_bytes * 7 // 8
    keys, beyond_keys = _shared([one for one in sized if isinstance(one[1], KeyEntry)], room_bytes)
    models, beyond = _shared([one for one in sized if isinstance(one[1], ModelEntry)], room_bytes - _total(keys))
    sizes = {tenant: _total(of_tenant) for tenant, of_tenant in _by_tenant(sized).items()}
    left_out = _by_tenant([*beyond_keys, *beyond])
    problems = [_words(tenant, [entry for _, entry in left_out[tenant]], sizes) for tenant in sorted(left_out)]
    return [entry for _, entry in (*keys, *models)], problems


def splits_bytes(rollouts: Iterable[Rollout]) -> int:
    """What the rollouts under way add to the snapshot, from above: a split each, and the channel that loads it."""
    return sum(SPLIT_BYTES + len(row.channel) + 2 * len(row.to_version) for row in rollouts)


def cap(sizes_bytes: Iterable[int], room_bytes: int) -> int:
    """What nobody gets more of, where all together want more than there is."""
    ordered = sorted(sizes_bytes)
    left_bytes = max(0, room_bytes)
    for number, size_bytes in enumerate(ordered):
        share_bytes = left_bytes // (len(ordered) - number)
        if size_bytes > share_bytes:
            return share_bytes
        left_bytes -= size_bytes
    return ordered[-1] if ordered else left_bytes


def _shared(sized: Sequence[Sized], room_bytes: int) -> tuple[list[Sized], list[Sized]]:
    """Within the room, and beyond it."""
    by_tenant = _by_tenant(sized)
    cap_bytes = cap([_total(of_tenant) for of_tenant in by_tenant.values()], room_bytes)
    within: list[Sized] = []
    beyond: list[Sized] = []
    for _, of_tenant in sorted(by_tenant.items()):
        taken_bytes = 0
        for one in sorted(of_tenant, key=lambda one: (one[0], _name(one[1]))):
            taken_bytes += one[0]
            (within if taken_bytes <= cap_bytes else beyond).append(one)
    return within, beyond


def _by_tenant(sized: Iterable[Sized]) -> dict[str, list[Sized]]:
    by_tenant: dict[str, list[Sized]] = {}
    for one in sized:
        by_tenant.setdefault(_tenant_of(one[1]), []).append(one)
    return by_tenant


def _total(sized: Iterable[Sized]) -> int:
    return sum(size_bytes for size_bytes, _ in sized)


def _words(tenant: str, beyond: Sequence[ApiEntry], sizes: Mapping[str, int]) -> str:
    names = ", ".join(_name(entry) for entry in beyond[:_SHOWN])
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    whole = f"{sizes[tenant]} of the {sum(sizes.values())} bytes that were declared through the API are this tenant's"
    return (
        f"{len(beyond)} of {tenant}'s models and keys in the registry are left out ({names}{more}): the snapshot has "
        f"no room for them, {whole}; delete versions that nobody calls"
    )


def _tenant_of(entry: ApiEntry) -> str:
    return entry.tenant if isinstance(entry, KeyEntry) else entry.id.partition("/")[0]


def _name(entry: ApiEntry) -> str:
    return entry.key_id if isinstance(entry, KeyEntry) else entry.id
