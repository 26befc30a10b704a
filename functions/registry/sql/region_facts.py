"""Facts of this region's models and keys for other regions, in the order of the change feed, including deleted ones."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from functions.decisions.regions.facts import ChannelFact, FactsPage, KeyFact, ModelFacts, VersionFact
from functions.registry.sql import api_keys, changes
from functions.registry.sql.api_keys import StoredKey
from functions.registry.sql.catalogue_writes import since_of
from functions.registry.sql.tables import api_keys as keys_table
from functions.registry.sql.tables import channel_ends, channels, models, versions


def page_after(connection: Connection, region: str, after: int) -> FactsPage:
    page = changes.changes_after(connection, after)
    found = models_of(connection, [model.id for model in page.models])
    facts = tuple(found[model.id] for model in page.models)
    keys = tuple(_key_fact(key) for key in page.keys)
    return FactsPage(region, page.lineage, page.change, page.more, facts, keys)


def models_of(connection: Connection, ids: Collection[str]) -> dict[str, ModelFacts]:
    """Return facts, by id, of those models that exist or existed."""
    return {row.id: _model_facts(connection, row) for row in _rows_of(connection, sorted(ids))}


def keys_of(connection: Connection, ids: Collection[str]) -> dict[str, KeyFact]:
    found: dict[str, KeyFact] = {}
    for part in _slices(sorted(ids)):
        query = select(keys_table).where(keys_table.c.id.in_(part))
        found |= {row.id: _key_fact(api_keys.stored_key(row)) for row in connection.execute(query)}
    return found


def _model_facts(connection: Connection, row: Row[Any]) -> ModelFacts:
    its_versions = connection.execute(select(versions).where(versions.c.model == row.id).order_by(versions.c.name))
    its_channels = connection.execute(select(channels).where(channels.c.model == row.id))
    ends = connection.execute(select(channel_ends).where(channel_ends.c.model == row.id))
    facts = {end.name: ChannelFact(end.name, None, end.since_unix_s) for end in ends}
    facts |= {each.name: ChannelFact(each.name, each.version, each.moved_unix_s) for each in its_channels}
    return ModelFacts(
        id=row.id,
        base=row.base,
        rollout=row.rollout,
        deleted=row.deleted,
        versions=tuple(
            VersionFact(each.name, each.digest, each.artifact_uri, each.deleted, since_of(each))
            for each in its_versions
        ),
        channels=tuple(facts[name] for name in sorted(facts)),
        rollout_since_unix_s=row.rollout_since_unix_s or 0.0,
    )


def _key_fact(key: StoredKey) -> KeyFact:
    return KeyFact(
        key.id, key.tenant, key.hmac_sha256, tuple(key.scopes), key.max_class, key.expires_unix_s, key.revoked,
        key.limits,
    )  # fmt: skip


def _rows_of(connection: Connection, ids: Sequence[str]) -> list[Row[Any]]:
    parts = (connection.execute(select(models).where(models.c.id.in_(part))) for part in _slices(ids))
    return [row for part in parts for row in part]


def _slices(ids: Sequence[str], size: int = 500) -> list[Sequence[str]]:
    """Split the ids into slices of `size`, because both databases handle a thousand parameters badly."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]
