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
        description="This gateway's name towards registry and other gateways; unique. Empty: the host's name and port.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Where clients reach it; loopback unless told otherwise. `::`: every address of IPv6 and IPv4.",
    )
    port: int = Field(8443, ge=1, le=65535, description="TLS where a certificate is given, plain HTTP otherwise.")
    plain_port: int = Field(
        0, ge=0, le=65535, description="A second listener without TLS, for a mesh or a bench; 0: none."
    )
    tls_cert_file: Path | None = Field(None, description="PEM chain.")
    tls_key_file: Path | None = Field(None, description="PEM key of the certificate.")
    reuse_port: bool = Field(
        False,
        description="Several gateway processes on one host answer at one port, one a core; the kernel spreads the "
        "connections. Each needs its own metrics port and handover socket. False: a taken port is said at the start.",
    )
    metrics_port: int = Field(8445, ge=0, le=65535, description="Prometheus, on the same host; 0: none.")
    metrics_models: int = Field(
        50,
        ge=1,
        le=1000,
        description="Models that have series of their own, the busiest ones; all others together are `other`.",
    )
    registry_url: str = Field("https://127.0.0.1:8444", description="Where snapshots come from.")
    registry_ca_file: Path | None = Field(None, description="Authority of the registry's certificate.")
    internal_token_file: Path = Field(
        description="The gateways' credentials, as `shoal secrets` makes them; the internal token for one version."
    )
    pepper_file: Path = Field(description="The key of the keys' hashes; without it no key can be checked.")
    bus_url: str = Field(
        "valkey://127.0.0.1:8446/0",
        description="Where heartbeats come from. Replicated: valkey+sentinel://HOST:PORT,HOST:PORT/PRIMARY/0, the "
        "sentinels' addresses and the primary's name there.",
    )
    bus_password_file: Path | None = Field(
        None, description="Name and password of its user at the bus, as `shoal secrets` makes them."
    )
    sealed_heartbeats: bool = Field(
        False, description="Believe no replica without a seal on what it says; agents of version 0.1 make none."
    )
    pod_cidrs: str = Field(
        PRIVATE_NETWORKS,
        description="Networks, with commas, in which engines' addresses lie: an agent that names another is not "
        "believed. The private ranges have nodes' and Services' too: name the pods' own, as pods with "
        "public IPv6 addresses need.",
    )
    snapshot_cache_file: Path = Field(description="The last good snapshot, for a start without a registry.")
    handover_socket: Path | None = Field(None, description="Where a successor asks for the listening sockets.")
    tokenizers_dir: Path | None = Field(
        None,
        description="Tokenizer and chat template of each pool's base model, at <dir>/<pool>/: what replicas tell of "
        "their caches can then be compared with prompts. Unset: they come from the store, or not at all.",
    )
    tokenizers_cache_dir: Path | None = Field(
        None,
        description="Where tokenizers are kept that come from the store, by the digests of base models; for a gateway "
        "without TOKENIZERS_DIR. Neither set: prefixes are known by what was sent where.",
    )
    tokenizers_cache_max_bytes: int = Field(
        512 * 1024 * 1024, ge=2**20, description="What they may take on the disk; one takes 1 to 40 MB."
    )
    models_bucket: str = Field(
        "shoal-models", description="Where base models' tokenizers lie, below tokenizers/: nothing else of it is read."
    )
    drain_timeout_s: float = Field(600.0, gt=0, description="How long open streams may run after SIGTERM.")
    handover_drain_timeout_s: float = Field(
        600.0, gt=0, description="The same once a successor serves: nothing waits for this process to end."
    )
    max_connections: int = Field(
        9500, ge=1, description="Client connections; lowered to what the file descriptor limit bears."
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Of one client's address (of IPv6, its /64). 0: no bound, since behind an ingress, a load balancer "
        "or NAT all clients come from a few addresses; a gateway that clients reach directly does well with 256.",
    )
    uploads_bytes: int = Field(
        256 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="Bytes of bodies and answers over 64 KiB that this process may hold at a time, until they are "
        "written; one tenant's at most half. Beside it, each connection may hold 64 KiB. Twice the largest body at "
        "least, or that never comes; an answer may take 32 MiB.",
    )
    lookups_per_minute: int = Field(
        6000,
        ge=6,
        description="Calls for models, rollouts, files and batches that one tenant may make here; a sixth at once. "
        "No quota counts them, and each takes the loop or the store.",
    )
    cors_origins: str = Field(
        "",
        description="Origins whose pages browsers let call the gateway, with commas between "
        "(`https://app.example.com`); `*`: every page's. Unset: none, and preflights are refused. A page that calls "
        "shows its key to its readers.",
    )
    media_hosts: str = Field(
        "",
        description="Hosts, with commas between, from which engines may be sent to fetch pictures and sounds by "
        "https: (`images.example.com`). Unset: none, and callers send `data:` URLs. Names are resolved by the engine: "
        "name only hosts whose addresses you trust.",
    )
    snapshot_max_age_s: float = Field(
        86_400.0,
        ge=0,
        description="How long keys and policies hold that no registry vouches for; then requests are refused. "
        "A key that is revoked while the registry is away works for no longer. 0: for ever.",
    )
    first_byte_s: float = Field(60.0, gt=0, description="How long one replica may take to begin a stream.")
    jit_wait_s: float = Field(
        15.0,
        gt=0,
        le=120,
        description="How long a request may wait for an adapter that no replica has loaded; then 503, and it loads on.",
    )
    wake_wait_s: float = Field(
        300.0,
        gt=0,
        le=600,
        description="How long a request may wait for the first replica of a pool at zero; then 503, and it starts on.",
    )
    trace_dir: Path | None = Field(
        None,
        description="Where request traces are written as NDJSON, bounded by TRACE_MAX_BYTES; unset: in memory only.",
    )
    trace_max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="What trace files may take on the disk, and so what a store may miss: about 1 KB a request.",
    )
    trace_sync_s: float = Field(
        1.0, ge=0, description="What a power cut may cost of them; killing the process costs what is not written yet."
    )
    trace_store_url: str | None = Field(
        None, description="ClickHouse's HTTP interface, where traces go from TRACE_DIR. Unset: they stay there."
    )
    trace_store_user: str = Field("default", description="Who may insert into its database `shoal`, and make tables.")
    trace_store_password_file: Path | None = Field(None, description="That user's password.")
    trace_store_ca_file: Path | None = Field(None, description="Authority of its certificate. Default: the system's.")
    trace_retention_days: int = Field(30, ge=1, le=3650, description="How long the store keeps them.")
    otlp_endpoint: str | None = Field(
        None,
        description="An OpenTelemetry collector's OTLP over HTTP, such as http://collector:4318; spans of requests go "
        "there, from TRACE_DIR. Unset: none are made.",
    )
    otlp_headers_file: Path | None = Field(
        None, description="`name: value` lines that the collector wants to see, such as a token."
    )
    otlp_ca_file: Path | None = Field(None, description="Authority of its certificate. Default: the system's.")
    otlp_sample_ratio: float = Field(
        1.0, ge=0, le=1, description="Of the traces that begin here; of others' the caller's flag decides."
    )
    quarantine_after_replicas: int = Field(
        2, ge=0, le=10, description="A prompt on which so many replicas failed is refused for ten minutes; 0: never."
    )
    idle_s: float = Field(30.0, gt=0, description="The longest silence inside a stream.")
    expected_gateways: int = Field(
        1,
        ge=1,
        description="Gateways that share tenants' limits in equal parts, for a first start that reaches neither bus "
        "nor registry: both say how many there are, and a gateway remembers it across restarts.",
    )
    tool_private_networks: str = Field(
        "", description="Comma-separated networks that tenants' tools may lie in although they are private."
    )
    tool_ca_file: Path | None = Field(None, description="Authority of the tools' certificates. Default: the system's.")
    tool_secrets_dir: Path | None = Field(
        None,
        description="The tokens that tools are called with, at <dir>/<tenant>/<secret>; or at <dir>/<tenant>.<secret>, "
        "as a mounted Kubernetes Secret has them, where the secret's name has no dot. Unset: none.",
    )
    s3_endpoint_url: str | None = Field(
        None, description="The object store of tenants' files and batches. Unset: there is no /v1/files."
    )
    s3_credentials_file: Path | None = Field(
        None, description='{"access_key_id": …, "secret_access_key": …}, with all rights on that bucket.'
    )
    batches_bucket: str = Field(
        "shoal-batches", description="A bucket of their own: the registry deletes what it does not know from its own."
    )
    file_max_bytes: int = Field(200 * 1024 * 1024, ge=1, description="Of one file.")
    file_retention_days: float = Field(
        30.0, ge=8, description="How long files and batches are kept: longer than any batch may run, which is a week."
    )
    batch_lines_in_flight: int = Field(
        96, ge=1, description="Lines of batches that this gateway has under way at a time; half of them one tenant's."
    )
    conversation_tenant_bytes: int = Field(
        32 * 1024 * 1024,
        ge=4 * 1024 * 1024,
        description="What the bus keeps of one tenant's conversations; those not used for longest go first. The same "
        "at all gateways. All tenants' together fill half of the bus's maxmemory at most: for many, give it more.",
    )
    prefix_blocks: int = Field(
        500_000,
        ge=1_000,
        le=20_000_000,
        description="Blocks of prompts (512 bytes) of which this gateway remembers where it sent them; 110 bytes each.",
    )
    zone: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="Where this gateway runs: replicas of the same zone answer first. Empty: as the registry knows of "
        "its pod, by the host's name; where nobody tells zones, no preference.",
    )
