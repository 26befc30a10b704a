"""What is expected of an adapter that comes in, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass

from functions.api.ids import Digest, TenantId
from functions.artifacts.adapters import DEFAULT_MAX_RANK, AdapterFacts
from functions.artifacts.base_facts import BaseFacts
from functions.artifacts.signatures import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    tenant: TenantId | None  # whose adapter it will be: its places and its keys count; None is the operator's own
    base: BaseFacts | None = None  # None where the base's weights are not at hand: shapes are then left to the engine
    base_fingerprint: str = ""  # of `base`: by this it is remembered that the adapter fits it; empty without a base
    max_rank: int = DEFAULT_MAX_RANK
    admits: Callable[[Digest, int], None] | None = None  # digest and bytes; raises where there is no room for them


@dataclass(frozen=True, slots=True)
class Ingested:
    digest: Digest
    total_bytes: int
    facts: AdapterFacts
    signature: Finding
