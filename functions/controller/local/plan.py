"""Build process specs from pools and settings: what runs on one machine, with which arguments.

Pure: the same pools, target and settings give the same specs, so that a restarted controller recognises what runs.
Engines take longest to start, so they wait for nothing but the fetcher of their weights. The registry waits for the
bus; gateway and agents wait for the registry.
Neighbours: `plan_servers` (servers of every fleet), `plan_weights` (fetchers), `plan_parked` (parked processes).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from functions import engines
from functions.controller.local.context import HOST, PlanContext
from functions.controller.local.monitoring import prometheus
from functions.controller.local.plan_parked import with_parked
from functions.controller.local.plan_servers import SAFE_PATH, bus, environment, gateway, registry, s3, traces
from functions.controller.local.plan_weights import compiled_root, fetcher_of, fetchers
from functions.controller.local.pools import EngineKind, Pool, Target
from functions.controller.local.ports import MAX_SLOTS
from functions.controller.local.slots import assign_slots
from functions.controller.local.spec import HttpProbe, ProcessSpec, Timing

# Replicas: one engine each, with its agent.


ENGINE_MODULES: dict[EngineKind, str] = {
    "vllm": "vllm.entrypoints.openai.api_server",  # `vllm serve` fails with the CPU wheel
    "sim": "functions.engines.sim",
}
# Settings that the engine's container image has on a cluster. VLLM_HOST_IP makes vLLM's processes communicate over
# loopback.
_PATCHES = Path(engines.__file__).parent / "vllm_patches"
_LOCAL_ENV: dict[EngineKind, dict[str, str]] = {
    "vllm": {"PYTHONPATH": str(_PATCHES), "VLLM_HOST_IP": HOST, "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"},
    "sim": {},
}
# vLLM on two cores: 22-34 s alone, over a minute when several start at once; a large base takes longer still.
ENGINE_START_S = 600.0
ADAPTER_CACHE_MAX_BYTES = 5 * 2**30  # some thousand small adapters; leaves disk space on a workstation


def replica_ids(pool: Pool, replicas: int | None) -> list[str]:
    """Return the ids of the pool's replicas. Their number is that of `pool.folders` if versions are assigned, else
    `replicas` if the operator set it, else the InferenceService's."""
    count = replicas if replicas is not None else pool.replicas
    return [f"{pool.name}-{index}" for index in range(len(pool.folders) or count)]


def weights_folder(context: PlanContext, pool: Pool, replica_id: str) -> Path:
    return context.models_root / pool.folder_of(int(replica_id.rpartition("-")[2]))


def engine(context: PlanContext, pool: Pool, replica_id: str, slot: int, kind: EngineKind) -> ProcessSpec:
    """Return the engine's spec: the InferenceService's arguments and those that KServe's vLLM runtime would add."""
    port = context.ports.engine(slot)
    python = context.engine_python if kind == "vllm" else context.python
    folder = weights_folder(context, pool, replica_id)
    fetcher = fetcher_of(folder.name)
    cache_root = {"VLLM_CACHE_ROOT": str(compiled_root(context, folder.name))} if fetcher is not None else {}
    own = (
        "--host", HOST, "--port", str(port),
        "--model", str(folder), "--served-model-name", pool.name,
        "--kv-events-config", json.dumps(_kv_events(context, replica_id), separators=(",", ":")),
    )  # fmt: skip
    return ProcessSpec(
        name=f"engine-{replica_id}",
        role="engine",
        argv=(str(python), "-m", ENGINE_MODULES[kind], *own, *_simulated_task(pool, kind), *pool.args),
        env=tuple(sorted((_LOCAL_ENV[kind] | cache_root | dict([SAFE_PATH, *pool.env])).items())),
        inherits=("SHOAL_SIM_", "VLLM_", "OMP_", "CUDA_", "NVIDIA_"),
        readiness=HttpProbe(f"http://{HOST}:{port}/health"),
        # Only the agent can distinguish a hung engine from a slow one. An agent that does not answer is no evidence
        # about the engine.
        liveness=HttpProbe(f"http://{HOST}:{context.ports.agent(slot)}/engine/livez"),
        liveness_by_other=True,
        after=(fetcher,) if fetcher is not None else (),
        stops_before=(f"agent-{replica_id}",),
        held_by=context.layout.accelerator_fault_file(replica_id),
        timing=Timing(start_s=ENGINE_START_S, drain_s=10, liveness_failing_s=3),
        pool=pool.name,
        replica_id=replica_id,
        slot=slot,
        port=port,
    )


def _simulated_task(pool: Pool, kind: EngineKind) -> tuple[str, ...]:
    """Return the task arguments of the simulated engine. A real engine finds its task in its model."""
    return ("--runner", "pooling", "--sim-task", pool.task) if kind == "sim" and pool.task != "generate" else ()


def agent(context: PlanContext, pool: Pool, replica_id: str, slot: int) -> ProcessSpec:
    layout = context.layout
    port = context.ports.agent(slot)
    env: dict[str, object] = {
        "REPLICA_ID": replica_id,
        "POOL": pool.name,
        "ENGINE_HOST": HOST,
        "ENGINE_PORT": context.ports.engine(slot),
        "AGENT_HOST": HOST,
        "AGENT_PORT": port,
        "PEER_HOST": HOST,
        "PEER_PORT": context.ports.peer(slot),
        "REGISTRY_URL": context.registry_url,
        "REGISTRY_CA_FILE": layout.ca_file,
        "INTERNAL_TOKEN_FILE": layout.credentials("agent"),
        "BUS_URL": context.bus_url,
        "BUS_PASSWORD_FILE": layout.bus_login("agent"),
        "S3_ENDPOINT_URL": context.s3_url,
        "S3_CREDENTIALS_FILE": layout.secret("s3.json"),
        "CACHE_DIR": layout.adapter_cache_dir,
        "CACHE_MAX_BYTES": ADAPTER_CACHE_MAX_BYTES,
        "KV_EVENTS_ENDPOINT": _kv_events(context, replica_id)["endpoint"],
        "KV_EVENTS_REPLAY_ENDPOINT": _kv_events(context, replica_id)["replay_endpoint"],
        "WEIGHTS_DIR": weights_folder(context, pool, replica_id),
        "SNAPSHOT_CACHE_FILE": layout.root / "replica" / replica_id / "snapshot.json",
        "ENGINE_LOG_FILE": layout.log_file(f"engine-{replica_id}"),
        "STANDBY_FILE": layout.standby_file(replica_id),
        "ACCELERATOR_FAULT_FILE": layout.accelerator_fault_file(replica_id),
        "SLEEP_WHEN_WARM": "true" if pool.sleeps else "false",
        "DRAIN_TIMEOUT_S": context.drain_timeout_s,
        # On few shared cores a healthy engine can be starved for seconds, so both limits are longer than by default.
        "STALLED_AFTER_S": 12,
        "CONDEMN_HUNG_AFTER_S": 90,
    }
    if context.simulated_accelerators:
        env["SIMULATED_ACCELERATOR_FILE"] = layout.simulated_accelerator_file(replica_id)
    if context.zones > 1:
        env["ZONE"] = f"zone-{slot % context.zones}"
    return ProcessSpec(
        name=f"agent-{replica_id}",
        role="agent",
        argv=(str(context.python), "-m", "functions.replica"),
        env=environment("SHOAL_REPLICA_", env),
        inherits=("SHOAL_REPLICA_",),
        readiness=HttpProbe(f"http://{HOST}:{port}/readyz"),
        liveness=HttpProbe(f"http://{HOST}:{port}/healthz"),
        after=("registry", "s3"),
        timing=Timing(start_s=ENGINE_START_S + 60, drain_s=context.drain_timeout_s + 5),
        pool=pool.name,
        replica_id=replica_id,
        slot=slot,
        port=port,
    )


def _kv_events(context: PlanContext, replica_id: str) -> dict[str, object]:
    """Return the engine's --kv-events-config. The endpoints are Unix sockets in a directory that only the owner can
    enter, because events contain the tenants' cache salts in the clear."""
    return {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{context.layout.socket(f'kv-{replica_id}.sock')}",
        "replay_endpoint": f"ipc://{context.layout.socket(f'kv-{replica_id}-replay.sock')}",
    }


def plan_fleet(
    context: PlanContext, pools: Iterable[Pool], target: Target, former_slots: Mapping[str, int]
) -> dict[str, ProcessSpec]:
    specs = [s3(context), bus(context), registry(context), gateway(context)]
    if context.has_trace_store:
        specs.append(traces(context))
    if context.prometheus is not None:
        specs.append(prometheus(context))
    chosen = tuple(pools)
    specs += fetchers(context, chosen)
    by_replica = {
        replica_id: pool
        for pool in sorted(chosen, key=lambda pool: pool.name)
        for replica_id in replica_ids(pool, target.replicas)
    }
    slots = assign_slots(by_replica, former_slots, MAX_SLOTS)
    for replica_id, pool in by_replica.items():
        slot = slots[replica_id]
        specs.append(engine(context, pool, replica_id, slot, target.engine))
        specs.append(agent(context, pool, replica_id, slot))
    if context.parked_engines:
        ordered = sorted(chosen, key=lambda pool: pool.name)
        templates = [(pool, engine(context, pool, f"{pool.name}-0", 0, target.engine)) for pool in ordered]
        specs = with_parked(context, specs, templates, target.engine)
    return {spec.name: spec for spec in specs}
