"""`Tenant`: who may call, with which keys, and which models exist for them.

Keys are never in the YAML: only HMAC-SHA256(pepper, secret), which is worth nothing without the pepper.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from functions.api.ids import MODEL_ID_PATTERN
from functions.api.keys import KEY_ID_PATTERN
from functions.api.kinds.applications import MAX_TOOLS, Conversations, Tool
from functions.api.kinds.base import Finding, Metadata, Name, ShoalObject, Strict, matching
from functions.api.kinds.quantities import Expiry
from functions.api.kinds.quota_policy import QuotaLimits
from functions.api.problems import shown
from functions.api.snapshot_entries import CacheSalt, ContextOverflow, PoolUse, Scope, ServiceClass

_HEX64 = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(KEY_ID_PATTERN)
_MODEL_PATTERN = re.compile(rf"{MODEL_ID_PATTERN}|(?:[a-z0-9][a-z0-9._-]*(?:/[a-z0-9._-]*)?)?\*")
_MODEL_PATTERN_MAX_CHARS = 128


def _checked_hex64(text: str) -> str:
    if _HEX64.fullmatch(text) is None:
        raise ValueError("64 hex digits in lower case: HMAC-SHA256 of the key's secret under the pepper")
    return text


def _checked_key_id(text: str) -> str:
    if _KEY_ID.fullmatch(text) is None:
        raise ValueError("1 to 32 of 0-9 A-Z a-z -, beginning with a letter or digit")
    return text


def _checked_model_pattern(text: str) -> str:
    if len(text) > _MODEL_PATTERN_MAX_CHARS or _MODEL_PATTERN.fullmatch(text) is None:
        raise ValueError("a model id, or the beginning of ids and one * at the end, such as acme/*")
    return text


class ApiKey(Strict):
    """One key; its secret is stored nowhere."""

    id: Annotated[str, AfterValidator(_checked_key_id), matching(KEY_ID_PATTERN)]
    """Part of the key's text; unique in the installation."""
    hmac_sha256: Annotated[str, AfterValidator(_checked_hex64), matching(_HEX64.pattern)]
    """HMAC-SHA256 of the key's secret under the installation's pepper, in hex."""
    scopes: tuple[Scope, ...] = ("inference",)
    """What the key may do."""
    max_class: ServiceClass = "interactive"
    """The best service class that it may ask for."""
    expires: Expiry | None = None
    """The last day on which it works, in UTC, such as 2027-06-30; or a moment, such as 2027-06-30T18:00:00Z."""
    limits: QuotaLimits | None = None
    """What this key alone may use, within what its tenant may; not written: as much as its tenant."""


class Isolation(Strict):
    """What this tenant shares with others."""

    cache_salt: CacheSalt = "per-tenant"
    """per-tenant: prompts never share KV blocks with other tenants', so that nobody can time another's cache hits."""
    pools: PoolUse = "shared"
    """shared: replicas serve all tenants. preferred: pools that are dedicated to this tenant, and shared ones where
    those cannot answer. dedicated: none but those."""


class TenantMetadata(Metadata):
    name: Name  # model ids begin with it, so it is as short as they need


class TenantSpec(Strict):
    tier: Name
    """The QuotaPolicy that applies."""
    keys: tuple[ApiKey, ...] = ()
    """The API keys with which it may call."""
    models: tuple[Annotated[str, AfterValidator(_checked_model_pattern), matching(_MODEL_PATTERN.pattern)], ...] = ()
    """Ids of models, or the beginning of ids and one * at the end; what none matches does not exist for the tenant."""
    isolation: Isolation = Isolation()
    context_overflow: ContextOverflow = "refuse"
    """What becomes of a chat longer than the context window: refuse, slide (drop its oldest turns), summarise them."""
    conversations: Conversations = Conversations()
    """Whether the gateway keeps what was said in a session."""
    tools: Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS)] = ()
    """Endpoints that the gateway calls when a model asks for them; requests name those that they offer."""


class Tenant(ShoalObject):
    """Who may call, with which keys, and which models exist for them."""

    kind: Literal["Tenant"]
    metadata: TenantMetadata
    spec: TenantSpec

    def findings(self) -> Iterator[Finding]:
        names = [tool.name for tool in self.spec.tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                message = f"found {shown(name)}, which another tool has; allowed: one tool a name"
                yield Finding(("spec", "tools", index, "name"), message)
