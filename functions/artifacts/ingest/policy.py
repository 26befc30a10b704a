"""Policy of an ingest: from where adapters may come, how much one may take, which files it has, and what is expected.

The default reaches nothing but the store's own bucket: hosts on the network are named by the operator, one by one.
What an adapter consists of is known, so that file names are an allowlist: its configuration, its weights, its
signature, and plain documents. Safe spelling (no traversal, no device names, bounded depth) is the manifest's own law.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from functions.api.ids import Digest, TenantId
from functions.artifacts import manifest as manifests
from functions.artifacts.adapters import CONFIG_NAME, DEFAULT_MAX_RANK, WEIGHTS_NAME, AdapterFacts
from functions.artifacts.base_facts import BaseFacts
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import ADAPTER_LIMITS, ManifestLimits
from functions.artifacts.signatures import SIGNATURE_NAME, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPolicy:
    limits: ManifestLimits = ADAPTER_LIMITS

    # Places. Buckets lie at the store's own endpoint; none named means the store's own bucket.
    s3_buckets: tuple[str, ...] = ()
    https_hosts: tuple[str, ...] = ()  # "models.example.com" or "models.example.com:8443", lower case, exact
    https_networks: tuple[IPv4Network | IPv6Network, ...] = ()  # private ones that those hosts may resolve into
    https_ca_file: Path | None = None  # instead of the system's authorities

    # Time. A host that drips must not hold a thread: one read, the average rate after a start, and the whole.
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 15.0
    min_bytes_per_s: float = 32 * 1024  # a 200 MB adapter then takes under two hours, and the deadline says less
    rate_grace_s: float = 10.0  # slow start and TLS handshakes come before any rate
    deadline_s: float = 1800.0

    # A session with the ledger outlives the deadline: receiving, checking and putting together.
    session_s: float = 2 * 3600.0
    # For an object that is just being deleted, before it can be put again; deleting takes seconds.
    deletion_wait_s: float = 60.0

    # Of the disk under staging, left free for others: a full disk stops the whole registry.
    reserve_free_bytes: int = 256 * 1024**2


_EXACT = (CONFIG_NAME, WEIGHTS_NAME, SIGNATURE_NAME)
_SUFFIXES = (".json", ".md", ".txt")


def check_name(path: str) -> None:
    """Raise ArtifactRefused unless `path` may be a file of an adapter."""
    manifests.check_path(path)
    if "/" in path:
        raise ArtifactRefused(f"{path} lies in a folder; an adapter's files lie side by side")
    if path not in _EXACT and not path.lower().endswith(_SUFFIXES):
        raise ArtifactRefused(
            f"{path} does not belong in an adapter: only {', '.join(_EXACT)} and plain {' '.join(_SUFFIXES)} files"
        )


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
