"""What of the API's models and keys has a place in the snapshot beside git's: all of it, or a fair part. Pure.

A snapshot above SNAPSHOT_MAX_BYTES is refused whole. Were the API's part of it unbounded, one tenant with a hundred
thousand versions would keep everybody's push and every new key from going out. So git's part goes in as it is, and the
rest is shared: no tenant gets more than `cap`, the largest for which all fits, so that the largest tenants lose first
and the others nothing. Within a tenant keys come first, then models from the smallest on, each whole or not at all.

    room = SNAPSHOT_MAX_BYTES * 7 / 8 - git's;  cap: sum(min(size, cap)) = room     (an eighth is for rollouts' splits)

Worked example (test_the_largest_tenants_lose_first): a room of 100 KB; acme has 300 KB, globex 30, initech 20. Then
globex and initech get all of theirs and acme 50.
"""

from collections.abc import Iterable, Mapping, Sequence

from functions.api.snapshot import KeyEntry, ModelEntry, Snapshot
from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES, full_lines
from functions.api.snapshot_tree import line_of

_SHOWN = 3

Entry = ModelEntry | KeyEntry


def fitting(
    snapshot: Snapshot, entries: Iterable[Entry], max_bytes: int = SNAPSHOT_MAX_BYTES
) -> tuple[list[Entry], list[str]]:
    """What of the API's `entries` goes into git's `snapshot`, and what was left out, a sentence for each tenant."""
    by_tenant: dict[str, list[tuple[int, Entry]]] = {}
    for entry in entries:
        by_tenant.setdefault(_tenant_of(entry), []).append((len(line_of(entry)) + 1, entry))
    sizes = {tenant: sum(size for size, _ in sized) for tenant, sized in by_tenant.items()}
    if not sizes:
        return [], []
    room_bytes = max_bytes * 7 // 8 - sum(map(len, full_lines(snapshot)))
    if sum(sizes.values()) <= room_bytes:
        return [entry for sized in by_tenant.values() for _, entry in sized], []
    cap_bytes = cap(sizes.values(), room_bytes)
    kept: list[Entry] = []
    problems: list[str] = []
    for tenant, sized in sorted(by_tenant.items()):
        within, beyond = _cut(sized, cap_bytes)
        kept += within
        if beyond:
            problems.append(_words(tenant, beyond, sizes))
    return kept, problems


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


def _cut(sized: Sequence[tuple[int, Entry]], cap_bytes: int) -> tuple[list[Entry], list[Entry]]:
    within: list[Entry] = []
    beyond: list[Entry] = []
    taken_bytes = 0
    for size_bytes, entry in sorted(sized, key=lambda one: (isinstance(one[1], ModelEntry), one[0], _name(one[1]))):
        taken_bytes += size_bytes
        (within if taken_bytes <= cap_bytes else beyond).append(entry)
    return within, beyond


def _words(tenant: str, beyond: Sequence[Entry], sizes: Mapping[str, int]) -> str:
    names = ", ".join(_name(entry) for entry in beyond[:_SHOWN])
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    whole = f"{sizes[tenant]} of the {sum(sizes.values())} bytes that were declared through the API are this tenant's"
    return (
        f"{len(beyond)} of {tenant}'s models and keys in the registry are left out ({names}{more}): the snapshot has "
        f"no room for them, {whole}; delete versions that nobody calls"
    )


def _tenant_of(entry: Entry) -> str:
    return entry.tenant if isinstance(entry, KeyEntry) else entry.id.partition("/")[0]


def _name(entry: Entry) -> str:
    return entry.key_id if isinstance(entry, KeyEntry) else entry.id
