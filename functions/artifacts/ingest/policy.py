"""Policy of an ingest: allowed sources, limits, allowed file names, and the caller's expectation.

By default only the store's own bucket is allowed; the operator allows other hosts one by one. File names are an
allowlist, because the parts of an adapter are known: configuration, weights, signature and plain documents. The
manifest checks safe spelling (no traversal, no device names, bounded depth).
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

    # Sources. Buckets are at the store's own endpoint; if none is listed, the store's own bucket is allowed.
    s3_buckets: tuple[str, ...] = ()
    https_hosts: tuple[str, ...] = ()  # "models.example.com" or "models.example.com:8443", lower case, exact
    https_networks: tuple[IPv4Network | IPv6Network, ...] = ()  # private networks that those hosts may resolve into
    https_ca_file: Path | None = None  # instead of the system's authorities

    # Time limits, so that a slow host cannot block a thread: one read, the average rate after a start, and the total.
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 15.0
    min_bytes_per_s: float = 32 * 1024  # a 200 MB adapter would take under two hours; the deadline is shorter
    rate_grace_s: float = 10.0  # before the rate counts: slow start and TLS handshakes
    deadline_s: float = 1800.0

    # Lifetime of a ledger session. It exceeds the deadline, as it covers receiving, checking and putting.
    session_s: float = 2 * 3600.0
    # Wait for an object that is being deleted before it is put again; a deletion takes seconds.
    deletion_wait_s: float = 60.0

    # Bytes that staging leaves free on its disk: a full disk stops the whole registry.
    reserve_free_bytes: int = 256 * 1024**2


_EXACT = (CONFIG_NAME, WEIGHTS_NAME, SIGNATURE_NAME)
_SUFFIXES = (".json", ".md", ".txt")


def check_name(path: str) -> None:
    """Raise ArtifactRefused unless `path` is a file name that an adapter may have: without a folder, with an allowed
    suffix."""
    manifests.check_path(path)
    if "/" in path:
        raise ArtifactRefused(f"{path} is in a folder; an adapter has no subfolders")
    if path not in _EXACT and not path.lower().endswith(_SUFFIXES):
        raise ArtifactRefused(
            f"{path} does not belong in an adapter: only {', '.join(_EXACT)} and plain {' '.join(_SUFFIXES)} files"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    tenant: TenantId | None  # owner of the adapter, for allowed sources and signing keys; None is the operator
    base: BaseFacts | None = None  # None if the base's weights are not available: then only the engine checks shapes
    base_fingerprint: str = ""  # hash of `base`, stored as proof that the adapter fits it; empty without a base
    max_rank: int = DEFAULT_MAX_RANK
    admits: Callable[[Digest, int], None] | None = None  # called with digest and bytes; raises if there is no room


@dataclass(frozen=True, slots=True)
class Ingested:
    digest: Digest
    total_bytes: int
    facts: AdapterFacts
    signature: Finding
