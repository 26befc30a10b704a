"""Settings from the environment, for the agent (prefix SHOAL_REPLICA_), the node fetcher (SHOAL_NODE_FETCH_) and the
region's adapter cache (SHOAL_ADAPTER_CACHE_).
"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.api.ids import NAME_PATTERN
from functions.api.netloc import HOST, netloc

_ZONE_PATTERN = r"^[A-Za-z0-9._-]{0,64}$"
_REPLICA_ID_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"


class ReplicaSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOAL_REPLICA_", frozen=True, extra="forbid", env_ignore_empty=True)

    replica_id: str = Field(pattern=_REPLICA_ID_PATTERN, description="Unique name of this replica in the fleet.")
    pool: str = Field(
        pattern=rf"^{NAME_PATTERN}$", description="Pool that the engine belongs to: the id of its base model."
    )
    engine_host: str = Field(
        "127.0.0.1", pattern=rf"^({HOST})$", description="Host at which gateways and this agent reach the engine."
    )
    engine_port: int = Field(8460, ge=1, le=65535, description="Port of the engine.")
    agent_host: str = Field(
        "127.0.0.1", description="Address of the agent's own routes. They need no key, so use loopback."
    )
    agent_port: int = Field(8480, ge=0, le=65535, description="Port of the agent's own routes; 0: any free one.")
    peer_host: str = Field(
        "127.0.0.1", description="Address for gateways and other agents; each route requires a credential."
    )
    peer_port: int = Field(8500, ge=0, le=65535, description="Port for gateways and other agents; 0: any free one.")
    peer_up_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description="Upload rate for all peers together; unset: no limit. Leave bandwidth for served requests.",
    )
    zone: str = Field(
        "",
        pattern=_ZONE_PATTERN,
        description="Zone of the node; peers of the same zone are preferred. Empty: the zone that the registry knows.",
    )
    node_name: str = Field(
        "",
        max_length=253,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Name of the Kubernetes node. Replicas of one node that fall silent together count as one failure; "
        "if ZONE is empty, the registry looks the node's zone up. Empty: unknown.",
    )
    registry_url: str = Field("https://127.0.0.1:8444", description="URL of the registry, which serves snapshots.")
    registry_ca_file: Path | None = Field(None, description="CA certificate that signed the registry's certificate.")
    internal_token_file: Path = Field(
        description="File with the agents' credentials that `shoal secrets` creates; the internal token is accepted "
        "for one version."
    )
    bus_url: str = Field(
        "valkey://127.0.0.1:8446/0",
        description="URL of the heartbeat bus. If it is replicated: valkey+sentinel://HOST:PORT,HOST:PORT/PRIMARY/0 "
        "with the sentinels' addresses and the primary's name.",
    )
    bus_password_file: Path | None = Field(
        None, description="File with name and password of the bus user, as `shoal secrets` creates it."
    )
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="URL of the object store that holds adapters.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    adapter_cache_url: str = Field(
        "",
        max_length=512,
        pattern=r"^(https?://\S+)?$",
        description="URL of the region's adapter cache, which is read before the store. Empty: only the store is read.",
    )
    cache_dir: Path = Field(description="Folder of adapters by digest, shared by all agents of the node.")
    cache_max_bytes: int = Field(
        20 * 2**30,
        ge=2**20,
        description="Limit of cached adapters on disk, about 1,000 of 20 MB. Adapters in an engine are never evicted.",
    )
    weights_dir: Path | None = Field(
        None,
        description="Folder that the engine was started from, as the agent sees it. The heartbeat reports the digest "
        "of its weights. Unset: no digest is reported.",
    )
    snapshot_cache_file: Path = Field(
        description="File for the last good snapshot, used at a start without the registry."
    )
    drain_timeout_s: float = Field(
        600.0, gt=0, description="Time that running requests may take to finish after SIGTERM."
    )
    otlp_endpoint: str | None = Field(
        None,
        description="URL of an OpenTelemetry collector (OTLP over HTTP), such as http://collector:4318, for spans of "
        "adapter loads. Unset: no spans.",
    )
    otlp_headers_file: Path | None = Field(
        None, description="File with `name: value` lines of headers for the collector, such as a token."
    )
    otlp_ca_file: Path | None = Field(
        None, description="CA certificate that signed the collector's certificate. Default: the system's CAs."
    )
    max_adapters: int = Field(
        8,
        ge=0,
        le=4096,
        description="Adapters in the engine at a time, if its arguments in the snapshot do not set the number.",
    )
    signature_key_files: tuple[Path, ...] = Field(
        (),
        description="Public key files (PEM) whose signatures are valid for every tenant, as a JSON list. Empty: none.",
    )
    signatures_required: bool = Field(False, description="Refuse adapters without a signature.")
    max_lora_rank: int = Field(
        16,
        ge=1,
        le=512,
        description="Largest rank of an adapter, if the engine's arguments in the snapshot do not set it.",
    )
    adapter_grace_s: float = Field(
        30.0,
        ge=0,
        description="Time that a dropped adapter stays in the engine: gateways may lag by one long poll.",
    )
    fetch_timeout_s: float = Field(
        300.0, gt=0, description="Timeout of one adapter download; allows 200 MB at 1 MB/s, with reserve."
    )
    check_timeout_s: float = Field(
        1.0, gt=0, le=10, description="Timeout of /health and /metrics, which are polled every second."
    )
    probe_timeout_s: float = Field(
        8.0,
        gt=0,
        description="Timeout of a one-token probe; longer than `stalled_after_s`, so that the verdict comes first.",
    )
    warm_up_timeout_s: float = Field(
        120.0,
        ge=0,
        description="Total time to warm up a new engine with one request of each kind that it compiles. 0: no warm-up.",
    )
    load_timeout_s: float = Field(
        60.0, gt=0, description="Timeout of loading an adapter into the engine, which waits for a step."
    )
    silent_after_s: float = Field(
        4.0, gt=0, description="Time without any answer after which the engine counts as hung."
    )
    stalled_after_s: float = Field(
        6.0,
        gt=0,
        description="Time with pending work but no token after which the engine counts as hung; longer than any step.",
    )
    idle_probe_interval_s: float = Field(3.0, gt=0, description="Interval of one-token probes of an idle engine.")
    kv_events_endpoint: str = Field(
        "",
        max_length=256,
        pattern=r"^((ipc|tcp)://\S+)?$",
        description="The `endpoint` of the engine's --kv-events-config. Empty: its KV cache is not published.",
    )
    kv_events_replay_endpoint: str = Field(
        "",
        max_length=256,
        pattern=r"^((ipc|tcp)://\S+)?$",
        description="The `replay_endpoint` for missed events. Empty: a missed event drops the whole index.",
    )
    standby_file: Path | None = Field(
        None, description="File that, if it exists at the start, makes the replica start warm: loaded, without traffic."
    )
    sleep_when_warm: bool = Field(
        False, description="Let the engine sleep while warm; needs --enable-sleep-mode, which CPUs do not support."
    )
    engine_log_file: Path | None = Field(
        None, description="File of the engine's log, from which the stages of its start are read. Unset: one stage."
    )
    start_timeout_s: float = Field(600.0, gt=0, description="Time after which a start has failed; vLLM's own default.")
    pace_interval_s: float = Field(
        10.0, ge=1, le=300, description="Period of the engine's pace, which is compared with other replicas'."
    )
    accelerator_fault_file: Path | None = Field(
        None,
        description="File for an accelerator error that takes the replica out. While it exists, the replica gets no "
        "requests and its engine is not restarted. Delete the file to clear the error.",
    )
    accelerators_file: Path | None = Field(
        None,
        description="File with the engine's accelerators, in the form of NVIDIA_VISIBLE_DEVICES (UUIDs or numbers, "
        "`all`, `none`); the agent waits until it exists. Unset: all that this process sees.",
    )
    simulated_accelerator_file: Path | None = Field(
        None,
        description="File of a simulated device that replaces NVML's: JSON with its errors, such as "
        '{"xids": [79]}. Unset: the node\'s devices, if any.',
    )
    condemn_hung_after_s: float = Field(
        30.0, gt=0, description="Time hung after which /engine/livez requests a restart."
    )

    @property
    def engine_url(self) -> str:
        return f"http://{netloc(self.engine_host, self.engine_port)}"


class NodeFetchSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_NODE_FETCH_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    listen_host: str = Field(
        "127.0.0.1", description="Address for serving chunks; all routes but /readyz require a credential."
    )
    listen_port: int = Field(
        0, ge=0, le=65535, description="Port for serving chunks; 0: any free one, which the tracker is told."
    )
    advertise_host: str = Field(
        "127.0.0.1", description="IP address at which peers reach this node (a pod's status.podIP); not a host name."
    )
    zone: str = Field("", max_length=64, description="Zone of the node; peers of the same zone are preferred.")
    registry_url: str = Field(
        "", description="URL of the registry, which tracks peers. Empty: no peers, everything is read from the store."
    )
    registry_ca_file: Path | None = Field(None, description="CA certificate that signed the registry's certificate.")
    internal_token_file: Path = Field(
        description="File with the agents' credentials that `shoal secrets` creates; the internal token is accepted "
        "for one version."
    )
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="URL of the object store.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    cache_dir: Path = Field(
        description="Folder of artifacts by digest, shared with the agents and engines of the node."
    )
    cache_max_bytes: int | None = Field(
        None,
        ge=2**20,
        description="Limit of the artifacts on disk, the fetched one included. The least recently used ones that no "
        "engine holds are evicted first. Unset: only the disk limits them.",
    )
    shown_at: Path | None = Field(
        None,
        description="Path of a link to the first artifact, for the agent that reports the loaded weights "
        "(SHOAL_REPLICA_WEIGHTS_DIR). Unset: no link.",
    )
    compiled_dir: Path | None = Field(
        None,
        description="VLLM_CACHE_ROOT of the engine: code compiled for its weights (`shoal base compiled`) is placed "
        "there before it starts. The engine executes this code. Unset: no compiled code.",
    )
    compiled_for: str = Field(
        "",
        max_length=130,
        description="Engine version and accelerator of the compiled code, as 0.32.0/h100 or one of the two. Empty: "
        "all, of which the engine uses what fits it.",
    )
    down_bytes_per_s: float | None = Field(
        None, gt=0, description="Rate of all downloads together; unset: no limit. Leave bandwidth for served requests."
    )
    up_bytes_per_s: float | None = Field(
        None, gt=0, description="Rate of all uploads to peers together; unset: no limit."
    )
    max_uploads: int = Field(
        4, ge=1, le=64, description="Concurrent uploads; each holds one chunk (8 to 64 MiB) in memory."
    )
    max_requests: int = Field(
        4, ge=1, le=64, description="Concurrent chunk downloads from peers, each in memory; at most MAX_UPLOADS."
    )
    origin_requests: int = Field(2, ge=1, le=32, description="Concurrent chunk reads from the store.")
    timeout_s: float = Field(
        3600.0,
        gt=0,
        description="Timeout of all digests together: 140 GB at 40 MB/s. Verified chunks stay for the next try.",
    )
    seed_s: float = Field(
        0.0,
        ge=0,
        description="Time to serve chunks afterwards; 60 s suffice for nodes of a fleet that start late.",
    )


class AdapterCacheSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_ADAPTER_CACHE_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    listen_host: str = Field(
        "127.0.0.1", description="Address for agents; all routes but /readyz and /metrics require a credential."
    )
    listen_port: int = Field(8520, ge=0, le=65535, description="Port for agents; 0: any free one.")
    internal_token_file: Path = Field(description="File with the agents' credentials that `shoal secrets` creates.")
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="URL of the object store.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    cache_dir: Path = Field(description="Folder of cached objects by sha256; used by this process only.")
    cache_max_bytes: int = Field(
        100 * 2**30,
        ge=2**20,
        description="Limit of cached objects on disk, about 5,000 adapters of 20 MB; the least recently used go.",
    )
    max_answers: int = Field(
        16, ge=1, le=256, description="Concurrent answers; each holds a chunk (8 to 64 MiB) in memory until it is read."
    )
