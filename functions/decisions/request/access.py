"""Authentication of a caller: an `Authorization` header against the snapshot's keys.

Every refusal looks and costs the same. An unknown key is compared with a hash that nothing matches, so that neither the
text nor the time of the response reveals which part was wrong.
"""

import hmac
from dataclasses import dataclass

from functions.api import keys
from functions.api.ids import KeyId, TenantId
from functions.api.snapshot import KeyEntry, Scope, ServiceClass
from functions.decisions.catalogue import Catalogue

_NO_HASH = "0" * 64
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: TenantId
    key_id: KeyId
    scopes: tuple[Scope, ...]
    max_class: ServiceClass


def authenticate(catalogue: Catalogue, authorization: str | None, pepper: bytes, now_unix_s: float) -> Caller | None:
    """Return the caller of a valid Authorization header. Return None if the header or its key is missing, malformed,
    unknown, revoked or expired."""
    key = _bearer_key(authorization)
    if key is None:
        return None
    entry = catalogue.keys.get(key.key_id)
    expected = entry.hmac_sha256 if entry is not None else _NO_HASH
    proven = hmac.compare_digest(keys.keyed_hash(pepper, key.secret), expected)
    if entry is None or not proven or _expired(entry, now_unix_s):
        return None
    return Caller(tenant=entry.tenant, key_id=entry.key_id, scopes=entry.scopes, max_class=entry.max_class)


def caller_of(catalogue: Catalogue, tenant: TenantId, key_id: KeyId, now_unix_s: float) -> Caller | None:
    """Return the caller of a key that was verified before, or None if it is now revoked, expired or reassigned."""
    entry = catalogue.keys.get(key_id)
    if entry is None or entry.tenant != tenant or _expired(entry, now_unix_s):
        return None
    return Caller(tenant=entry.tenant, key_id=entry.key_id, scopes=entry.scopes, max_class=entry.max_class)


def _bearer_key(authorization: str | None) -> keys.ParsedKey | None:
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return keys.parse(authorization[len(_BEARER) :].strip())


def _expired(entry: KeyEntry, now_unix_s: float) -> bool:
    return entry.expires_unix_s is not None and now_unix_s >= entry.expires_unix_s
