"""The gateway's configuration, from the environment (prefix SHOAL_GATEWAY_)."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.fleet.heartbeat_seals import PRIVATE_NETWORKS


class GatewaySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOAL_GATEWAY_", frozen=True, extra="forbid")

    gateway_id: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description="Unique name of this gateway for the registry and other gateways. Empty: the host's name and port.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Address on which the gateway listens; loopback by default. `::`: all IPv6 and IPv4 addresses.",
    )
    port: int = Field(8443, ge=1, le=65535, description="Main port: TLS if a certificate is set, otherwise plain HTTP.")
    plain_port: int = Field(
        0, ge=0, le=65535, description="Port of a second listener without TLS, for a mesh or a benchmark; 0: none."
    )
    tls_cert_file: Path | None = Field(None, description="Certificate chain (PEM).")
    tls_key_file: Path | None = Field(None, description="Private key of the certificate (PEM).")
    reuse_port: bool = Field(
        False,
        description="Allow several gateway processes on one host to share a port, one process a core; the "
        "kernel spreads the connections. Each needs its own metrics port and handover socket. "
        "False: a used port is an error at the start.",
    )
    metrics_port: int = Field(
        8445, ge=0, le=65535, description="Port of the Prometheus metrics, on the same address; 0: none."
    )
    metrics_models: int = Field(
        50,
        ge=1,
        le=1000,
        description="Number of the busiest models that have metric series of their own; all others together are "
        "`other`.",
    )
    registry_url: str = Field(
        "https://127.0.0.1:8444", description="Address of the registry, which provides snapshots."
    )
    registry_ca_file: Path | None = Field(None, description="CA certificate for the registry's certificate.")
    internal_token_file: Path = Field(
        description="The gateways' credentials, as `shoal secrets` makes them; the internal token is accepted "
        "for one version."
    )
    pepper_file: Path = Field(
        description="Secret key for the hashes of API keys; without it no API key can be checked."
    )
    bus_url: str = Field(
        "valkey://127.0.0.1:8446/0",
        description="Address of the bus (Valkey), which delivers heartbeats. Replicated: "
        "valkey+sentinel://HOST:PORT,HOST:PORT/PRIMARY/0, with the sentinels' addresses and the "
        "primary's name.",
    )
    bus_password_file: Path | None = Field(
        None, description="Name and password of the gateway's user on the bus, as `shoal secrets` makes them."
    )
    sealed_heartbeats: bool = Field(
        False, description="Reject heartbeats without a seal; agents of version 0.1 send none."
    )
    pod_cidrs: str = Field(
        PRIVATE_NETWORKS,
        description="Comma-separated networks of engine addresses; heartbeats with another address are "
        "rejected. The private ranges also contain nodes and Services: set the pods' own networks, "
        "which is required for pods with public IPv6 addresses.",
    )
    snapshot_cache_file: Path = Field(
        description="File for the last valid snapshot, used by a start without a registry."
    )
    handover_socket: Path | None = Field(
        None, description="Unix socket over which a successor requests the listening sockets."
    )
    tokenizers_dir: Path | None = Field(
        None,
        description="Folder with tokenizer and chat template of each pool's base model, at <dir>/<pool>/, for "
        "comparing prompts with the caches that replicas report. Unset: they come from the object "
        "store, or are not used.",
    )
    tokenizers_cache_dir: Path | None = Field(
        None,
        description="Folder for tokenizers from the object store, by the digests of base models; for a gateway "
        "without TOKENIZERS_DIR. Neither set: prefixes are derived from the prompts that the "
        "gateway sent.",
    )
    tokenizers_cache_max_bytes: int = Field(
        512 * 1024 * 1024, ge=2**20, description="Disk space for TOKENIZERS_CACHE_DIR; one tokenizer takes 1 to 40 MB."
    )
    models_bucket: str = Field(
        "shoal-models", description="Bucket with base models' tokenizers below tokenizers/; nothing else in it is read."
    )
    drain_timeout_s: float = Field(600.0, gt=0, description="Time that open streams may run after SIGTERM.")
    handover_drain_timeout_s: float = Field(
        600.0, gt=0, description="Time that open streams may run after a handover to a successor."
    )
    max_connections: int = Field(
        9500,
        ge=1,
        description="Maximum number of client connections; lowered to what the file descriptor limit allows.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of connections of one client address (IPv6: its /64). 0: no limit, because "
        "behind an ingress, a load balancer or NAT all clients come from a few addresses. Use 256 "
        "if clients connect directly.",
    )
    uploads_bytes: int = Field(
        256 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="Bytes of bodies and answers over 64 KiB that this process may hold at a time, until they "
        "are written; at most half for one tenant. In addition, each connection may hold 64 KiB. "
        "Must be at least twice the largest body, or that is always rejected; an answer may take 32 "
        "MiB.",
    )
    lookups_per_minute: int = Field(
        6000,
        ge=6,
        description="Calls for models, rollouts, files and batches that one tenant may make a minute at this "
        "gateway; a sixth of them in a burst. No quota counts them, and each uses the event loop or "
        "the object store.",
    )
    cors_origins: str = Field(
        "",
        description="Comma-separated origins whose pages may call the gateway from a browser "
        "(`https://app.example.com`); `*`: all. Unset: none, and preflights are rejected. A page "
        "that calls the gateway reveals its key to its readers.",
    )
    media_hosts: str = Field(
        "",
        description="Comma-separated hosts from which engines may fetch images and audio by https: "
        "(`images.example.com`). Unset: none, and callers send `data:` URLs. Engines resolve the "
        "names: list only hosts whose addresses you trust.",
    )
    snapshot_max_age_s: float = Field(
        86_400.0,
        ge=0,
        description="Maximum age of keys and policies that the registry has not confirmed; then requests are "
        "rejected. A key that is revoked while the registry is unreachable works no longer than "
        "this. 0: no limit.",
    )
    first_byte_s: float = Field(60.0, gt=0, description="Time that one replica may take to start a stream.")
    jit_wait_s: float = Field(
        15.0,
        gt=0,
        le=120,
        description="Time that a request may wait for an adapter that no replica has loaded; then 503, and the "
        "load continues.",
    )
    wake_wait_s: float = Field(
        300.0,
        gt=0,
        le=600,
        description="Time that a request may wait for the first replica of a pool at zero; then 503, and the "
        "start continues.",
    )
    trace_dir: Path | None = Field(
        None,
        description="Folder for request traces as NDJSON, limited by TRACE_MAX_BYTES; unset: in memory only.",
    )
    trace_max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="Disk space for trace files, which limits how many rows wait for a store: about 1 KB a request.",
    )
    trace_sync_s: float = Field(
        1.0,
        ge=0,
        description="Seconds of traces that a power cut may lose; killing the process loses only unwritten rows.",
    )
    trace_store_url: str | None = Field(
        None, description="ClickHouse's HTTP interface, to which traces in TRACE_DIR are sent. Unset: they stay there."
    )
    trace_store_user: str = Field(
        "default", description="ClickHouse user that may create tables in the database `shoal` and insert into them."
    )
    trace_store_password_file: Path | None = Field(None, description="Password of TRACE_STORE_USER.")
    trace_store_ca_file: Path | None = Field(
        None, description="CA certificate for ClickHouse's certificate. Default: the system's."
    )
    trace_retention_days: int = Field(30, ge=1, le=3650, description="Days that the store retains traces.")
    otlp_endpoint: str | None = Field(
        None,
        description="OTLP over HTTP address of an OpenTelemetry collector, such as http://collector:4318, to "
        "which spans of the requests in TRACE_DIR are sent. Unset: no spans.",
    )
    otlp_headers_file: Path | None = Field(
        None, description="File with `name: value` lines of headers for the collector, such as a token."
    )
    otlp_ca_file: Path | None = Field(
        None, description="CA certificate for the collector's certificate. Default: the system's."
    )
    otlp_sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Sampled share of the traces that begin here; for other traces the caller's flag decides.",
    )
    quarantine_after_replicas: int = Field(
        2,
        ge=0,
        le=10,
        description="Number of replicas that must fail on a prompt before it is rejected for ten minutes; 0: never.",
    )
    idle_s: float = Field(30.0, gt=0, description="Longest pause within a stream.")
    expected_gateways: int = Field(
        1,
        ge=1,
        description="Number of gateways that share tenants' limits equally, for a first start without bus and "
        "registry. Both report the real number, which a gateway stores across restarts.",
    )
    tool_private_networks: str = Field(
        "", description="Comma-separated private networks in which tenants' tools may be."
    )
    tool_ca_file: Path | None = Field(
        None, description="CA certificate for the tools' certificates. Default: the system's."
    )
    tool_secrets_dir: Path | None = Field(
        None,
        description="Folder with tokens for tool calls, at <dir>/<tenant>/<secret>. A mounted Kubernetes Secret "
        "may have them at <dir>/<tenant>.<secret>, if the secret's name has no dot. Unset: none.",
    )
    s3_endpoint_url: str | None = Field(
        None,
        description="Object store for tenants' files and batches. Unset: /v1/files and /v1/batches are not available.",
    )
    s3_credentials_file: Path | None = Field(
        None, description='{"access_key_id": …, "secret_access_key": …}, with all rights on BATCHES_BUCKET.'
    )
    batches_bucket: str = Field(
        "shoal-batches",
        description="Bucket for files and batches; not the registry's, which deletes objects that it does not know.",
    )
    file_max_bytes: int = Field(200 * 1024 * 1024, ge=1, description="Maximum size of one file.")
    file_retention_days: float = Field(
        30.0,
        ge=8,
        description="Days that files and batches are retained: longer than a batch may run, which is a week.",
    )
    batch_lines_in_flight: int = Field(
        96,
        ge=1,
        description="Maximum number of batch lines in flight at this gateway; at most half of them for one tenant.",
    )
    conversation_tenant_bytes: int = Field(
        32 * 1024 * 1024,
        ge=4 * 1024 * 1024,
        description="Bytes of one tenant's conversations on the bus; the least recently used are deleted first. "
        "Set it equally at all gateways. All tenants together use at most half of the bus's "
        "maxmemory; raise that for many tenants.",
    )
    prefix_blocks: int = Field(
        500_000,
        ge=1_000,
        le=20_000_000,
        description="Number of prompt blocks (512 bytes) whose replicas this gateway remembers; 110 bytes of "
        "memory each.",
    )
    zone: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="Zone of this gateway: replicas of the same zone are preferred. Empty: the registry's zone "
        "of the pod with this host name; without one, no preference.",
    )
