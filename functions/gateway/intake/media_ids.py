"""Ids that callers give to pictures and sounds (`uuid` of a content part), made their tenant's own.

An engine keeps what it made of a picture under the `uuid` that came with it, and looks there before it looks at the
picture; a prefix cache's salt does not reach these caches. An id as its caller wrote it would show one tenant what
another sent under it, or under the hash that a picture without an id is kept by, and let it put another picture there.

    engine's id = HMAC(pepper, tenant, caller's id)     also for tenants that share a prefix cache: that is checked by
                                                        its content, these are not

A part that only has an id is refused (`media`): the next request may go to a replica that has never seen the picture.
Neighbours: `intake` asks, once the caller is known.
"""

import hashlib
import hmac
from typing import Any

from functions.api.ids import TenantId
from functions.gateway.intake.json_body import JsonObject

_WITH_PARTS = frozenset(
    (
        *("messages", "input", "system", "query", "queries", "text_1", "data_1"),
        *("documents", "items", "text_2", "data_2"),
    )
)
_HEX_DIGITS = 32


def key_media_ids(body: JsonObject, pepper: bytes, tenant: TenantId) -> None:
    """Replace each id in a body whose fields were checked."""
    for name, value in body.items():
        if name not in _WITH_PARTS:
            continue
        parts = [value] if type(value) is dict else value
        if type(parts) is list and parts and type(parts[0]) is not int:  # token ids, of which there may be many
            _key(parts, pepper, tenant)


def _key(parts: list[Any], pepper: bytes, tenant: TenantId) -> None:
    """Of parts, and of all that is made of parts: messages, items, documents, outputs of tools."""
    for part in parts:
        if type(part) is not dict:
            continue
        if "uuid" in part:
            part["uuid"] = _keyed(part["uuid"], pepper, tenant)
        if "source" in part and type(part["source"]) is dict and type(part["source"].get("content")) is list:
            _key(part["source"]["content"], pepper, tenant)
        if type(part.get("content")) is list:
            _key(part["content"], pepper, tenant)
        if "output" in part and type(part["output"]) is list:
            _key(part["output"], pepper, tenant)


def _keyed(uuid: Any, pepper: bytes, tenant: TenantId) -> str | None:
    if type(uuid) is not str:  # of what is no content part, and nothing reads it
        return None
    named = b"\0".join((b"media-id", tenant.encode(), uuid.encode()))
    return hmac.digest(pepper, named, hashlib.sha256).hex()[:_HEX_DIGITS]
