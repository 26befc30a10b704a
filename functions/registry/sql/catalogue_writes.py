"""Changes of the catalogue. Versions are added but never changed; channels are pointers.

Each function is part of one write (`transaction.Write`) and audits its change; an unchanged state is left alone.

Neighbours: `rollout_writes` moves a channel in stages; `catalogue` reads.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, delete, func, insert, select, update

from functions.registry.sql import artifacts, catalogue
from functions.registry.sql.catalogue import StoredChannel, StoredModel
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.tables import channel_ends, channels, models, rollouts, versions
from functions.registry.sql.transaction import Write

# Estimate of a tenant's share of the published snapshot, computed from the lengths of names; never too low.
#
#     model    200 + id + base + policy          version    160 + name + model's id + address
#     channel  200 + name + version              (the 200 of a channel: the split of a rollout that moves it)
#
# A snapshot over its size limit is rejected as a whole, including git's part and all new keys. So each tenant has a
# share, far below the whole. Worked example (test_share_is_at_least_the_size_in_the_snapshot): `acme/bot`
# over `base`, with one version `v1` and the channel `stable`, is 219 + 170 + 208 = 597 bytes, and 312 in the
# snapshot.


MODEL_BYTES = 200
VERSION_BYTES = 160
CHANNEL_BYTES = 200


def snapshot_bytes(connection: Connection, tenant: str) -> int:
    """Return the estimated bytes that the tenant's API models take in the published snapshot; takes 15 ms for 10,000
    models with 20,000 versions. Versions and channels are found through the models, and versions through the index of
    those not deleted. Every new version runs this query under the lock of all writes, and each model may have thousands
    of deleted versions."""
    alive = (models.c.tenant == tenant, ~models.c.deleted)
    of_models = select(_sum(MODEL_BYTES, models.c.id, models.c.base, models.c.rollout)).where(*alive)
    of_channels = (
        select(_sum(CHANNEL_BYTES, channels.c.name, channels.c.version))
        .join_from(models, channels, channels.c.model == models.c.id)
        .where(*alive)
    )
    return sum(int(connection.scalar(query) or 0) for query in (of_models, versions_of(tenant), of_channels))


def versions_of(tenant: str) -> Select[int]:
    return (
        select(_sum(VERSION_BYTES, versions.c.name, versions.c.model, versions.c.artifact_uri))
        .join_from(models, versions, versions.c.model == models.c.id)
        .where(models.c.tenant == tenant, ~models.c.deleted, ~versions.c.deleted)
    )


def _sum(fixed_bytes: int, *texts: Any) -> ColumnElement[int]:
    each: Any = fixed_bytes
    for text in texts:
        each = func.length(text) + each
    return func.coalesce(func.sum(each), 0)


@dataclass(frozen=True, slots=True)
class NewVersion:
    model: str
    tenant: str
    base: str
    name: str
    digest: str
    artifact_uri: str
    rollout: str | None  # the model's policy; None: unchanged, or `default` for a new model


@dataclass(frozen=True, slots=True)
class CatalogueLimits:
    models_per_tenant: int
    versions_per_model: int
    channels_per_model: int
    snapshot_bytes_per_tenant: int = 16 * 1024**2  # as `snapshot_bytes` estimates them: enough for 10,000 models
    model_names_per_tenant: int = 50_000  # including deleted models, whose rows stay because their versions' names do
    version_names_per_model: int = 5_000  # including deleted versions


DEFAULT_POLICY = "default"


def put_version(write: Write, new: NewVersion, limits: CatalogueLimits) -> bool:
    """Add a version, with its model if needed, or restore a deleted one. Return False if it exists with the same
    content. Raises CatalogueRefused if it has other content, the tenant may not use the artifact, or a limit is
    reached."""
    before = _ensure_model(write, new, limits)
    row = write.connection.execute(
        select(versions).where(versions.c.model == new.model, versions.c.name == new.name)
    ).one_or_none()
    if row is not None and row.digest != new.digest:
        was = "was, before it was deleted," if row.deleted else "is"
        message = f"{new.model}@{new.name} {was} {row.digest}: versions never change; give the new content a new name"
        raise CatalogueRefused("conflict", "version_taken", message, row.digest)
    if not artifacts.may_name_digest(write, new.digest, new.tenant):
        message = f"{new.tenant or 'the operator'} has no artifact {new.digest}; POST /v1/artifacts first"
        raise CatalogueRefused("missing", "artifact_not_found", message, new.digest)
    if row is not None and not row.deleted:
        return False
    _check_room_for_version(before, new, limits)
    if row is not None:
        same = (versions.c.model == new.model, versions.c.name == new.name)
        again = {"deleted": False, "since_unix_s": next_timestamp(write, since_of(row))}
        write.connection.execute(update(versions).where(*same).values(**again))
    else:
        _check_room_for_name(write, new, limits)
        write.connection.execute(
            insert(versions).values(
                model=new.model,
                name=new.name,
                digest=new.digest,
                artifact_uri=new.artifact_uri,
                created_unix_s=write.now_unix_s,
                created_by=write.actor.name,
                deleted=False,
                since_unix_s=write.now_unix_s,
            )
        )
    _refuse_over_share(write, new.tenant, limits)
    touch_model(write, new.model)
    subject = f"{new.model}@{new.name}"
    detail = {"digest": new.digest, "artifact_uri": new.artifact_uri, "base": new.base}
    write.add_audit_entry("version.put", subject, new.tenant, **detail)
    return True


def point_channel(
    write: Write, model: StoredModel, channel: str, version: str, limits: CatalogueLimits
) -> StoredChannel:
    """Point the channel to the version immediately, creating it if needed, and return it as it is then. The lock
    version of a new channel is the write's number, so it is above those of a deleted channel of that name. Raises
    CatalogueRefused at a limit."""
    before = model.channels.get(channel)
    if before is None and len(model.channels) >= limits.channels_per_model:
        message = f"{model.id} has {limits.channels_per_model} channels, which is the limit; delete one"
        raise CatalogueRefused("limit", "too_many_channels", message)
    lock_version = before.lock_version + 1 if before is not None else write.change
    moved_unix_s = next_timestamp(
        write, before.moved_unix_s if before is not None else _ended(write, model.id, channel)
    )
    after = StoredChannel(version, lock_version, moved_unix_s)
    values = {"version": version, "lock_version": after.lock_version, "moved_unix_s": after.moved_unix_s}
    if before is None:
        write.connection.execute(insert(channels).values(model=model.id, name=channel, **values))
        _refuse_over_share(write, model.tenant, limits)
    else:
        here = (channels.c.model == model.id, channels.c.name == channel)
        write.connection.execute(update(channels).where(*here).values(**values))
    touch_model(write, model.id)
    detail = {"version": version, "before": before.version if before is not None else None}
    write.add_audit_entry("channel.moved", f"{model.id}:{channel}", model.tenant, **detail)
    return after


def delete_channel(write: Write, model: StoredModel, channel: str) -> None:
    if channel not in model.channels:
        raise CatalogueRefused("missing", "channel_not_found", f"{model.id} has no channel {channel}")
    _refuse_while_rolling(write, model.id, channel)
    write.connection.execute(delete(channels).where(channels.c.model == model.id, channels.c.name == channel))
    end_channel(write, model.id, channel, next_timestamp(write, model.channels[channel].moved_unix_s))
    touch_model(write, model.id)
    write.add_audit_entry(
        "channel.deleted", f"{model.id}:{channel}", model.tenant, version=model.channels[channel].version
    )


def delete_version(write: Write, model: StoredModel, name: str) -> None:
    """Delete a version; its name stays taken. Raises CatalogueRefused if it does not exist, a channel points to it, or
    a rollout of the model is active."""
    version = model.version(name)
    if version is None:
        raise CatalogueRefused("missing", "version_not_found", f"{model.id} has no version {name}")
    naming = sorted(channel for channel, it in model.channels.items() if it.version == name)
    if naming:
        message = f"channel {naming[0]} of {model.id} points to {name}; move or delete the channel first"
        raise CatalogueRefused("conflict", "version_in_use", message, naming[0])
    _refuse_while_rolling(write, model.id, None)
    stamp_version(write, model.id, name, deleted=True)
    artifacts.mark_released(write, (version.digest,), model.tenant)
    touch_model(write, model.id)
    write.add_audit_entry("version.deleted", f"{model.id}@{name}", model.tenant, digest=version.digest)


def delete_model(write: Write, model: StoredModel) -> None:
    """Delete a model with its channels and versions, whose names stay taken. Raises CatalogueRefused while a rollout is
    active."""
    _refuse_while_rolling(write, model.id, None)
    write.connection.execute(delete(channels).where(channels.c.model == model.id))
    for channel, it in model.channels.items():
        end_channel(write, model.id, channel, next_timestamp(write, it.moved_unix_s))
    for version in model.versions:
        stamp_version(write, model.id, version.name, deleted=True)
    write.connection.execute(update(models).where(models.c.id == model.id).values(deleted=True))
    artifacts.mark_released(write, [version.digest for version in model.versions], model.tenant)
    touch_model(write, model.id)
    write.add_audit_entry("model.deleted", model.id, model.tenant)


# Times of facts, for other regions. A new fact is always later than the one that it replaces, whatever the clocks
# say.
CLOCK_STEP_S = 0.001
MAX_ENDS = 100  # deleted channels per model; all regions know older deletions


def next_timestamp(write: Write, before_unix_s: float | None) -> float:
    return write.now_unix_s if before_unix_s is None else max(write.now_unix_s, before_unix_s + CLOCK_STEP_S)


def since_of(row: Row[Any]) -> float:
    return float(row.created_unix_s if row.since_unix_s is None else row.since_unix_s)


def stamp_version(write: Write, model: str, name: str, *, deleted: bool) -> None:
    here = (versions.c.model == model, versions.c.name == name)
    row = write.connection.execute(select(versions).where(*here)).one()
    stamped = {"deleted": deleted, "since_unix_s": next_timestamp(write, since_of(row))}
    write.connection.execute(update(versions).where(*here).values(**stamped))


def set_policy(write: Write, model: str, rollout: str, since_unix_s: float) -> None:
    changed = {"rollout": rollout, "rollout_since_unix_s": since_unix_s, "change": write.change}
    write.connection.execute(update(models).where(models.c.id == model).values(**changed))


def end_channel(write: Write, model: str, channel: str, since_unix_s: float) -> None:
    here = (channel_ends.c.model == model, channel_ends.c.name == channel)
    write.connection.execute(delete(channel_ends).where(*here))
    write.connection.execute(insert(channel_ends).values(model=model, name=channel, since_unix_s=since_unix_s))
    of_model = select(channel_ends.c.since_unix_s).where(channel_ends.c.model == model)
    oldest = write.connection.scalar(of_model.order_by(channel_ends.c.since_unix_s.desc()).offset(MAX_ENDS).limit(1))
    if oldest is not None:
        old = (channel_ends.c.model == model, channel_ends.c.since_unix_s <= oldest)
        write.connection.execute(delete(channel_ends).where(*old))


def _ended(write: Write, model: str, channel: str) -> float | None:
    here = (channel_ends.c.model == model, channel_ends.c.name == channel)
    return write.connection.scalar(select(channel_ends.c.since_unix_s).where(*here))


def require_model(write: Write, model_id: str) -> StoredModel:
    """Return the API model. Raises CatalogueRefused if it does not exist or is deleted."""
    model = catalogue.model(write.connection, model_id)
    if model is None:
        raise CatalogueRefused(
            "missing", "model_not_found", f"there is no model {model_id} that was created through the API"
        )
    return model


def touch_model(write: Write, model_id: str) -> None:
    """Mark the model as changed by this write, so that readers of changes see it."""
    write.connection.execute(update(models).where(models.c.id == model_id).values(change=write.change))


def _ensure_model(write: Write, new: NewVersion, limits: CatalogueLimits) -> StoredModel | None:
    """Create the model if it does not exist or is deleted and return None; otherwise set the new version's policy, if
    it names one, and return the model. Raises CatalogueRefused if the base differs, since it cannot change, or at a
    limit."""
    row = write.connection.execute(select(models).where(models.c.id == new.model)).one_or_none()
    if row is None:
        _check_room_for_model(write, new.tenant, limits)
        _check_room_for_model_name(write, new.tenant, limits)
        write.connection.execute(
            insert(models).values(
                id=new.model,
                tenant=new.tenant,
                base=new.base,
                rollout=new.rollout or DEFAULT_POLICY,
                created_unix_s=write.now_unix_s,
                change=write.change,
                deleted=False,
                rollout_since_unix_s=write.now_unix_s,
            )
        )
        write.add_audit_entry("model.made", new.model, new.tenant, base=new.base, rollout=new.rollout or DEFAULT_POLICY)
        return None
    if row.deleted:
        _check_room_for_model(write, new.tenant, limits)
        revived = {"deleted": False, "base": new.base, "rollout": new.rollout or DEFAULT_POLICY}
        since_unix_s = next_timestamp(write, row.rollout_since_unix_s)
        write.connection.execute(
            update(models)
            .where(models.c.id == new.model)
            .values(**revived, change=write.change, rollout_since_unix_s=since_unix_s)
        )
        write.add_audit_entry("model.made", new.model, new.tenant, base=new.base, rollout=revived["rollout"])
        return None
    if row.base != new.base:
        message = f"{new.model} is an adapter of {row.base}, not of {new.base}; make another model for another base"
        raise CatalogueRefused("conflict", "base_differs", message, row.base)
    if new.rollout is not None and new.rollout != row.rollout:
        set_policy(write, new.model, new.rollout, next_timestamp(write, row.rollout_since_unix_s))
        write.add_audit_entry("model.changed", new.model, new.tenant, rollout=new.rollout, before=row.rollout)
    return catalogue.model(write.connection, new.model)


def _check_room_for_model(write: Write, tenant: str, limits: CatalogueLimits) -> None:
    query = select(func.count()).select_from(models).where(models.c.tenant == tenant, ~models.c.deleted)
    if (write.connection.scalar(query) or 0) >= limits.models_per_tenant:
        message = f"{tenant} has {limits.models_per_tenant} models, which is the limit; delete one"
        raise CatalogueRefused("limit", "too_many_models", message)


def _check_room_for_model_name(write: Write, tenant: str, limits: CatalogueLimits) -> None:
    query = select(func.count()).select_from(models).where(models.c.tenant == tenant)
    if (write.connection.scalar(query) or 0) >= limits.model_names_per_tenant:
        message = (
            f"{tenant} has used {limits.model_names_per_tenant} model names, including deleted models, which is the "
            "limit: use one of them again, or ask the operator for more (SHOAL_REGISTRY_MAX_MODEL_NAMES_PER_TENANT)"
        )
        raise CatalogueRefused("limit", "too_many_model_names", message)


def _check_room_for_name(write: Write, new: NewVersion, limits: CatalogueLimits) -> None:
    query = select(func.count()).select_from(versions).where(versions.c.model == new.model)
    if (write.connection.scalar(query) or 0) >= limits.version_names_per_model:
        message = (
            f"{new.model} has used {limits.version_names_per_model} version names, including deleted versions, which "
            "is the limit: make another model, or ask the operator for more "
            "(SHOAL_REGISTRY_MAX_VERSION_NAMES_PER_MODEL)"
        )
        raise CatalogueRefused("limit", "too_many_version_names", message)


def _refuse_over_share(write: Write, tenant: str, limits: CatalogueLimits) -> None:
    """Raise CatalogueRefused, and so roll back, if the tenant exceeds its share of the snapshot."""
    taken_bytes = snapshot_bytes(write.connection, tenant)
    if taken_bytes > limits.snapshot_bytes_per_tenant:
        message = (
            f"models, versions and channels of {tenant} would take {taken_bytes} bytes of the published snapshot, and "
            f"{limits.snapshot_bytes_per_tenant} is the limit: delete unused versions, or ask the operator "
            "for more (SHOAL_REGISTRY_MAX_SNAPSHOT_BYTES_PER_TENANT)"
        )
        raise CatalogueRefused("limit", "snapshot_share_full", message)


def _check_room_for_version(before: StoredModel | None, new: NewVersion, limits: CatalogueLimits) -> None:
    if before is not None and len(before.versions) >= limits.versions_per_model:
        message = f"{new.model} has {limits.versions_per_model} versions, which is the limit; delete one"
        raise CatalogueRefused("limit", "too_many_versions", message)


def _refuse_while_rolling(write: Write, model_id: str, channel: str | None) -> None:
    query = select(rollouts.c.id, rollouts.c.channel).where(rollouts.c.model == model_id, rollouts.c.active)
    if channel is not None:
        query = query.where(rollouts.c.channel == channel)
    active = write.connection.execute(query.limit(1)).one_or_none()
    if active is not None:
        message = f"rollout {active.id} of {model_id}:{active.channel} is under way; let it end, or roll it back"
        raise CatalogueRefused("conflict", "rollout_active", message, active.id)
