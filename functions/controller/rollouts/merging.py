"""Models and keys that were declared through the registry's API, put into the snapshot that git makes. Pure.

Where a name is in both, git's holds, and the other is told as a problem. A tenant is git's alone: what belongs to none
is left out. So is what the snapshot has no room for (`fitting`), and a channel whose name is the controller's own (an
older registry took such names).
"""

from collections.abc import Callable, Iterator

import msgspec

from functions.api.ids import PoolName, TenantId, engine_name, is_incoming
from functions.api.snapshot import KeyEntry, ModelEntry, Snapshot, VersionEntry
from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.controller.rollouts.book import Book
from functions.controller.rollouts.fitting import ApiEntry, fitting, splits_bytes
from functions.controller.rollouts.wire import ApiKey, ApiModel

DECLARED_IN = ""  # a model of the API names no file


def merged(snapshot: Snapshot, book: Book, max_bytes: int = SNAPSHOT_MAX_BYTES) -> tuple[Snapshot, tuple[str, ...]]:
    """The snapshot with both, and what was left out and why."""
    problems: list[str] = []
    declared: list[ApiEntry] = [*_models(snapshot, book, problems), *_keys(snapshot, book, problems)]
    entries, without_room = fitting(snapshot, declared, splits_bytes(book.active), max_bytes)
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
    """What is published, less the keys that were revoked since. A key of git's with such a name stays: its hash is
    another, and so is the key."""
    keys = tuple(key for key in snapshot.keys if book.revoked.get(key.key_id) != key.hmac_sha256)
    return snapshot if len(keys) == len(snapshot.keys) else msgspec.structs.replace(snapshot, keys=keys)


def without_api(snapshot: Snapshot, book: Book) -> Snapshot:
    """What is published, less what the registry's API declares: that is merged in anew from its own rows, or is gone
    there by now."""
    is_api = _api_entries(book)
    return msgspec.structs.replace(
        snapshot,
        models=tuple(model for model in snapshot.models if not is_api(model)),
        keys=tuple(key for key in snapshot.keys if not is_api(key)),
    )


def with_api_of(published: Snapshot, candidate: Snapshot, book: Book) -> Snapshot:
    """What git would make, and what it leaves of the API's published entries: those whose name it does not take, and
    whose tenant and pool it keeps."""
    is_api = _api_entries(book)
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
    """Which published entries the API declares: models that name no file, and keys whose hashes its rows have."""
    hashes = {**book.revoked, **{key.key_id: key.hmac_sha256 for key in book.keys.values()}}

    def is_api(entry: ModelEntry | KeyEntry) -> bool:
        if isinstance(entry, ModelEntry):
            return entry.declared_in == DECLARED_IN
        return hashes.get(entry.key_id) == entry.hmac_sha256

    return is_api


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


def _key(key: ApiKey) -> KeyEntry:
    return KeyEntry(
        key_id=key.key_id,
        tenant=TenantId(key.tenant),
        hmac_sha256=key.hmac_sha256,
        scopes=tuple(sorted(set(key.scopes))),
        max_class=key.max_class,
        expires_unix_s=key.expires_unix_s,
        limits=key.limits,
    )
