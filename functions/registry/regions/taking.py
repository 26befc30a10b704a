"""Adopt a fact of another region, each in one audited transaction, with the functions of the API's own routes.

So a tenant's limits, the audit and rollouts treat all versions alike. An adopted fact keeps its own time
(`functions.decisions.regions.merge`). A conflict raises CatalogueRefused, and nothing changes.
"""

from sqlalchemy import insert, select, update

from functions.api.ids import ModelId
from functions.decisions.regions.facts import ChannelFact, KeyFact, ModelFacts, VersionFact
from functions.decisions.regions.merge import is_later_policy
from functions.decisions.rollout.events import RolledBack
from functions.registry.channel_moves import ChannelMove, PolicyOf
from functions.registry.sql import api_keys, catalogue_writes, region_facts, rollout_writes, rollouts
from functions.registry.sql.api_keys import StoredKey
from functions.registry.sql.catalogue_writes import CatalogueLimits, NewVersion
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.tables import channels, models, versions
from functions.registry.sql.transaction import Write

CLOCKS_DIFFER_S = 5.0


def apply_version(write: Write, model: ModelFacts, fact: VersionFact, limits: CatalogueLimits) -> None:
    """Add a version of another region, and its model if that is new here. Its content is already in this region's
    store, with a row among the tenant's artifacts."""
    known = region_facts.models_of(write.connection, (model.id,)).get(model.id)
    is_new = known is None or known.deleted
    policy = model.rollout if is_new else None
    new = NewVersion(model.id, model.tenant, model.base, fact.name, fact.digest, fact.artifact_uri, policy)
    if not catalogue_writes.put_version(write, new, limits):
        write.add_audit_entry("version.again", f"{model.id}@{fact.name}", model.tenant, since_unix_s=fact.since_unix_s)
        catalogue_writes.touch_model(write, model.id)
    if is_new:  # with the time of its policy, not of this write
        its = model if known is None or is_later_policy(known, model) else known
        catalogue_writes.set_policy(write, model.id, its.rollout, its.rollout_since_unix_s)
    _stamp(write, model.id, fact)


def apply_policy(write: Write, model: ModelFacts) -> None:
    """Use the RolloutPolicy that the other region set, if it is later than ours; this region's next rollout of the
    model follows it."""
    known = region_facts.models_of(write.connection, (model.id,)).get(model.id)
    if known is None or not is_later_policy(known, model):
        return
    catalogue_writes.set_policy(write, model.id, model.rollout, model.rollout_since_unix_s)
    write.add_audit_entry("model.changed", model.id, model.tenant, rollout=model.rollout, before=known.rollout)


def apply_version_deletion(write: Write, model: ModelFacts, fact: VersionFact) -> None:
    """Delete a version that the other region deleted. One that is unknown here gets a deleted row, so that its name
    stays taken."""
    here = (versions.c.model == model.id, versions.c.name == fact.name)
    row = write.connection.execute(select(versions).where(*here)).one_or_none()
    if row is None:
        _ensure_row(write, model)
        values = {"created_unix_s": write.now_unix_s, "created_by": write.actor.name, "since_unix_s": fact.since_unix_s}
        gone = {"model": model.id, "name": fact.name, "digest": fact.digest, "artifact_uri": fact.artifact_uri}
        write.connection.execute(insert(versions).values(**gone, **values, deleted=True))
        write.add_audit_entry("version.deleted", f"{model.id}@{fact.name}", model.tenant, digest=fact.digest)
        catalogue_writes.touch_model(write, model.id)
    elif not row.deleted:
        catalogue_writes.delete_version(write, catalogue_writes.require_model(write, model.id), fact.name)
    else:
        write.add_audit_entry("version.deleted", f"{model.id}@{fact.name}", model.tenant, digest=fact.digest)
        catalogue_writes.touch_model(write, model.id)
    _stamp(write, model.id, fact)


def restore_version(write: Write, model: ModelFacts, fact: VersionFact) -> None:
    """Mark a version that was deleted in the other region, but is in use here, as newly created. Other regions will
    adopt that."""
    catalogue_writes.stamp_version(write, model.id, fact.name, deleted=False)
    catalogue_writes.touch_model(write, model.id)
    write.add_audit_entry("version.kept", f"{model.id}@{fact.name}", model.tenant, digest=fact.digest)


def apply_channel(
    write: Write, model: ModelFacts, fact: ChannelFact, policy_of: PolicyOf, limits: CatalogueLimits
) -> None:
    """Move or delete a channel as in the other region: a move is a rollout of this region if the model's policy has
    stages, and it rolls back an active one to another version. Raises CatalogueRefused if such a rollout was rolled
    back here: a person decides if it is tried again."""
    if fact.version is None:
        _apply_channel_deletion(write, model, fact)
        return
    stored = catalogue_writes.require_model(write, model.id)
    pointed = stored.channels.get(fact.name)
    active = rollouts.active_of(write.connection, model.id, fact.name)
    if active is not None and active.rollout.to_version != fact.version:
        event = RolledBack(by=write.actor.name, reason=f"another region moved {model.id}:{fact.name} to {fact.version}")
        rollout_writes.apply_event(write, active.rollout.id, event, None, limits)
    elif active is None and pointed is not None and pointed.version != fact.version:
        _refuse_again(write, model.id, fact)
    moved = ChannelMove(ModelId(model.id), fact.name, fact.version, policy_of, limits).apply(write)
    if moved.rollout is None:
        here = (channels.c.model == model.id, channels.c.name == fact.name)
        write.connection.execute(update(channels).where(*here).values(moved_unix_s=fact.since_unix_s))
        if not moved.is_new:  # it points there already, since another time
            catalogue_writes.touch_model(write, model.id)
            write.add_audit_entry("channel.moved", f"{model.id}:{fact.name}", model.tenant, version=fact.version)


def apply_model_deletion(write: Write, model: ModelFacts) -> None:
    catalogue_writes.delete_model(write, catalogue_writes.require_model(write, model.id))


def apply_key(write: Write, fact: KeyFact, max_keys: int) -> None:
    """Add the other region's key unless it exists, and revoke it if it is revoked there."""
    if fact.id not in region_facts.keys_of(write.connection, (fact.id,)):
        stored = StoredKey(
            fact.id, fact.tenant, fact.hmac_sha256, fact.scopes, fact.max_class, fact.expires_unix_s,
            limits=fact.limits,
        )  # fmt: skip
        api_keys.create(write, stored, max_keys)
    if fact.revoked:
        api_keys.revoke(write, fact.tenant, fact.id)


def _apply_channel_deletion(write: Write, model: ModelFacts, fact: ChannelFact) -> None:
    stored = catalogue_writes.require_model(write, model.id)
    if fact.name in stored.channels:
        catalogue_writes.delete_channel(write, stored, fact.name)
    else:
        write.add_audit_entry("channel.deleted", f"{model.id}:{fact.name}", model.tenant)
        catalogue_writes.touch_model(write, model.id)
    catalogue_writes.end_channel(write, model.id, fact.name, fact.since_unix_s)


def _refuse_again(write: Write, model: str, fact: ChannelFact) -> None:
    last = rollouts.last_id_of(write.connection, model, fact.name)
    found = rollouts.find(write.connection, last) if last else None
    if (
        found is None
        or found.rollout.to_version != fact.version
        or found.rollout.created_unix_s < fact.since_unix_s - CLOCKS_DIFFER_S
    ):
        return
    message = f"another region moved {model}:{fact.name} to {fact.version}; here {last} is {found.rollout.state}"
    raise CatalogueRefused(
        "conflict", "taken_back_here", f"{message}: resume it, or move the channel back in that region", last
    )


def _stamp(write: Write, model: str, fact: VersionFact) -> None:
    here = (versions.c.model == model, versions.c.name == fact.name)
    write.connection.execute(update(versions).where(*here).values(since_unix_s=fact.since_unix_s))


def _ensure_row(write: Write, model: ModelFacts) -> None:
    known = write.connection.execute(select(models.c.id).where(models.c.id == model.id)).one_or_none()
    if known is None:
        row = {"id": model.id, "tenant": model.tenant, "base": model.base, "rollout": model.rollout}
        made = {"created_unix_s": write.now_unix_s, "change": write.change, "deleted": True}
        made["rollout_since_unix_s"] = model.rollout_since_unix_s
        write.connection.execute(insert(models).values(**row, **made))
