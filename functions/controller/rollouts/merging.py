"""Merge models and keys that were declared through the registry's API into the snapshot compiled from git. Pure.

If a name is in both, git's entry counts and the other is reported, so that its rows can be deleted. Versions never
change: git takes a model over from the API only if it declares each served version with the same content. Otherwise
the declared model is held back (`hold_back_models`) and the served one stays. Tenants come from git alone: models and
keys of an undeclared tenant are left out. So are channels with a name that the controller reserves (an older registry
accepted such names).

A snapshot above SNAPSHOT_MAX_BYTES is rejected whole, so one tenant with a hundred thousand versions could block
every push and every new key. Therefore git's part always goes in, and the API's part is limited if it does not fit
beside git's part and the splits of active rollouts. No tenant gets more than `tenant_cap_bytes`, the largest value
at which everything fits: the largest tenants lose first, the others nothing. All keys come before all models; within
a tenant, models come from the smallest on, each whole or not at all.

    free = SNAPSHOT_MAX_BYTES * 255 / 256 - git's - splits'     (a 256th for what this very pass holds and begins)
    all fits in free? everything    else room = free * 7 / 8;  cap: sum(min(size, cap)) = room

Worked example (test_largest_tenants_are_left_out_first): a room of 100 KB; acme has 300 KB, globex 30, initech 20. Then
globex and initech get all of theirs and acme 50.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from functions.api.ids import PoolName, TenantId, engine_name, is_incoming
from functions.api.snapshot import KeyEntry, ModelEntry, Snapshot, VersionEntry
from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES, full_lines
from functions.api.snapshot_tree import line_of
from functions.controller.rollouts.book import Book
from functions.controller.rollouts.client import ApiKeyRow, ApiModel
from functions.decisions.rollout.lifecycle import Rollout

_SHOWN = 3
SPLIT_BYTES = 200  # without the names in it

ApiEntry = ModelEntry | KeyEntry
Sized = tuple[int, ApiEntry]  # bytes of the entry's line


def fit_entries(
    snapshot: Snapshot, entries: Iterable[ApiEntry], splits_bytes: int = 0, max_bytes: int = SNAPSHOT_MAX_BYTES
) -> tuple[list[ApiEntry], list[str]]:
    """Return the API entries that fit beside git's `snapshot`, and a message for each tenant with entries left out."""
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
    problems = [_left_out_text(tenant, [entry for _, entry in left_out[tenant]], sizes) for tenant in sorted(left_out)]
    return [entry for _, entry in (*keys, *models)], problems


def splits_bytes(rollouts: Iterable[Rollout]) -> int:
    """Return an upper bound of the bytes that active rollouts add to the snapshot: one split and one loading channel
    each."""
    return sum(SPLIT_BYTES + len(row.channel) + 2 * len(row.to_version) for row in rollouts)


def tenant_cap_bytes(sizes_bytes: Iterable[int], room_bytes: int) -> int:
    """Return the largest share of one tenant in bytes, so that the shares of all tenants, cut to it, together fit into
    `room_bytes`."""
    ordered = sorted(sizes_bytes)
    left_bytes = max(0, room_bytes)
    for number, size_bytes in enumerate(ordered):
        share_bytes = left_bytes // (len(ordered) - number)
        if size_bytes > share_bytes:
            return share_bytes
        left_bytes -= size_bytes
    return ordered[-1] if ordered else left_bytes


def _shared(sized: Sequence[Sized], room_bytes: int) -> tuple[list[Sized], list[Sized]]:
    """Divide the entries into those within the room and those beyond it: each tenant's smallest entries, up to the cap
    that is equal for all tenants, are within."""
    by_tenant = _by_tenant(sized)
    cap_bytes = tenant_cap_bytes([_total(of_tenant) for of_tenant in by_tenant.values()], room_bytes)
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


def _left_out_text(tenant: str, beyond: Sequence[ApiEntry], sizes: Mapping[str, int]) -> str:
    names = ", ".join(_name(entry) for entry in beyond[:_SHOWN])
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    whole = f"{sizes[tenant]} of the {sum(sizes.values())} bytes that were declared through the API are this tenant's"
    return (
        f"{len(beyond)} of {tenant}'s models and keys in the registry are left out ({names}{more}): the snapshot has "
        f"no room for them, {whole}; delete unused versions"
    )


def _tenant_of(entry: ApiEntry) -> str:
    return entry.tenant if isinstance(entry, KeyEntry) else entry.id.partition("/")[0]


def _name(entry: ApiEntry) -> str:
    return entry.key_id if isinstance(entry, KeyEntry) else entry.id


DECLARED_IN = ""  # API models name no file


def merge_api(snapshot: Snapshot, book: Book, max_bytes: int = SNAPSHOT_MAX_BYTES) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot with the API's entries, and messages about what was left out. A key that the registry revoked
    is never included: an accepted entry that stands in for a broken Tenant may be older than the revocation."""
    problems = [f"the key {key.key_id} is left out: it was revoked in the registry" for key in _revoked(snapshot, book)]
    snapshot = without_revoked(snapshot, book)
    declared: list[ApiEntry] = [*_models(snapshot, book, problems), *_keys(snapshot, book, problems)]
    entries, without_room = fit_entries(snapshot, declared, splits_bytes(book.active), max_bytes)
    problems += without_room
    if not entries:
        return snapshot, tuple(problems)
    models = [entry for entry in entries if isinstance(entry, ModelEntry)]
    keys = [entry for entry in entries if isinstance(entry, KeyEntry)]
    whole = msgspec.structs.replace(
        snapshot,
        models=tuple(sorted((*snapshot.models, *models), key=lambda model: model.id)),
        keys=tuple(sorted((*snapshot.keys, *keys), key=lambda key: key.key_id)),
    )
    return whole, tuple(problems)


def without_revoked(snapshot: Snapshot, book: Book) -> Snapshot:
    """Return the snapshot without keys that were revoked since. A git key with the same id stays, because its hash
    differs."""
    revoked = {key.key_id for key in _revoked(snapshot, book)}
    keys = tuple(key for key in snapshot.keys if key.key_id not in revoked)
    return msgspec.structs.replace(snapshot, keys=keys) if revoked else snapshot


def _revoked(snapshot: Snapshot, book: Book) -> list[KeyEntry]:
    if not book.revoked:
        return []
    return [key for key in snapshot.keys if book.revoked.get(key.key_id) == key.hmac_sha256]


def without_api(snapshot: Snapshot, book: Book) -> Snapshot:
    """Return the snapshot without the API's entries, which are merged in again from the registry's rows."""
    is_api = _api_entries(book)
    return msgspec.structs.replace(
        snapshot,
        models=tuple(model for model in snapshot.models if not is_api(model)),
        keys=tuple(key for key in snapshot.keys if not is_api(key)),
    )


def with_api_of(published: Snapshot, candidate: Snapshot, book: Book) -> Snapshot:
    """Return git's candidate with those published API entries whose name it does not declare, and whose tenant and
    pool it has."""
    is_api = _api_entries(book)
    candidate, _ = hold_back_models(candidate, published, book)
    tenants = {tenant.name for tenant in candidate.tenants}
    pools = {pool.name for pool in candidate.pools}
    policies = {rollout.name for rollout in candidate.rollouts}
    own_models, own_keys = ({model.id for model in candidate.models}, {key.key_id for key in candidate.keys})
    models = [
        model if model.rollout in policies else msgspec.structs.replace(model, rollout="")
        for model in published.models
        if is_api(model) and model.id not in own_models and model.pool in pools and _owner(model.id) in tenants
    ]
    keys = [key for key in published.keys if is_api(key) and key.key_id not in own_keys and key.tenant in tenants]
    return msgspec.structs.replace(
        candidate,
        models=tuple(sorted((*candidate.models, *models), key=lambda model: model.id)),
        keys=tuple(sorted((*candidate.keys, *keys), key=lambda key: key.key_id)),
    )


def _api_entries(book: Book) -> Callable[[ModelEntry | KeyEntry], bool]:
    """Return a function that recognises API entries: models that name no file, and keys whose hashes the rows have."""
    hashes = {**book.revoked, **{key.key_id: key.hmac_sha256 for key in book.keys.values()}}

    def is_api(entry: ModelEntry | KeyEntry) -> bool:
        if isinstance(entry, ModelEntry):
            return entry.declared_in == DECLARED_IN
        return hashes.get(entry.key_id) == entry.hmac_sha256

    return is_api


def hold_back_models(candidate: Snapshot, published: Snapshot | None, book: Book) -> tuple[Snapshot, tuple[str, ...]]:
    """Return git's part without models that would change versions of a model that the API serves now, and one message
    for each of them."""
    served = {model.id for model in (published.models if published is not None else ()) if not model.declared_in}
    why: dict[str, str] = {}
    for model in candidate.models:
        row = book.models.get(model.id) if model.id in served else None
        if row is not None and (change := _change_of_versions(row, model)):
            why[model.id] = f"{model.declared_in}: {change}"
    if not why:
        return candidate, ()
    models = tuple(model for model in candidate.models if model.id not in why)
    return msgspec.structs.replace(candidate, models=models), tuple(why.values())


def _change_of_versions(served: ApiModel, declared: ModelEntry) -> str:
    """Return what the declaration would change of the served versions; empty if nothing."""
    mend = f"declare the served versions, or delete them through the API (DELETE /v1/models/{served.id})"
    rule = "versions never change, so the API's model stays"
    if served.versions and served.base != declared.pool:
        return f"{served.id} is an adapter of {served.base} in the API and of {declared.pool} here: {rule}; {mend}"
    digests = {version.name: version.digest for version in declared.versions}
    for version in served.versions:
        here = digests.get(version.name, "not declared or has no artifact")
        if here != version.digest:
            return f"{served.id}@{version.name} is {version.digest} in the API and {here} here: {rule}; {mend}"
    return ""


def _owner(model: str) -> TenantId:
    return TenantId(model.partition("/")[0])


def _models(snapshot: Snapshot, book: Book, problems: list[str]) -> Iterator[ModelEntry]:
    declared = {model.id: model.declared_in for model in snapshot.models}
    tenants = {tenant.name for tenant in snapshot.tenants}
    pools = {pool.name for pool in snapshot.pools}
    rollouts = {rollout.name for rollout in snapshot.rollouts}
    for model in book.models.values():
        tenant = _owner(model.id)
        if model.id in declared:
            problems.append(f"the registry's {model.id} is left out: {declared[model.id]} declares it as well")
        elif tenant not in tenants:
            problems.append(f"the registry's {model.id} is left out: there is no tenant {tenant}")
        elif model.base not in pools:
            problems.append(f"the registry's {model.id} is left out: there is no pool {model.base}")
        elif model.versions:
            yield _model(model, rollouts)


def _model(model: ApiModel, rollouts: set[str]) -> ModelEntry:
    versions = {version.name: version for version in model.versions}
    return ModelEntry(
        id=model.id,
        pool=PoolName(model.base),
        type="lora",
        versions=tuple(
            VersionEntry(name, versions[name].digest, engine_name(model.id, versions[name].digest), uri)
            for name in sorted(versions)
            for uri in [versions[name].artifact_uri]
        ),
        channels={
            name: version
            for name, version in sorted(model.channels.items())
            if version in versions and not is_incoming(name)
        },
        declared_in=DECLARED_IN,
        rollout=model.rollout if model.rollout in rollouts else "",
    )


def _keys(snapshot: Snapshot, book: Book, problems: list[str]) -> Iterator[KeyEntry]:
    declared = {key.key_id for key in snapshot.keys}
    tenants = {tenant.name for tenant in snapshot.tenants}
    for key in book.keys.values():
        if key.key_id in declared:
            problems.append(f"the registry's key {key.key_id} is left out: a Tenant declares it as well")
        elif key.tenant not in tenants:
            problems.append(f"the registry's key {key.key_id} is left out: there is no tenant {key.tenant}")
        else:
            yield _key(key)


def _key(key: ApiKeyRow) -> KeyEntry:
    return KeyEntry(
        key_id=key.key_id,
        tenant=TenantId(key.tenant),
        hmac_sha256=key.hmac_sha256,
        scopes=tuple(sorted(set(key.scopes))),
        max_class=key.max_class,
        expires_unix_s=key.expires_unix_s,
        limits=key.limits,
    )
