"""The registry's configuration, from the environment (prefix SHOAL_REGISTRY_)."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.artifacts.adapters import DEFAULT_MAX_RANK
from functions.artifacts.collect import DEFAULT_GRACE_S
from functions.artifacts.s3 import DEFAULT_BUCKET
from functions.fleet.heartbeat_seals import PRIVATE_NETWORKS
from functions.fleet.regions import REGION_PATTERN
from functions.registry.rate_limiter import DEFAULT_AT_ONCE, DEFAULT_BURST, DEFAULT_PER_S


class RegistrySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOAL_REGISTRY_", frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field(
        "127.0.0.1",
        description="Address on which the registry listens; loopback by default. `::`: all IPv6 and IPv4 addresses.",
    )
    port: int = Field(8444, ge=1, le=65535, description="Port: TLS if a certificate is set, otherwise plain HTTP.")
    tls_cert_file: Path | None = Field(None, description="Certificate chain (PEM).")
    tls_key_file: Path | None = Field(None, description="Private key of the certificate (PEM).")
    internal_token_file: Path = Field(
        description="File with the internal token, from which the credentials of all roles are derived; two "
        "lines during a rotation."
    )
    pepper_file: Path | None = Field(
        None, description="Secret key for the hashes of API keys. Without it only the internal token is accepted."
    )
    bus_url: str = Field(
        "valkey://127.0.0.1:8446/0",
        description="Address of the bus (Valkey), which delivers heartbeats. Replicated: "
        "valkey+sentinel://HOST:PORT,HOST:PORT/PRIMARY/0, with the sentinels' addresses and the "
        "primary's name.",
    )
    bus_password_file: Path | None = Field(
        None, description="Name and password of the registry's user on the bus, as `shoal secrets` makes them."
    )
    sealed_heartbeats: bool = Field(
        False, description="Reject heartbeats without a seal; agents of version 0.1 send none."
    )
    pod_cidrs: str = Field(
        PRIVATE_NETWORKS,
        description="Comma-separated networks of engine addresses; heartbeats with another address are "
        "rejected. The private ranges also contain nodes and Services: set the pods' own "
        "networks, which is required for pods with public IPv6 addresses.",
    )
    state_dir: Path = Field(description="Folder of the published snapshot and of SQLite's file, kept across restarts.")
    max_waiters: int = Field(
        10_000,
        ge=1,
        description="Maximum number of long polls; further ones get 503. Each costs a connection, about 40 KB.",
    )
    max_connections: int = Field(
        11_000,
        ge=16,
        description="Maximum number of connections, including long polls and handshakes; lowered to what the "
        "file descriptor limit allows. At the limit, the connection without a credential that has "
        "been idle longest is closed.",
    )
    max_connections_per_address: int = Field(
        0,
        ge=0,
        description="Maximum number of connections of one client address. 0: no limit, because behind an "
        "ingress all clients come from a few addresses.",
    )
    drain_timeout_s: float = Field(
        5.0, gt=0, description="Time that requests may still run after SIGTERM. Long polls end immediately."
    )

    database_url: SecretStr | None = Field(
        None, description="postgresql://user@host/database, shared by several registries. Default: SQLite in state_dir."
    )
    database_password_file: Path | None = Field(
        None, description="File with the Postgres password, so that no URL contains it."
    )
    max_models_per_tenant: int = Field(
        10_000, ge=1, description="Maximum number of a tenant's models from the API; models in git do not count."
    )
    max_versions_per_model: int = Field(
        500,
        ge=1,
        description="Maximum number of versions of a model; the snapshot contains all of them, so that each "
        "can be called by name.",
    )
    max_channels_per_model: int = Field(
        20,
        ge=1,
        description="Maximum number of channels of a model; each is a line of the snapshot and may have a rollout.",
    )
    max_snapshot_bytes_per_tenant: int = Field(
        16 * 1024**2,
        ge=1024,
        description="Maximum size of a tenant's models, versions and channels in the snapshot; a snapshot "
        "over 64 MiB is rejected as a whole.",
    )
    max_model_names_per_tenant: int = Field(
        50_000,
        ge=1,
        description="Maximum number of model names that a tenant ever uses. A deleted model keeps its row, "
        "because its versions' names stay taken.",
    )
    max_version_names_per_model: int = Field(
        5_000, ge=1, description="Maximum number of version names that a model ever uses, including deleted versions."
    )
    max_keys_per_tenant: int = Field(
        100, ge=1, description="Maximum number of a tenant's API keys; revoked keys do not count."
    )
    max_artifact_bytes_per_tenant: int = Field(
        100 * 1024**3,
        ge=1,
        description="Maximum size of the content that a tenant's versions name, or that it used within the "
        "collector's grace period: a thousand adapters of 100 MB.",
    )
    max_requests_at_once_per_tenant: int = Field(
        DEFAULT_AT_ONCE,
        ge=1,
        description="Maximum number of a tenant's open reads, and likewise of its open writes. The database "
        "queue of all tenants holds 512 calls.",
    )
    max_requests_per_s_per_tenant: float = Field(
        DEFAULT_PER_S,
        gt=0,
        description="Average rate of a tenant's reads, and likewise of its writes. A write takes 5 to 20 ms, "
        "and writes of all tenants run one after another.",
    )
    request_burst_per_tenant: int = Field(
        DEFAULT_BURST,
        ge=1,
        description="Number of requests that a tenant may send without delay after a pause, for example by a "
        "script that publishes.",
    )
    environment: str = Field(
        "live",
        pattern=r"^[a-z0-9]{1,16}$",
        description="Part of each key's text, which shows where a leaked key belongs.",
    )

    s3_endpoint_url: str | None = Field(
        None, description="URL of the object store. Without it no adapters can be stored."
    )
    s3_credentials_file: Path | None = Field(
        None, description='JSON: {"access_key_id", "secret_access_key"}, with permission to write and delete.'
    )
    s3_bucket: str = Field(
        DEFAULT_BUCKET, description="Bucket of the artifacts, and the only one that artifact_uri may name."
    )
    staging_dir: Path | None = Field(
        None,
        description="Folder in which adapters are received and checked. Default: staging/ in state_dir. Use a "
        "disk, not memory.",
    )
    models_dir: Path | None = Field(
        None,
        description="Folder of base models by pool name, or of their facts, against which adapters are "
        "checked. Default: none.",
    )
    base_facts_required: bool = Field(
        False,
        description="Reject adapters over a base whose facts are missing in models_dir. False: such adapters "
        "are stored unchecked.",
    )
    max_lora_rank: int = Field(
        DEFAULT_MAX_RANK,
        ge=1,
        le=512,
        description="Largest rank of an adapter; engines are started with max_lora_rank and cannot load larger ones.",
    )
    staging_max_bytes: int = Field(
        8 * 1024**3,
        ge=64 * 1024**2,
        description="Disk space for all adapters that are being checked; one tenant gets at most half. Set it "
        "below the volume's size limit, because a pod over that limit is evicted.",
    )
    max_adapter_bytes: int = Field(
        4 * 1024**3,
        ge=1024**2,
        description="Maximum size of one adapter. Rank 512 on every projection of a 70B model is under 4 GiB; "
        "usual adapters have 10 to 200 MB. At most half of STAGING_MAX_BYTES.",
    )
    uploads_at_once: int = Field(
        8, ge=1, le=64, description="Concurrent uploads and fetches; each needs a thread and staging space."
    )
    uploads_at_once_per_tenant: int = Field(
        2, ge=1, description="Concurrent uploads and fetches of one tenant, so that others can still store adapters."
    )
    ingest_https_hosts: str = Field(
        "", description="Comma-separated hosts, or host:port, that artifact_uri may name. Default: none."
    )
    ingest_https_ca_file: Path | None = Field(
        None, description="CA certificate for these hosts. Default: the system's CAs."
    )
    ingest_private_networks: str = Field(
        "", description="Comma-separated private networks that these hosts may resolve to."
    )
    signature_key_files: str = Field(
        "", description="Comma-separated public key files (PEM) whose signatures are valid."
    )
    signatures_required: bool = Field(False, description="Reject adapters that are not signed by one of these keys.")

    region: str | None = Field(
        None,
        pattern=rf"^{REGION_PATTERN}$",
        description="Name of this installation among several regions. Default: there is only one.",
    )
    regions_file: Path | None = Field(
        None, description='File of all regions: {"a": {"registry_url": "https://…"}, "b": …}. Read again every 5 s.'
    )
    regions_token_file: Path | None = Field(
        None,
        description="File with the token that registries of all regions share; it is only accepted at /regions/v1.",
    )
    regions_ca_file: Path | None = Field(
        None, description="CA certificate for the other registries' certificates. Default: the system's CAs."
    )

    usage_days: int = Field(
        400,
        ge=1,
        description="Days for which usage and capacity are stored. A row of 200 B holds a tenant's use of a "
        "model in an hour.",
    )

    prometheus_url: str | None = Field(
        None,
        description="URL of the fleet's Prometheus, for the console's series and alerts. Unset: series come "
        "from this registry's own samples, and alerts are unknown.",
    )
    prometheus_ca_file: Path | None = Field(
        None, description="CA certificate for Prometheus's certificate. Default: the system's CAs."
    )
    prometheus_token_file: Path | None = Field(
        None, description="File with a bearer token for Prometheus; read for each request."
    )
    trace_store_url: str | None = Field(
        None,
        description="URL of ClickHouse's HTTP interface, to which gateways send traces; for the console and "
        "/v1/traces.",
    )
    trace_store_user: str = Field("default", description="ClickHouse user that may read the database `shoal`.")
    trace_store_password_file: Path | None = Field(None, description="File with that user's password.")
    trace_store_ca_file: Path | None = Field(
        None, description="CA certificate for ClickHouse's certificate. Default: the system's CAs."
    )
    drills_dir: Path | None = Field(
        None, description="Folder in which `shoal drill` writes its reports. Default: no reports are shown."
    )

    gc_interval_s: float = Field(
        0.0, ge=0, description="Interval of garbage collections; 0: only by POST /internal/v1/gc. Off by default, "
        "because it deletes all content of the bucket that this installation does not know.",
    )  # fmt: skip
    gc_grace_s: float = Field(
        DEFAULT_GRACE_S,
        ge=0,
        description="Time for which content that nothing names is kept; longer than any upload takes to be registered.",
    )
