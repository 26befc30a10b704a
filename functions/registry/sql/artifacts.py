"""Whose content is whose. The bytes lie in the object store; a row here is what keeps them from being collected.

An artifact that no version names is kept for a while, so that who uploads can register afterwards; then `retire`
forgets it. Naming a digest needs its row, in the same transaction: so nothing can be named that is being collected.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, exists, insert, or_, select, update

from functions.registry.sql.tables import artifacts, versions
from functions.registry.sql.transaction import Write

OPERATOR = ""  # the tenant of what the operator brought in; every tenant's versions may name it


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    digest: str
    tenant: str
    artifact_uri: str
    total_bytes: int
    facts: Any


def keep(write: Write, artifact: StoredArtifact) -> bool:
    """Whether it is new to its tenant."""
    here = (artifacts.c.digest == artifact.digest, artifacts.c.tenant == artifact.tenant)
    known = write.connection.execute(select(artifacts.c.digest).where(*here)).one_or_none()
    if known is not None:
        write.connection.execute(update(artifacts).where(*here).values(used_unix_s=write.now_unix_s))
        write.audited("artifact.again", artifact.digest, artifact.tenant)
        return False
    write.connection.execute(
        insert(artifacts).values(
            digest=artifact.digest,
            tenant=artifact.tenant,
            artifact_uri=artifact.artifact_uri,
            total_bytes=artifact.total_bytes,
            facts=msgspec.json.encode(artifact.facts).decode(),
            used_unix_s=write.now_unix_s,
        )
    )
    detail = {"artifact_uri": artifact.artifact_uri, "total_bytes": artifact.total_bytes}
    write.audited("artifact.kept", artifact.digest, artifact.tenant, **detail)
    return True


def used(write: Write, digest: str, tenant: str) -> bool:
    """Whether the tenant may name the digest."""
    mine = artifacts.c.tenant.in_((tenant, OPERATOR))
    return (
        write.connection.execute(select(artifacts.c.digest).where(artifacts.c.digest == digest, mine)).first()
        is not None
    )


def released(write: Write, digests: Collection[str], tenant: str) -> None:
    """A version that named them is gone: from now on they may retire."""
    mine = (artifacts.c.digest.in_(digests), artifacts.c.tenant.in_((tenant, OPERATOR)))
    write.connection.execute(update(artifacts).where(*mine).values(used_unix_s=write.now_unix_s))


def find(connection: Connection, digest: str, tenant: str | None) -> StoredArtifact | None:
    """The artifact as one tenant sees it: its own, or the operator's. None as tenant sees everybody's."""
    query = select(artifacts).where(artifacts.c.digest == digest)
    if tenant is not None:
        query = query.where(or_(artifacts.c.tenant == tenant, artifacts.c.tenant == OPERATOR))
    row = connection.execute(query.order_by(artifacts.c.tenant.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    return StoredArtifact(row.digest, row.tenant, row.artifact_uri, row.total_bytes, msgspec.json.decode(row.facts))


def kept_digests(connection: Connection) -> set[str]:
    return set(connection.scalars(select(artifacts.c.digest).distinct()))


def retire(write: Write, used_before_unix_s: float) -> list[str]:
    """Forget what no version names and nobody has brought in since; the digests."""
    named = exists().where(versions.c.digest == artifacts.c.digest, ~versions.c.deleted)
    old = (artifacts.c.used_unix_s < used_before_unix_s, ~named)
    digests = sorted(write.connection.scalars(select(artifacts.c.digest).where(*old)))
    if digests:
        write.connection.execute(delete(artifacts).where(*old))
        write.audited("artifact.retired", "artifacts", "", digests=digests[:100], count=len(digests))
    return digests
