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

    replica_id: str = Field(pattern=_REPLICA_ID_PATTERN, description="This replica's name in the fleet; unique.")
    pool: str = Field(
        pattern=rf"^{NAME_PATTERN}$", description="The pool that the engine belongs to: its base model's id."
    )
    engine_host: str = Field(
        "127.0.0.1", pattern=rf"^({HOST})$", description="Where gateways and this agent reach the engine."
    )
    engine_port: int = Field(8460, ge=1, le=65535, description="The engine's port.")
    agent_host: str = Field("127.0.0.1", description="Where the agent's own routes listen; they need no key: loopback.")
    agent_port: int = Field(8480, ge=0, le=65535, description="The agent's port; 0: any free one.")
    peer_host: str = Field(
        "127.0.0.1", description="Where gateways and other agents reach this one; each route asks for the token."
    )
    peer_port: int = Field(8500, ge=0, le=65535, description="The port for them; 0: any free one.")
    peer_up_bytes_per_s: float | None = Field(
        None, gt=0, description="All chunks given to peers together; unset: no limit. Leave room for what is served."
    )
    zone: str = Field(
        "",
        pattern=_ZONE_PATTERN,
        description="Where the node stands: peers of the own zone come first. Empty: as the registry knows of it.",
    )
    node_name: str = Field(
        "",
        max_length=253,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="The Kubernetes node: what falls silent with it is understood as one, and the registry is asked "
        "for its zone where ZONE is empty. Empty: unknown.",
    )
    registry_url: str = Field("https://127.0.0.1:8444", description="Where snapshots come from.")
    registry_ca_file: Path | None = Field(None, description="Authority of the registry's certificate.")
    internal_token_file: Path = Field(
        description="Agents' credentials, as `shoal secrets` makes them; the internal token for one version."
    )
    bus_url: str = Field(
        "valkey://127.0.0.1:8446/0",
        description="Where heartbeats go. Replicated: valkey+sentinel://HOST:PORT,HOST:PORT/PRIMARY/0, the "
        "sentinels' addresses and the primary's name there.",
    )
    bus_password_file: Path | None = Field(
        None, description="Name and password of its user at the bus, as `shoal secrets` makes them."
    )
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="Where adapters come from.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    adapter_cache_url: str = Field(
        "",
        max_length=512,
        pattern=r"^(https?://\S+)?$",
        description="The region's adapter cache, asked before the store. Empty: the store alone.",
    )
    cache_dir: Path = Field(description="Adapters by digest, shared by all agents of the node.")
    cache_max_bytes: int = Field(
        20 * 2**30,
        ge=2**20,
        description="What they may take on the disk: 1,000 adapters of 20 MB. Those in an engine always stay.",
    )
    weights_dir: Path | None = Field(
        None,
        description="The folder that the engine was started from, as the agent sees it: the heartbeat says by its "
        "digest what the replica has loaded. Unset: it does not.",
    )
    snapshot_cache_file: Path = Field(description="The last good snapshot, for a start without a registry.")
    drain_timeout_s: float = Field(600.0, gt=0, description="How long running requests may go on after SIGTERM.")
    otlp_endpoint: str | None = Field(
        None,
        description="An OpenTelemetry collector's OTLP over HTTP, such as http://collector:4318; spans of adapter "
        "loads go there. Unset: none are made.",
    )
    otlp_headers_file: Path | None = Field(
        None, description="`name: value` lines that the collector wants to see, such as a token."
    )
    otlp_ca_file: Path | None = Field(None, description="Authority of its certificate. Default: the system's.")
    max_adapters: int = Field(
        8,
        ge=0,
        le=4096,
        description="Adapters in the engine at once, where its arguments in the snapshot do not say so.",
    )
    signature_key_files: tuple[Path, ...] = Field(
        (),
        description="Public keys (PEM) whose signatures count, for every tenant; a JSON list. None: none is checked.",
    )
    signatures_required: bool = Field(False, description="Whether an adapter without a signature is refused.")
    max_lora_rank: int = Field(
        16,
        ge=1,
        le=512,
        description="A larger adapter is refused; where the engine's arguments in the snapshot do not say.",
    )
    adapter_grace_s: float = Field(
        30.0,
        ge=0,
        description="How long an adapter that the snapshot dropped stays: gateways may lag by one long poll.",
    )
    fetch_timeout_s: float = Field(300.0, gt=0, description="One adapter from S3; 200 MB at 1 MB/s, with room.")
    check_timeout_s: float = Field(1.0, gt=0, le=10, description="/health and /metrics; a tick a second needs no more.")
    probe_timeout_s: float = Field(
        8.0, gt=0, description="A one-token request; longer than `stalled_after_s`, so that the verdict comes first."
    )
    warm_up_timeout_s: float = Field(
        120.0,
        ge=0,
        description="An engine that has come up is first asked for each kind of request that it compiles, this long in "
        "all. 0: not.",
    )
    load_timeout_s: float = Field(60.0, gt=0, description="Loading an adapter in the engine: it waits for a step.")
    silent_after_s: float = Field(4.0, gt=0, description="Nothing answered for this long: hung.")
    stalled_after_s: float = Field(
        6.0, gt=0, description="Work pending and no token for this long: hung. Over any one step."
    )
    idle_probe_interval_s: float = Field(3.0, gt=0, description="An idle engine is asked for one token this often.")
    kv_events_endpoint: str = Field(
        "",
        max_length=256,
        pattern=r"^((ipc|tcp)://\S+)?$",
        description="The `endpoint` of the engine's --kv-events-config. Empty: nothing is told of its KV cache.",
    )
    kv_events_replay_endpoint: str = Field(
        "",
        max_length=256,
        pattern=r"^((ipc|tcp)://\S+)?$",
        description="Its `replay_endpoint`: what was missed is asked there. Empty: a loss costs the whole index.",
    )
    standby_file: Path | None = Field(
        None, description="Where this file is at the start, the replica begins warm: loaded, and without traffic."
    )
    sleep_when_warm: bool = Field(
        False, description="Whether the engine sleeps while warm; needs --enable-sleep-mode, which no CPU has."
    )
    engine_log_file: Path | None = Field(
        None, description="Where the engine's log lies: its start's stages are told apart by it. Unset: they are one."
    )
    start_timeout_s: float = Field(600.0, gt=0, description="A start that takes longer has failed; vLLM's own default.")
    pace_interval_s: float = Field(
        10.0, ge=1, le=300, description="The engine's pace, which is compared with its fellows', is of so many seconds."
    )
    accelerator_fault_file: Path | None = Field(
        None,
        description="Where an error of the accelerator that takes the replica out is kept: while this file is there, "
        "it gets no requests, and its engine is not started again. Whoever deletes it clears the error.",
    )
    accelerators_file: Path | None = Field(
        None,
        description="Which accelerators are the engine's, as NVIDIA_VISIBLE_DEVICES says in its container (UUIDs or "
        "numbers, `all`, `none`); read until it is there. Unset: all that this process sees.",
    )
    simulated_accelerator_file: Path | None = Field(
        None,
        description="A simulated device instead of NVML's: JSON with the errors that it tells of, such as "
        '{"xids": [79]}. Unset: those of the node, where there are any.',
    )
    condemn_hung_after_s: float = Field(30.0, gt=0, description="Hung for this long: /engine/livez asks for a restart.")

    @property
    def engine_url(self) -> str:
        return f"http://{netloc(self.engine_host, self.engine_port)}"


class NodeFetchSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_NODE_FETCH_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    listen_host: str = Field("127.0.0.1", description="Where chunks are served; the token is asked for.")
    listen_port: int = Field(0, ge=0, le=65535, description="Its port; 0: any free one, since the tracker is told.")
    advertise_host: str = Field(
        "127.0.0.1", description="This node's IP as its peers reach it (a pod's status.podIP); a literal, no name."
    )
    zone: str = Field("", max_length=64, description="Where the node is; peers of the same zone are asked first.")
    registry_url: str = Field("", description="The tracker; empty: no peers, everything from the store.")
    registry_ca_file: Path | None = Field(None, description="Authority of the registry's certificate.")
    internal_token_file: Path = Field(
        description="Agents' credentials, as `shoal secrets` makes them; the internal token for one version."
    )
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="The store.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    cache_dir: Path = Field(description="Artifacts by digest, shared with the agents and engines of the node.")
    cache_max_bytes: int | None = Field(
        None,
        ge=2**20,
        description="What they may take on the disk, the one that is fetched included: the least recently used that no "
        "engine holds go before it comes. Unset: no bound but the disk.",
    )
    shown_at: Path | None = Field(
        None,
        description="A link to the first artifact, for an agent beside the engine that tells what it has loaded "
        "(SHOAL_REPLICA_WEIGHTS_DIR). Unset: none is made.",
    )
    compiled_dir: Path | None = Field(
        None,
        description="VLLM_CACHE_ROOT of the engine beside it: what was compiled for its weights is laid out there "
        "before it starts (`shoal base compiled`). It is code that the engine runs. Unset: nothing is.",
    )
    compiled_for: str = Field(
        "",
        max_length=130,
        description="Of which engine and accelerator, as 0.32.0/h100 or one of the two; empty: all that there is, from "
        "which the engine takes what fits it.",
    )
    down_bytes_per_s: float | None = Field(
        None, gt=0, description="All downloads together; unset: no limit. Leave room for what the node serves."
    )
    up_bytes_per_s: float | None = Field(None, gt=0, description="All uploads to peers together; unset: no limit.")
    max_uploads: int = Field(4, ge=1, le=64, description="At once; each holds one chunk (8 to 64 MiB) in memory.")
    max_requests: int = Field(
        4, ge=1, le=64, description="Chunks on their way from peers; each is held in memory. No more than MAX_UPLOADS."
    )
    origin_requests: int = Field(2, ge=1, le=32, description="Chunks read from the store at once.")
    timeout_s: float = Field(
        3600.0,
        gt=0,
        description="For all digests together: 140 GB at 40 MB/s. What was verified stays for the next try.",
    )
    seed_s: float = Field(
        0.0,
        ge=0,
        description="How long to go on serving afterwards; 60 s carry the stragglers of a fleet that began late.",
    )


class AdapterCacheSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_ADAPTER_CACHE_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    listen_host: str = Field(
        "127.0.0.1", description="Where agents ask; all but /readyz and /metrics takes a credential."
    )
    listen_port: int = Field(8520, ge=0, le=65535, description="Its port; 0: any free one.")
    internal_token_file: Path = Field(description="Agents' credentials, as `shoal secrets` makes them.")
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="The store.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    cache_dir: Path = Field(description="What was read, by its sha256; nobody else's folder.")
    cache_max_bytes: int = Field(
        100 * 2**30,
        ge=2**20,
        description="What it may take on the disk: 5,000 adapters of 20 MB. The longest unused go.",
    )
    max_answers: int = Field(
        16, ge=1, le=256, description="Written at once; each holds a chunk (8 to 64 MiB) in memory until it is read."
    )
