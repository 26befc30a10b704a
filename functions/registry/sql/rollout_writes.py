"""Changes of rollouts: created once, then changed only by events that name the row's version.

Three guards keep two controllers from forking a rollout. Its id is derived from the step, so all controllers use the
same one. An event names the `lock_version` on which it is based. A leadership with a successor is rejected (the
fence). The schema adds a fourth: a channel has at most one active rollout (`rollouts_one_active`).

A channel of an API model moves in the transaction that completes its rollout; the controller moves a git model's.
"""

from typing import Any

import msgspec
from sqlalchemy import insert, update

from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout import lifecycle
from functions.decisions.rollout.codec import RolloutInvalid
from functions.decisions.rollout.events import AnyEvent, Resumed
from functions.decisions.rollout.lifecycle import IllegalTransition, Rollout, RolloutSpec
from functions.registry.sql import catalogue, catalogue_writes, rollouts
from functions.registry.sql.catalogue_writes import CatalogueLimits
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.tables import rollout_events
from functions.registry.sql.tables import rollouts as table
from functions.registry.sql.transaction import Write


def check_fence(write: Write, token: int) -> None:
    """Raise CatalogueRefused if a later leadership than `token` has written; otherwise record `token` with this write.
    0 passes until a leadership has written."""
    if token < write.fence:
        message = f"leadership {token or '(none named)'}: leadership {write.fence} has written; only a later one may"
        raise CatalogueRefused("conflict", "fenced", message, str(write.fence))
    write.fence = token


def create(write: Write, spec: RolloutSpec) -> tuple[Rollout, bool]:
    """Create the rollout unless it exists; return it, and True if it is new. Raises CatalogueRefused if another rollout
    is active on the channel, which it names."""
    known = rollouts.find(write.connection, lifecycle.id_of(spec))
    if known is not None:
        return known.rollout, False
    refuse_second(write, spec.model, spec.channel)
    rollout = lifecycle.new_rollout(spec, write.now_unix_s)
    write.connection.execute(
        insert(table).values(
            id=rollout.id, seq=write.change, model=spec.model, tenant=tenant_of(spec.model), channel=spec.channel,
            **_indexed(write, rollout),
        )
    )  # fmt: skip
    detail = {"from": spec.from_version, "to": spec.to_version, "policy": spec.policy.name, "origin": spec.origin}
    write.add_audit_entry(
        "rollout.created", rollout.id, tenant_of(spec.model), target=f"{spec.model}:{spec.channel}", **detail
    )
    return rollout, True


def apply_event(
    write: Write, rollout_id: str, event: AnyEvent, lock_version: int | None, limits: CatalogueLimits
) -> Rollout:
    """Apply the event and return the rollout; if that completes it, point its channel (unless declared in git) to the
    new version. Raises CatalogueRefused if the rollout is unknown, its state does not allow the event, or it has
    another lock version (None: any)."""
    stored = rollouts.find(write.connection, rollout_id)
    if stored is None:
        raise CatalogueRefused("missing", "rollout_not_found", f"there is no rollout {rollout_id}")
    before = stored.rollout
    if lock_version is not None and lock_version != before.lock_version:
        message = f"{rollout_id} has changed since: lock_version is {before.lock_version}, not {lock_version}"
        raise CatalogueRefused("outdated", "rollout_changed", message, rollout_id)
    try:
        after = lifecycle.transition(before, event, write.now_unix_s)
    except IllegalTransition as error:
        raise CatalogueRefused("conflict", "illegal_transition", str(error), before.state) from error
    if after.is_active and not before.is_active:
        refuse_second(write, after.model, after.channel)
    if isinstance(event, Resumed):
        _refuse_moved_channel(write, after)
    write.connection.execute(update(table).where(table.c.id == rollout_id).values(**_indexed(write, after)))
    _record_event(write, after, event)
    _move_channel(write, after, limits)
    return after


def refuse_second(write: Write, model: str, channel: str) -> None:
    active = rollouts.active_of(write.connection, model, channel)
    if active is not None:
        it = active.rollout
        message = f"rollout {it.id} ({it.from_version} to {it.to_version}) of {model}:{channel} is {it.state}; let it"
        raise CatalogueRefused("conflict", "rollout_active", message + " end, promote it, or roll it back", it.id)


def tenant_of(model: str) -> str:
    """Return the model's tenant; empty for a base model."""
    return model.partition("/")[0] if "/" in model else ""


def _indexed(write: Write, rollout: Rollout) -> dict[str, Any]:
    return {
        "state": rollout.state,
        "active": rollout.is_active,
        "lock_version": rollout.lock_version,
        "row": _row_of(rollout),
        "change": write.change,
    }


def _row_of(rollout: Rollout) -> str:
    """Return the rollout encoded as text after checking that it decodes: fields may be valid alone but too large
    together, and an unreadable row would block the change feed. Raises CatalogueRefused if it does not."""
    text = rollout_codec.encode(rollout).decode()
    try:
        rollout_codec.decode_rollout(text)
    except RolloutInvalid as error:
        message = f"the rollout could not be read again, so nothing was written: {error}"
        raise CatalogueRefused("invalid", "rollout_unreadable", message, rollout.id) from error
    return text


def _record_event(write: Write, after: Rollout, event: AnyEvent) -> None:
    text = rollout_codec.encode(event).decode()
    write.connection.execute(
        insert(rollout_events).values(
            rollout=after.id,
            lock_version=after.lock_version,
            at_unix_s=write.now_unix_s,
            actor=write.actor.name,
            event=text,
            state=after.state,
            stage=after.stage,
        )
    )
    detail = msgspec.json.decode(text)
    action = f"rollout.{detail.pop('is')}"
    shown = {"state": after.state, "stage": after.stage, "lock_version": after.lock_version}
    write.add_audit_entry(action, after.id, tenant_of(after.model), event=detail, **shown)


def _move_channel(write: Write, after: Rollout, limits: CatalogueLimits) -> None:
    if after.origin != "api" or after.state != "completed":
        return
    model = catalogue.model(write.connection, after.model)
    if model is not None and model.version(after.to_version) is not None:
        catalogue_writes.point_channel(write, model, after.channel, after.to_version, limits)


def _refuse_moved_channel(write: Write, after: Rollout) -> None:
    """Raise CatalogueRefused if the channel of an API rollout no longer points to the rollout's old version, or if its
    new version was deleted. Rollouts from git pass."""
    if after.origin != "api":
        return
    model = catalogue.model(write.connection, after.model)
    pointed = model.channels.get(after.channel) if model is not None else None
    if model is None or pointed is None or pointed.version != after.from_version:
        message = f"{after.model}:{after.channel} is no longer on {after.from_version}; start another rollout"
        raise CatalogueRefused("conflict", "channel_moved", message, pointed.version if pointed is not None else None)
    if model.version(after.to_version) is None:
        raise CatalogueRefused("conflict", "version_deleted", f"{after.model}@{after.to_version} was deleted meanwhile")
