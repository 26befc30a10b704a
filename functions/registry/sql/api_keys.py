"""Keys created through the API: their keyed hashes and rights. The keys themselves are not stored."""

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.tables import api_keys
from functions.registry.sql.transaction import Write


@dataclass(frozen=True, slots=True)
class StoredKey:
    id: str
    tenant: str
    hmac_sha256: str
    scopes: tuple[str, ...]
    max_class: str
    expires_unix_s: float | None
    created_unix_s: float = 0.0
    revoked: bool = False
    change: int = 0
    # limits of this key, within its tenant's; names as in a snapshot's QuotaLimits
    limits: dict[str, int] | None = None

    def __repr__(self) -> str:  # leaves out the hash, which is not secret but useless to readers
        return f"StoredKey(id={self.id!r}, tenant={self.tenant!r}, revoked={self.revoked})"


def create(write: Write, key: StoredKey, max_keys: int) -> None:
    """Add a key. An id is used only once in the installation, even after its key was revoked. Raises CatalogueRefused
    if it was used, or if the tenant has `max_keys` keys that are not revoked."""
    if write.connection.execute(select(api_keys.c.id).where(api_keys.c.id == key.id)).first() is not None:
        raise CatalogueRefused(
            "conflict", "key_exists", f"the key id {key.id} is or was in use; choose another id", key.id
        )
    mine = select(func.count()).select_from(api_keys).where(api_keys.c.tenant == key.tenant, ~api_keys.c.revoked)
    if (write.connection.scalar(mine) or 0) >= max_keys:
        raise CatalogueRefused(
            "limit", "too_many_keys", f"{key.tenant} has {max_keys} keys, which is the limit; revoke one"
        )
    write.connection.execute(
        insert(api_keys).values(
            id=key.id,
            tenant=key.tenant,
            hmac_sha256=key.hmac_sha256,
            scopes=msgspec.json.encode(key.scopes).decode(),
            max_class=key.max_class,
            expires_unix_s=key.expires_unix_s,
            created_unix_s=write.now_unix_s,
            revoked=False,
            change=write.change,
            limits=None if key.limits is None else msgspec.json.encode(key.limits).decode(),
        )
    )
    detail: dict[str, Any] = {
        "scopes": list(key.scopes),
        "max_class": key.max_class,
        "expires_unix_s": key.expires_unix_s,
    }
    if key.limits is not None:
        detail["limits"] = key.limits
    write.add_audit_entry("key.created", key.id, key.tenant, **detail)


def revoke(write: Write, tenant: str, key_id: str) -> bool:
    """Revoke a tenant's API key. Return False, and change nothing, if it was revoked before. Raises CatalogueRefused
    for a key that the tenant does not have."""
    here = (api_keys.c.id == key_id, api_keys.c.tenant == tenant)
    row = write.connection.execute(select(api_keys).where(*here)).one_or_none()
    if row is None:
        raise CatalogueRefused(
            "missing", "key_not_found", f"{tenant} has no key {key_id} that was created through the API", key_id
        )
    if row.revoked:
        return False
    write.connection.execute(update(api_keys).where(*here).values(revoked=True, change=write.change))
    write.add_audit_entry("key.revoked", key_id, tenant)
    return True


def keys_of_tenant(connection: Connection, tenant: str, after: str, limit: int) -> list[StoredKey]:
    query = select(api_keys).where(api_keys.c.tenant == tenant, api_keys.c.id > after)
    return [stored_key(row) for row in connection.execute(query.order_by(api_keys.c.id).limit(limit))]


def keys_changed(connection: Connection, after: int, upto: int) -> list[StoredKey]:
    touched = (api_keys.c.change > after, api_keys.c.change <= upto)
    query = select(api_keys).where(*touched).order_by(api_keys.c.change, api_keys.c.id)
    return [stored_key(row) for row in connection.execute(query)]


def stored_key(row: Row[Any]) -> StoredKey:
    return StoredKey(
        id=row.id,
        tenant=row.tenant,
        hmac_sha256=row.hmac_sha256,
        scopes=tuple(msgspec.json.decode(row.scopes)),
        max_class=row.max_class,
        expires_unix_s=row.expires_unix_s,
        created_unix_s=row.created_unix_s,
        revoked=row.revoked,
        change=row.change,
        limits=None if row.limits is None else msgspec.json.decode(row.limits),
    )
