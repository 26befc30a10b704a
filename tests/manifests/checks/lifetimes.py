"""Check times and ports against each other: drains within grace, requests within Knative's limits, probes on ports."""

from collections.abc import Iterator
from typing import Any

from functions.gateway.limits import Limits
from functions.gateway.settings import GatewaySettings
from functions.registry.settings import RegistrySettings
from functions.registry.snapshot_routes import MAX_WAIT_S
from functions.replica.settings import ReplicaSettings
from tests.manifests.checks.settings import environment_of, make, module_of
from tests.manifests.rendering import Rendering
from tests.manifests.workloads import KSERVE_CONTAINER, Workload, workloads

KNATIVE_DRAIN_SLEEP_S = 30  # queue-proxy's pause before SIGTERM; not configurable
KNATIVE_RESERVED_PORTS = {8008, 8012, 8013, 8022, 8112, 9090, 9091}
ENGINE_END_S = 15  # time that an idle vLLM needs to exit
CUT_SHORT_S = 5  # the gateway's last error events


def lifetime_findings(rendering: Rendering) -> Iterator[str]:
    for workload in workloads(rendering):
        yield from (f"{workload.name}: {each}" for each in _doors(workload))
        for container in workload.containers:
            module = module_of(container)
            environment = environment_of(container, workload, rendering)
            findings: Iterator[str] = iter(())
            if module == "functions.gateway":
                findings = _gateway(workload, container, make(GatewaySettings, environment))
            elif module == "functions.registry":
                findings = _registry(workload, container, make(RegistrySettings, environment))
            elif module == "functions.replica":
                findings = _replica(workload, container, make(ReplicaSettings, environment))
            yield from (f"{workload.name}: {each}" for each in findings)


def _gateway(workload: Workload, container: dict[str, Any], settings: Any) -> Iterator[str]:
    longest_s, spec = Limits().answer_s, workload.pod
    yield from _knative_ports(container, settings.port)
    if settings.drain_timeout_s < longest_s:
        yield f"drains for {settings.drain_timeout_s:.0f} s, less than the longest request's {longest_s:.0f} s"
    if workload.grace_s < KNATIVE_DRAIN_SLEEP_S + settings.drain_timeout_s + CUT_SHORT_S:
        yield f"gets {workload.grace_s} s to end, too few for a drain of {settings.drain_timeout_s:.0f} s"
    yield from _request_times(spec, longest_s)
    if 0 < spec.get("idleTimeoutSeconds", 0) <= longest_s:
        yield "idleTimeoutSeconds would cut an answer that is not streamed: its first byte comes at its end"


def _registry(workload: Workload, container: dict[str, Any], settings: Any) -> Iterator[str]:
    yield from _knative_ports(container, settings.port)
    yield from _request_times(workload.pod, MAX_WAIT_S)
    if workload.grace_s < KNATIVE_DRAIN_SLEEP_S + settings.drain_timeout_s:
        yield f"gets {workload.grace_s} s to end, too few for its drain"


def _replica(workload: Workload, container: dict[str, Any], settings: Any) -> Iterator[str]:
    (engine,) = [each for each in workload.containers if each["name"] == KSERVE_CONTAINER]
    if workload.grace_s < settings.drain_timeout_s + ENGINE_END_S:
        yield f"gets {workload.grace_s} s to end, too few for a drain of {settings.drain_timeout_s:.0f} s and more"
    startup = engine["startupProbe"]
    if startup["periodSeconds"] * startup["failureThreshold"] < settings.start_timeout_s:
        yield "the engine's startup probe gives up before the agent does"
    agent = f"http://127.0.0.1:{settings.agent_port}"
    if engine["livenessProbe"].get("exec", {}).get("command", [])[-1:] != [f"{agent}/engine/livez"]:
        yield "the engine's liveness is not the agent's judgement of it"
    if engine.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])[-1:] != [f"{agent}/drain"]:
        yield "the engine's preStop does not ask the agent to drain"
    if "--host=$(POD_IP)" not in engine["args"]:
        yield "the engine does not listen on the pod's address, whichever family that is of"
    if f"--port={settings.engine_port}" not in engine["args"]:
        yield f"the engine does not listen on {settings.engine_port}, where gateways are sent"
    paths = [_path_of(str(settings.cache_dir), each) for each in (engine, container)]
    if paths[0] is None or paths[0] != paths[1]:
        yield "agent and engine do not share the adapters' folder under one path"


def _path_of(path: str, container: dict[str, Any]) -> str | None:
    """The volume that a container has at that path."""
    return next((mount["name"] for mount in container.get("volumeMounts", []) if mount["mountPath"] == path), None)


def _request_times(spec: dict[str, Any], longest_s: float) -> Iterator[str]:
    if not longest_s < spec["responseStartTimeoutSeconds"] <= spec["timeoutSeconds"]:
        yield (
            f"a request may take {longest_s:.0f} s; responseStartTimeoutSeconds and timeoutSeconds lie above that, "
            "in this order"
        )


def _knative_ports(container: dict[str, Any], port: int) -> Iterator[str]:
    ports = container.get("ports", [])
    if [each.get("name") for each in ports] != ["http1"]:
        yield "Knative takes one port, and HTTP/1.1 is named http1"
    elif ports[0]["containerPort"] != port:
        yield f"Knative sends requests to {ports[0]['containerPort']}, the process listens on {port}"
    if port in KNATIVE_RESERVED_PORTS:
        yield f"{port} belongs to Knative's own sidecar"


def _doors(workload: Workload) -> Iterator[str]:
    """Check that probes use ports of the pod's containers."""
    ports = {
        key
        for container in workload.containers
        for port in container.get("ports", [])
        for key in (port["containerPort"], port.get("name"))
    }
    for container in workload.containers:
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            handler = container.get(probe, {})
            for how in ("httpGet", "tcpSocket"):
                if how in handler and handler[how]["port"] not in ports:
                    yield f"{container['name']}'s {probe} asks port {handler[how]['port']}, where nobody listens"
