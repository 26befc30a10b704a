"""How much of the published snapshot a tenant's models take: an estimate from above, made of the lengths of names.

    model    200 + id + base + policy          version    160 + name + model's id + address
    channel  200 + name + version              (the 200 of a channel: the split of a rollout that moves it)

A snapshot over its limit is refused whole, git's part of it and everybody's new keys included: so each tenant has a
share, far below the whole. Worked example (test_a_share_is_no_smaller_than_what_the_snapshot_takes): `acme/bot` over
`base`, with one version `v1` and the channel `stable`, is 219 + 170 + 208 = 597 bytes, and 312 in the snapshot.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from functions.registry.sql.tables import channels, models, versions

MODEL_BYTES = 200
VERSION_BYTES = 160
CHANNEL_BYTES = 200


def snapshot_bytes(connection: Connection, tenant: str) -> int:
    """Of all models of the tenant that are not deleted: 15 ms where they are 10,000 with 20,000 versions.

    Versions and channels are found by these models, and versions by the index of those that are alive: every new
    version asks, under the lock of all writes, and a tenant may leave thousands of deleted ones in each model.
    """
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
