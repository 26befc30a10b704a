"""`Tenant`: a customer or team, its API keys, and the models that it can use.

Keys are never in the YAML: only HMAC-SHA256(pepper, secret), which is useless without the pepper.
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
        raise ValueError("a model id, or a prefix of ids and one * at the end, such as acme/*")
    return text


class ApiKey(Strict):
    """One API key; its secret is not stored."""

    id: Annotated[str, AfterValidator(_checked_key_id), matching(KEY_ID_PATTERN)]
    """Part of the key's text; unique in the installation."""
    hmac_sha256: Annotated[str, AfterValidator(_checked_hex64), matching(_HEX64.pattern)]
    """HMAC-SHA256 of the key's secret under the installation's pepper, in hex."""
    scopes: tuple[Scope, ...] = ("inference",)
    """Operations that the key allows."""
    max_class: ServiceClass = "interactive"
    """The best service class that the key may request."""
    expires: Expiry | None = None
    """The last day on which the key works, in UTC, such as 2027-06-30; or a time, such as 2027-06-30T18:00:00Z."""
    limits: QuotaLimits | None = None
    """Limits of this key alone, within those of its tenant. Default: the tenant's limits only."""


class Isolation(Strict):
    """Resources that this tenant shares with others."""

    cache_salt: CacheSalt = "per-tenant"
    """per-tenant: prompts never share KV blocks with other tenants', so that a tenant cannot time another's cache
    hits."""
    pools: PoolUse = "shared"
    """shared: replicas serve all tenants. preferred: pools dedicated to this tenant, and shared ones if those
    cannot answer. dedicated: only pools dedicated to this tenant."""


class TenantMetadata(Metadata):
    name: Name  # model ids begin with it, so it must be as short as their parts


class TenantSpec(Strict):
    tier: Name
    """The QuotaPolicy that applies."""
    keys: tuple[ApiKey, ...] = ()
    """API keys of the tenant."""
    models: tuple[Annotated[str, AfterValidator(_checked_model_pattern), matching(_MODEL_PATTERN.pattern)], ...] = ()
    """Ids of models, or a prefix of ids with one * at the end; models that match none do not exist for the tenant."""
    isolation: Isolation = Isolation()
    context_overflow: ContextOverflow = "refuse"
    """Handling of a chat longer than the context window: refuse, slide (drop its oldest turns), summarise them."""
    conversations: Conversations = Conversations()
    """Storage of conversations in the gateway."""
    tools: Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS)] = ()
    """Endpoints that the gateway calls if a model requests it; each request names the tools that it offers."""


class Tenant(ShoalObject):
    """A customer or team, its API keys, and the models that it can use."""

    kind: Literal["Tenant"]
    metadata: TenantMetadata
    spec: TenantSpec

    def findings(self) -> Iterator[Finding]:
        names = [tool.name for tool in self.spec.tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                message = f"found {shown(name)}, which another tool has; allowed: one tool a name"
                yield Finding(("spec", "tools", index, "name"), message)
