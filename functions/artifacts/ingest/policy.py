"""From where adapters may come, and how much of everything one ingest may take.

The default reaches nothing but the store's own bucket: hosts on the network are named by the operator, one by one.
"""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from functions.artifacts.manifest import ADAPTER_LIMITS, ManifestLimits


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
