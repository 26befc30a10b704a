"""Reading the catalogue: models with their versions and channels, as frozen values.

Deleted models and versions are left out, except deleted models in `models_changed`.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, select

from functions.registry.sql.tables import channels, models, versions

PAGE_VERSIONS = 5000  # for all models of a page together: about 1.5 MB


@dataclass(frozen=True, slots=True)
class StoredVersion:
    name: str
    digest: str
    artifact_uri: str
    created_unix_s: float
    created_by: str


@dataclass(frozen=True, slots=True)
class StoredChannel:
    version: str
    lock_version: int  # grows with every move; the channel's ETag
    moved_unix_s: float


@dataclass(frozen=True, slots=True)
class StoredModel:
    id: str
    tenant: str
    base: str
    rollout: str
    created_unix_s: float
    change: int
    deleted: bool
    versions: tuple[StoredVersion, ...]  # by name
    channels: dict[str, StoredChannel]

    def version(self, name: str) -> StoredVersion | None:
        return next((version for version in self.versions if version.name == name), None)


def model(connection: Connection, model_id: str) -> StoredModel | None:
    """Return the model with its versions and channels, or None if it does not exist or is deleted."""
    found = _with_parts(connection, select(models).where(models.c.id == model_id, ~models.c.deleted))
    return found[0] if found else None


def models_after(connection: Connection, after: str, limit: int, tenant: str | None) -> tuple[list[StoredModel], bool]:
    """Return the next models after the id `after`, by id, of one tenant if given, and True if `PAGE_VERSIONS` left some
    of them out. The first model is always included, however many versions it has. 1,000 models of 500 versions would be
    150 MB."""
    wanted = [models.c.id > after, ~models.c.deleted]
    if tenant is not None:
        wanted.append(models.c.tenant == tenant)
    of_it = (versions.c.model == models.c.id, ~versions.c.deleted)
    count = select(func.count()).select_from(versions).where(*of_it).scalar_subquery()
    counted = list(connection.scalars(select(count).where(*wanted).order_by(models.c.id).limit(limit)))
    sums = list(accumulate(counted))
    fitting = max(1, sum(1 for so_far in sums if so_far <= PAGE_VERSIONS))
    query = select(models).where(*wanted).order_by(models.c.id).limit(min(limit, fitting))
    return _with_parts(connection, query), fitting < len(sums)


def models_changed(connection: Connection, after: int, upto: int) -> list[StoredModel]:
    """Return models last changed by a write above `after` and up to `upto`, including deleted ones, in the order of
    writes."""
    touched = (models.c.change > after, models.c.change <= upto)
    return _with_parts(connection, select(models).where(*touched).order_by(models.c.change, models.c.id))


def versions_after(connection: Connection, model_id: str, after: str, limit: int) -> list[StoredVersion]:
    query = select(versions).where(versions.c.model == model_id, versions.c.name > after, ~versions.c.deleted)
    return [_version(row) for row in connection.execute(query.order_by(versions.c.name).limit(limit))]


def named_digests(connection: Connection) -> set[str]:
    return set(connection.scalars(select(versions.c.digest).where(~versions.c.deleted).distinct()))


def _with_parts(connection: Connection, query: Select[Any]) -> list[StoredModel]:
    rows = connection.execute(query).all()
    ids = [row.id for row in rows]
    its_versions: dict[str, list[StoredVersion]] = defaultdict(list)
    its_channels: dict[str, dict[str, StoredChannel]] = defaultdict(dict)
    for part in _slices(ids):
        wanted = and_(versions.c.model.in_(part), ~versions.c.deleted)
        for row in connection.execute(select(versions).where(wanted).order_by(versions.c.model, versions.c.name)):
            its_versions[row.model].append(_version(row))
        moved = select(channels).where(channels.c.model.in_(part)).order_by(channels.c.model, channels.c.name)
        for row in connection.execute(moved):
            its_channels[row.model][row.name] = StoredChannel(row.version, row.lock_version, row.moved_unix_s)
    return [_model(row, its_versions[row.id], its_channels[row.id]) for row in rows]


def _slices(ids: Sequence[str], size: int = 500) -> Collection[Sequence[str]]:
    """Split the ids into slices of `size`, because both databases handle a thousand parameters badly."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _model(row: Row[Any], its_versions: list[StoredVersion], its_channels: dict[str, StoredChannel]) -> StoredModel:
    return StoredModel(
        id=row.id,
        tenant=row.tenant,
        base=row.base,
        rollout=row.rollout,
        created_unix_s=row.created_unix_s,
        change=row.change,
        deleted=row.deleted,
        versions=tuple(its_versions),
        channels=its_channels,
    )


def _version(row: Row[Any]) -> StoredVersion:
    return StoredVersion(row.name, row.digest, row.artifact_uri, row.created_unix_s, row.created_by)
