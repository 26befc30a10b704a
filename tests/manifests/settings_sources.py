"""Settings of each process and where they are set: in a local fleet and in the manifests.

Every field of every settings class is listed here by its name, in one of these forms:

    Both()                     `shoal up` sets it and so does every overlay
    LocalOnly("why")           `shoal up` sets it; the reason says why no overlay does
    ManifestsOnly("why")       the overlays set it; the reason says why `shoal up` does not
    Default()                  neither sets it: the default is right in both

`some=` names the overlays that set what others leave at its default. `test_parity` compares the local plan with this
list, and `checks/parity` every rendering: a setting that only one target gets fails a test until
the reason is written here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pydantic_settings import BaseSettings

from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.gateway.settings import GatewaySettings
from functions.registry.settings import RegistrySettings
from functions.replica.settings import AdapterCacheSettings, NodeFetchSettings, ReplicaSettings
from functions.telemetry.store.local_server import LocalStoreSettings

Where = Literal["always", "some", "never"]


@dataclass(frozen=True, slots=True)
class Source:
    local: Where
    manifests: Where
    why: str = ""  # required where the two differ


def both(why: str = "") -> Source:
    return Source("always", "always", why)


def local_only(why: str) -> Source:
    return Source("always", "never", why)


def manifests_only(why: str) -> Source:
    return Source("never", "always", why)


def some_manifests(why: str, *, local: Where = "never") -> Source:
    """Return a source that only some overlays, or some of their pools, set."""
    return Source(local, "some", why)


DEFAULT = Source("never", "never")


def defaults(*names: str) -> dict[str, Source]:
    return dict.fromkeys(names, DEFAULT)


_ONE_MACHINE = "one machine: other processes hand out the addresses"
_TLS_AT_INGRESS = "TLS ends at Knative's ingress; inside, system-internal-tls or a mesh"
_PLAIN_INSIDE = "the registry is reached by http inside the cluster, which NetworkPolicies close"
_BY_THE_SNAPSHOT = "the snapshot says it by the engine's arguments; the annotation is read for one version more"
_MEMORY = "part of what a pod's memory limit has to hold; a laptop's process has none"
_DEFAULT_BUCKET = "a local fleet has its store to itself: the default bucket"

GATEWAY = {
    "host": both(),
    "port": both(),
    "metrics_port": both(),
    "registry_url": both(),
    "internal_token_file": both(),
    "pepper_file": both(),
    "bus_url": both(),
    "bus_password_file": both(),
    "sealed_heartbeats": both(),
    "snapshot_cache_file": both(),
    "trace_dir": both(),
    "trace_max_bytes": manifests_only("an hour without the store; a laptop's gateway has less to keep"),
    "trace_store_url": both(),
    "trace_store_user": both(),
    "trace_store_password_file": both(),
    "drain_timeout_s": both(),
    "s3_endpoint_url": both(),
    "s3_credentials_file": both(),
    "tls_cert_file": local_only(_TLS_AT_INGRESS),
    "tls_key_file": local_only(_TLS_AT_INGRESS),
    "registry_ca_file": local_only(_PLAIN_INSIDE),
    "handover_socket": local_only("a pod's successor is another pod: Knative moves the traffic"),
    "tokenizers_dir": local_only("a pod has no folder of models: SHOAL_GATEWAY_TOKENIZERS_CACHE_DIR"),
    "tokenizers_cache_dir": manifests_only("a local gateway reads the folder of models: SHOAL_GATEWAY_TOKENIZERS_DIR"),
    "tokenizers_cache_max_bytes": manifests_only("part of a volume's limit; a local gateway keeps none"),
    "models_bucket": manifests_only(_DEFAULT_BUCKET),
    "batches_bucket": manifests_only(_DEFAULT_BUCKET),
    "max_connections": manifests_only(_MEMORY),
    "uploads_bytes": some_manifests("where a pod has less than the default may take"),
    "tool_secrets_dir": manifests_only("a laptop keeps no tenants' tokens unless its user says where"),
    **defaults(
        *("gateway_id", "plain_port", "reuse_port", "handover_drain_timeout_s", "max_connections_per_address"),
        *("lookups_per_minute", "first_byte_s", "jit_wait_s", "wake_wait_s", "quarantine_after_replicas", "idle_s"),
        *("snapshot_max_age_s", "cors_origins", "pod_cidrs", "media_hosts"),
        *("trace_sync_s", "trace_store_ca_file", "trace_retention_days"),
        *("otlp_endpoint", "otlp_headers_file", "otlp_ca_file", "otlp_sample_ratio"),
        *("expected_gateways", "tool_private_networks", "tool_ca_file", "file_max_bytes", "metrics_models"),
        *("file_retention_days", "batch_lines_in_flight", "conversation_tenant_bytes", "prefix_blocks", "zone"),
    ),
}
REGISTRY = {
    "host": both(),
    "port": both(),
    "internal_token_file": both(),
    "bus_url": both(),
    "bus_password_file": both(),
    "sealed_heartbeats": both(),
    "state_dir": both(),
    "pepper_file": both(),
    "s3_endpoint_url": both(),
    "s3_credentials_file": both(),
    "trace_store_url": both(),
    "trace_store_user": both(),
    "trace_store_password_file": both(),
    "prometheus_url": Source("some", "never", "where one is installed; on a cluster the overlay says where it is"),
    "drills_dir": local_only("drills leave their reports in the local fleet's state"),
    "tls_cert_file": local_only(_TLS_AT_INGRESS),
    "tls_key_file": local_only(_TLS_AT_INGRESS),
    "environment": local_only("a part of each key's text: `live` is the default, `local` tells a laptop's keys apart"),
    "gc_interval_s": local_only("deletes what this installation does not know: a shared bucket's owner decides"),
    "s3_bucket": manifests_only(_DEFAULT_BUCKET),
    "max_connections": manifests_only(_MEMORY),
    "max_waiters": manifests_only(_MEMORY),
    "staging_max_bytes": manifests_only("part of a volume's limit; on a local disk the default"),
    "max_adapter_bytes": manifests_only("half of what a volume leaves for all; on a local disk the default"),
    "database_url": manifests_only("a local fleet keeps SQLite in its state"),
    "database_password_file": manifests_only("a local fleet keeps SQLite in its state"),
    "models_dir": some_manifests("an overlay names the bases whose facts it has", local="always"),
    "base_facts_required": some_manifests("production, where an unchecked adapter meets other tenants' requests"),
    "region": some_manifests("with components/region"),
    "regions_file": some_manifests("with components/region"),
    "regions_token_file": some_manifests("with components/region"),
    "max_lora_rank": some_manifests("where a pool of the overlay takes a higher rank than the default"),
    **defaults(
        *("max_connections_per_address", "pod_cidrs"),
        *("drain_timeout_s", "max_models_per_tenant", "max_versions_per_model"),
        *("max_channels_per_model", "max_snapshot_bytes_per_tenant", "max_model_names_per_tenant"),
        *("max_version_names_per_model", "max_keys_per_tenant", "max_artifact_bytes_per_tenant"),
        *("max_requests_at_once_per_tenant", "max_requests_per_s_per_tenant", "request_burst_per_tenant"),
        *("staging_dir", "uploads_at_once", "uploads_at_once_per_tenant", "ingest_https_hosts"),
        *("ingest_https_ca_file", "ingest_private_networks", "signature_key_files", "signatures_required"),
        *("gc_grace_s", "regions_ca_file", "usage_days"),
        *("prometheus_ca_file", "prometheus_token_file", "trace_store_ca_file"),
    ),
}
_NEAR = "a store that is far away: components/adapter-cache; one machine has its store beside it"
REPLICA = {
    "replica_id": both(),
    "pool": both(),
    "node_name": manifests_only("one machine is one node, in no zone"),
    "engine_host": both(),
    "engine_port": both(),
    "agent_host": both(),
    "agent_port": both(),
    "peer_host": both(),
    "peer_port": both(),
    "registry_url": both(),
    "internal_token_file": both(),
    "bus_url": both(),
    "bus_password_file": both(),
    "s3_endpoint_url": both(),
    "s3_credentials_file": both(),
    "adapter_cache_url": some_manifests(_NEAR),
    "cache_dir": both(),
    "cache_max_bytes": both(),
    "kv_events_endpoint": both(),
    "kv_events_replay_endpoint": both(),
    "snapshot_cache_file": both(),
    "weights_dir": both("with pvc:// it is not there: KServe mounts that volume into the engine's container alone"),
    "engine_log_file": local_only("a container's log is the cluster's: the agent beside it cannot read it"),
    "sleep_when_warm": both(),
    "drain_timeout_s": both(),
    "max_adapters": manifests_only(_BY_THE_SNAPSHOT),
    "max_lora_rank": manifests_only(_BY_THE_SNAPSHOT),
    "registry_ca_file": local_only(_PLAIN_INSIDE),
    "standby_file": local_only(
        "a pod keeps no file across its restarts: the controller tells its agent (POST /standing)"
    ),
    "stalled_after_s": local_only("a few shared cores starve an engine that is well; a pod has its own"),
    "condemn_hung_after_s": local_only("a few shared cores starve an engine that is well; a pod has its own"),
    "accelerators_file": manifests_only("under `shoal up` the agent sees what its engine sees"),
    "simulated_accelerator_file": DEFAULT,
    "accelerator_fault_file": local_only("a pod with a failed accelerator is replaced on another node"),
    "s3_bucket": manifests_only(_DEFAULT_BUCKET),
    "start_timeout_s": manifests_only(
        "weights of 140 GB from a network volume; a local model starts within the default"
    ),
    **defaults(
        *("peer_up_bytes_per_s", "zone", "signature_key_files", "signatures_required", "adapter_grace_s"),
        *("fetch_timeout_s", "check_timeout_s", "probe_timeout_s", "load_timeout_s", "silent_after_s"),
        *("idle_probe_interval_s", "warm_up_timeout_s", "pace_interval_s"),
        *("otlp_endpoint", "otlp_headers_file", "otlp_ca_file"),
    ),
}
NODE_FETCH = {
    "registry_url": both(),
    "internal_token_file": both(),
    "s3_endpoint_url": both(),
    "s3_credentials_file": both(),
    "cache_dir": both(),
    "seed_s": both(),
    "cache_max_bytes": both(),
    "compiled_dir": both(),
    "registry_ca_file": local_only(_PLAIN_INSIDE),
    "listen_port": manifests_only("one machine is one node: any free port, since nobody is told of it"),
    "shown_at": manifests_only("a local agent sees the very folder that its engine is started from"),
    "listen_host": manifests_only("one machine is one node: nobody else asks it for chunks"),
    "advertise_host": manifests_only("one machine is one node: nobody else asks it for chunks"),
    "s3_bucket": manifests_only(_DEFAULT_BUCKET),
    **defaults("zone", "down_bytes_per_s", "up_bytes_per_s", "max_uploads", "max_requests", "origin_requests"),
    **defaults("timeout_s", "compiled_for"),
}
# `shoal up` has its own controller with its own settings, so none of these is set locally.
CONTROLLER = {
    "source": manifests_only("the local controller follows files and its own bare repository"),
    "registry_url": manifests_only(_ONE_MACHINE),
    "internal_token_file": manifests_only(_ONE_MACHINE),
    "s3_endpoint_url": manifests_only(_ONE_MACHINE),
    "s3_bucket": manifests_only(_ONE_MACHINE),
    "s3_credentials_file": manifests_only(_ONE_MACHINE),
    "registry_rows_file": manifests_only("the local registry starts before its controller"),
    "models_root": some_manifests("an overlay names the bases whose manifests it has"),
    "git_ca_file": some_manifests("with components/git-authority"),
    **{name: some_manifests("with components/git-webhook") for name in ("webhook_port", "webhook_secret_file")},
    **{
        name: some_manifests("with components/git-source")
        for name in ("git_url", "git_branch", "git_askpass_file", "git_dir")
    },
    **defaults(
        *("namespace", "models_namespace", "kubeconfig", "host", "port", "registry_ca_file", "git_poll_s"),
        *("git_ssh_command", "settle_s", "resync_s", "publish_retry_s", "control_poll_s", "status_writes_per_s"),
        *("protect_deletion", "lease_s", "renew_deadline_s", "lease_retry_s", "rollout_fresh_s"),
        *(
            "rollout_load_deadline_s",
            "rollout_load_patience_s",
            "scaling_interval_s",
            "zones_interval_s",
            "max_accelerators",
        ),
        *("conflicts", "gate_timeout_s", "log_level", "slow_after_s", "slow_backoff_s"),
        *("otlp_endpoint", "otlp_headers_file", "otlp_ca_file"),
    ),
}


ADAPTER_CACHE = {
    **{
        name: some_manifests(_NEAR)
        for name in (
            *("listen_host", "listen_port", "internal_token_file", "s3_endpoint_url", "s3_credentials_file"),
            *("s3_bucket", "cache_dir", "cache_max_bytes"),
        )
    },
    **defaults("max_answers"),
}


@dataclass(frozen=True, slots=True)
class Process:
    settings: type[BaseSettings]
    sources: Mapping[str, Source]
    local: str = ""  # its role in the local plan; empty: `shoal up` starts none


_CLICKHOUSE = "a cluster has ClickHouse itself (components/trace-store), or one of the operator's"
TRACE_STORE = {
    **{name: local_only(_CLICKHOUSE) for name in ("host", "port", "directory", "user", "password_file")},
    **defaults("statement_max_bytes", "threads"),
}


PROCESSES: Mapping[str, Process] = MappingProxyType(
    {
        "functions.gateway": Process(GatewaySettings, GATEWAY, "gateway"),
        "functions.registry": Process(RegistrySettings, REGISTRY, "registry"),
        "functions.replica": Process(ReplicaSettings, REPLICA, "agent"),
        "functions.replica.adapter_cache": Process(AdapterCacheSettings, ADAPTER_CACHE),
        "functions.replica.node_fetch": Process(NodeFetchSettings, NODE_FETCH, "weights"),
        "functions.telemetry.store": Process(LocalStoreSettings, TRACE_STORE, "traces"),
        "functions.controller.kubernetes": Process(KubernetesSettings, CONTROLLER),
    }
)


def variable(process: Process, field: str) -> str:
    return f"{process.settings.model_config['env_prefix']}{field}".upper()
