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
        description="Where it listens; loopback unless told otherwise. `::`: every address of IPv6 and IPv4.",
    )
    port: int = Field(8444, ge=1, le=65535, description="TLS where a certificate is given, plain HTTP otherwise.")
    tls_cert_file: Path | None = Field(None, description="PEM chain.")
    tls_key_file: Path | None = Field(None, description="PEM key of the certificate.")
    internal_token_file: Path = Field(
        description="The internal token, from which the credentials of all roles follow; two lines while it is changed."
    )
    pepper_file: Path | None = Field(
        None, description="What tenants' keys are hashed with. Without it only the internal token is let in."
    )
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
    state_dir: Path = Field(description="Where the published snapshot, and SQLite's file, are kept across restarts.")
    max_waiters: int = Field(
        10_000, ge=1, description="Long polls at one time; the next is told 503. Each costs a connection, about 40 KB."
    )
    max_connections: int = Field(
        11_000,
        ge=16,
        description="Connections, long polls and handshakes included; lowered to what the file descriptor limit bears. "
        "At the bound the longest idle one that has shown no credential gives way.",
    )
    max_connections_per_address: int = Field(
        0, ge=0, description="Of one address. 0: no bound, since behind an ingress all come from a few."
    )
    drain_timeout_s: float = Field(
        5.0, gt=0, description="How long requests may still run after SIGTERM. Long polls end at once."
    )

    database_url: SecretStr | None = Field(
        None, description="postgresql://user@host/database, shared by several registries. Default: SQLite in state_dir."
    )
    database_password_file: Path | None = Field(None, description="Postgres's password, so that no URL holds it.")
    max_models_per_tenant: int = Field(10_000, ge=1, description="Made through the API; what git declares is git's.")
    max_versions_per_model: int = Field(
        500, ge=1, description="The snapshot carries all of them, so that any can be called by name."
    )
    max_channels_per_model: int = Field(20, ge=1, description="Each is a line of the snapshot, and may roll out.")
    max_snapshot_bytes_per_tenant: int = Field(
        16 * 1024**2, ge=1024, description="Of models, versions and channels; a snapshot over 64 MiB is refused whole."
    )
    max_model_names_per_tenant: int = Field(
        50_000, ge=1, description="Ever used: a deleted model keeps its row, for its versions' names stay taken."
    )
    max_version_names_per_model: int = Field(5_000, ge=1, description="Ever used, for the same reason.")
    max_keys_per_tenant: int = Field(100, ge=1, description="Valid ones; revoked ones do not count.")
    max_artifact_bytes_per_tenant: int = Field(
        100 * 1024**3,
        ge=1,
        description="Of content that a tenant's versions name, or that it brought in within the collector's grace:"
        " a thousand adapters of 100 MB.",
    )
    max_requests_at_once_per_tenant: int = Field(
        DEFAULT_AT_ONCE,
        ge=1,
        description="Open ones that read, and as many that write; 512 wait for the database before anybody is refused.",
    )
    max_requests_per_s_per_tenant: float = Field(
        DEFAULT_PER_S,
        gt=0,
        description="On average, reads and writes each. A write takes 5 to 20 ms; all tenants' stand in one line.",
    )
    request_burst_per_tenant: int = Field(
        DEFAULT_BURST, ge=1, description="Requests that may come at once after a pause: a script that publishes."
    )
    environment: str = Field(
        "live", pattern=r"^[a-z0-9]{1,16}$", description="A part of each key's text, so that a leaked one tells where."
    )

    s3_endpoint_url: str | None = Field(None, description="The object store. Without it nothing can be brought in.")
    s3_credentials_file: Path | None = Field(
        None, description='{"access_key_id": …, "secret_access_key": …}, with the right to write and delete.'
    )
    s3_bucket: str = Field(DEFAULT_BUCKET, description="Where artifacts lie, and the only bucket that is followed.")
    staging_dir: Path | None = Field(
        None, description="Where adapters are received and checked. Default: staging/ in state_dir; give it disk."
    )
    models_dir: Path | None = Field(
        None, description="Base models by pool name, or their facts: what adapters are checked against. Default: none."
    )
    base_facts_required: bool = Field(
        False, description="Refuse adapters over a base whose facts are missing in models_dir; else not checked there."
    )
    max_lora_rank: int = Field(
        DEFAULT_MAX_RANK, ge=1, le=512, description="Engines are started with max_lora_rank; more would not load."
    )
    staging_max_bytes: int = Field(
        8 * 1024**3,
        ge=64 * 1024**2,
        description="What adapters may take there together while they are checked; one tenant's at most half. Under "
        "the limit of the volume: a pod that passes it is evicted.",
    )
    max_adapter_bytes: int = Field(
        4 * 1024**3,
        ge=1024**2,
        description="Of one adapter. Rank 512 on every projection of a 70B model is under 4 GiB; those in use are 10 "
        "to 200 MB. At most half of STAGING_MAX_BYTES, or it would never come.",
    )
    uploads_at_once: int = Field(8, ge=1, le=64, description="A thread and staging space each.")
    uploads_at_once_per_tenant: int = Field(2, ge=1, description="So that one tenant cannot take all places.")
    ingest_https_hosts: str = Field(
        "", description="Comma-separated hosts, or host:port, that artifact_uri may name. Default: none."
    )
    ingest_https_ca_file: Path | None = Field(None, description="Their authority. Default: the system's.")
    ingest_private_networks: str = Field(
        "", description="Comma-separated networks that those hosts may resolve into although they are private."
    )
    signature_key_files: str = Field("", description="Comma-separated PEM public keys whose signatures count.")
    signatures_required: bool = Field(False, description="Refuse adapters that are not signed by one of these keys.")

    region: str | None = Field(
        None,
        pattern=rf"^{REGION_PATTERN}$",
        description="This installation's name among several. Default: the only one.",
    )
    regions_file: Path | None = Field(
        None, description='All regions: {"a": {"registry_url": "https://…"}, "b": …}. Read anew when it changes.'
    )
    regions_token_file: Path | None = Field(
        None, description="What registries of all regions show each other; it opens /regions/v1 and nothing else."
    )
    regions_ca_file: Path | None = Field(
        None, description="The authority of their certificates. Default: the system's."
    )

    usage_days: int = Field(
        400,
        ge=1,
        description="How long usage and capacity are kept; what a tenant used of a model in an hour is a row of 200 B.",
    )

    prometheus_url: str | None = Field(
        None,
        description="The fleet's Prometheus: the console's series and the alerts that fire. Without it series are "
        "samples of this registry's own, and alerts are not known.",
    )
    prometheus_ca_file: Path | None = Field(
        None, description="The authority of its certificate. Default: the system's."
    )
    prometheus_token_file: Path | None = Field(
        None, description="A bearer token that it wants; read for each question."
    )
    trace_store_url: str | None = Field(
        None, description="ClickHouse's HTTP interface, where gateways send traces: for the console and /v1/traces."
    )
    trace_store_user: str = Field("default", description="Who may read its database `shoal`.")
    trace_store_password_file: Path | None = Field(None, description="That user's password.")
    trace_store_ca_file: Path | None = Field(
        None, description="The authority of its certificate. Default: the system's."
    )
    drills_dir: Path | None = Field(None, description="Where `shoal drill` leaves its reports. Default: none is shown.")

    gc_interval_s: float = Field(
        0.0, ge=0, description="Between two collections of garbage; 0: only on POST /internal/v1/gc. Off by default,"
        " since it deletes from the bucket whatever this installation does not know.",
    )  # fmt: skip
    gc_grace_s: float = Field(
        DEFAULT_GRACE_S,
        ge=0,
        description="How long what nothing names is kept: longer than any upload takes to be used.",
    )
