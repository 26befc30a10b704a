"""Ownership of artifacts. Their bytes are in the object store; a row here protects them from the garbage collector.

An artifact that no version names stays for a grace period, so that an upload can be registered afterwards; then
`retire` deletes its row. A version needs the row in its own transaction, so it cannot name content that is being
collected.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, exists, func, insert, or_, select, update

from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.tables import artifacts, models, versions
from functions.registry.sql.transaction import Write

MAX_CHECKED = 16  # bases that an artifact is known to fit, the last ones; for others it is checked again

OPERATOR = ""  # tenant of the operator's artifacts, which versions of every tenant may name


@dataclass(frozen=True, slots=True)
class ByteLimit:
    """Limit of a tenant's artifacts: those that its versions name, and those used within the collector's grace
    period. Other artifacts do not count, even if no collector runs, so deleting versions frees space."""

    max_bytes: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    digest: str
    tenant: str
    artifact_uri: str
    total_bytes: int
    facts: Any
    checked: tuple[str, ...] = ()  # fingerprints of the bases that it is known to fit


def put_artifact(write: Write, artifact: StoredArtifact, limit: ByteLimit | None = None) -> bool:
    """Add the artifact, or record that its tenant uses it again. Return True if it is new to the tenant. Raises
    CatalogueRefused over the limit (None: no limit)."""
    if limit is not None:
        digest, tenant, size_bytes = artifact.digest, artifact.tenant, artifact.total_bytes
        refuse_without_room(write.connection, digest, tenant, size_bytes, limit, now_unix_s=write.now_unix_s)
    here = (artifacts.c.digest == artifact.digest, artifacts.c.tenant == artifact.tenant)
    known = write.connection.execute(select(artifacts.c.digest).where(*here)).one_or_none()
    if known is not None:
        write.connection.execute(update(artifacts).where(*here).values(used_unix_s=write.now_unix_s))
        for fingerprint in artifact.checked:
            record_fit(write.connection, artifact.digest, artifact.tenant, fingerprint)
        write.add_audit_entry("artifact.again", artifact.digest, artifact.tenant)
        return False
    write.connection.execute(
        insert(artifacts).values(
            digest=artifact.digest,
            tenant=artifact.tenant,
            artifact_uri=artifact.artifact_uri,
            total_bytes=artifact.total_bytes,
            facts=msgspec.json.encode(artifact.facts).decode(),
            used_unix_s=write.now_unix_s,
            checked=_encoded(artifact.checked),
        )
    )
    detail = {"artifact_uri": artifact.artifact_uri, "total_bytes": artifact.total_bytes}
    write.add_audit_entry("artifact.kept", artifact.digest, artifact.tenant, **detail)
    return True


def refuse_without_room(
    connection: Connection, digest: str, tenant: str, wanted_bytes: int, limit: ByteLimit, *, now_unix_s: float
) -> None:
    """Raise CatalogueRefused if this artifact would exceed the tenant's limit; one that counts already passes. Worked
    example (test_unnamed_artifact_frees_its_room_after_the_grace): with a limit of 100 bytes and a grace
    period of a day, one artifact of 60 bytes fits. The next one fits a day after the version that named the first was
    deleted."""
    of_versions = (
        select(versions.c.digest)
        .join_from(models, versions, versions.c.model == models.c.id)
        .where(models.c.tenant == tenant, ~models.c.deleted, ~versions.c.deleted)
    )
    lately = artifacts.c.used_unix_s >= now_unix_s - limit.grace_s
    counts = (artifacts.c.tenant == tenant, or_(lately, artifacts.c.digest.in_(of_versions)))
    if connection.execute(select(artifacts.c.digest).where(artifacts.c.digest == digest, *counts)).first() is not None:
        return
    has_bytes = int(connection.scalar(select(func.coalesce(func.sum(artifacts.c.total_bytes), 0)).where(*counts)) or 0)
    if has_bytes + wanted_bytes > limit.max_bytes:
        message = (
            f"{tenant} has {has_bytes} bytes of artifacts, and these {wanted_bytes} would be over the limit of "
            f"{limit.max_bytes}: delete unused versions, whose content counts for {limit.grace_s:g} s more, "
            "or ask the operator for more (SHOAL_REGISTRY_MAX_ARTIFACT_BYTES_PER_TENANT)"
        )
        raise CatalogueRefused("limit", "too_many_artifact_bytes", message)


def record_fit(connection: Connection, digest: str, tenant: str, fingerprint: str) -> None:
    """Record for the tenant's and the operator's row of the artifact that it fits the base with this fingerprint. Only
    the last MAX_CHECKED fingerprints are stored."""
    mine = (artifacts.c.digest == digest, artifacts.c.tenant.in_((tenant, OPERATOR)))
    query = select(artifacts.c.tenant, artifacts.c.checked).where(*mine).order_by(artifacts.c.tenant)
    for row in connection.execute(query).all():
        others = [known for known in _decoded(row.checked) if known != fingerprint]
        kept = _encoded((*others, fingerprint)[-MAX_CHECKED:])
        here = (artifacts.c.digest == digest, artifacts.c.tenant == row.tenant)
        connection.execute(update(artifacts).where(*here).values(checked=kept))


def may_name_digest(write: Write, digest: str, tenant: str) -> bool:
    """Return True if the tenant may use the digest in a version: the tenant or the operator has stored that
    artifact."""
    mine = artifacts.c.tenant.in_((tenant, OPERATOR))
    return (
        write.connection.execute(select(artifacts.c.digest).where(artifacts.c.digest == digest, mine)).first()
        is not None
    )


def mark_released(write: Write, digests: Collection[str], tenant: str) -> None:
    """Restart the grace period of these artifacts: the version that named them was deleted."""
    mine = (artifacts.c.digest.in_(digests), artifacts.c.tenant.in_((tenant, OPERATOR)))
    write.connection.execute(update(artifacts).where(*mine).values(used_unix_s=write.now_unix_s))


def find(connection: Connection, digest: str, tenant: str | None) -> StoredArtifact | None:
    """Return the artifact if the tenant or the operator stored it, else None. `tenant` None finds every tenant's
    artifacts."""
    query = select(artifacts).where(artifacts.c.digest == digest)
    if tenant is not None:
        query = query.where(or_(artifacts.c.tenant == tenant, artifacts.c.tenant == OPERATOR))
    row = connection.execute(query.order_by(artifacts.c.tenant.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    facts = msgspec.json.decode(row.facts)
    return StoredArtifact(row.digest, row.tenant, row.artifact_uri, row.total_bytes, facts, _decoded(row.checked))


def kept_digests(connection: Connection) -> set[str]:
    return set(connection.scalars(select(artifacts.c.digest).distinct()))


def retire(write: Write, used_before_unix_s: float) -> list[str]:
    """Delete the rows of artifacts that no version names and that were last used before this time. Return their
    digests."""
    named = exists().where(versions.c.digest == artifacts.c.digest, ~versions.c.deleted)
    old = (artifacts.c.used_unix_s < used_before_unix_s, ~named)
    digests = sorted(write.connection.scalars(select(artifacts.c.digest).where(*old)))
    if digests:
        write.connection.execute(delete(artifacts).where(*old))
        write.add_audit_entry("artifact.retired", "artifacts", "", digests=digests[:100], count=len(digests))
    return digests


def _encoded(fingerprints: Collection[str]) -> str | None:
    return msgspec.json.encode(tuple(fingerprints)).decode() if fingerprints else None


def _decoded(fingerprints: str | None) -> tuple[str, ...]:
    return msgspec.json.decode(fingerprints, type=tuple[str, ...]) if fingerprints else ()
