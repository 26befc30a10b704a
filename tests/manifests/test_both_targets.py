"""The demo's YAML files run unchanged as local processes and as pods."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.api.kinds.inference_service import last_argument
from functions.api.loader import Loaded, load_directory
from functions.controller.kubernetes.objects import INFERENCE_SERVICE
from functions.controller.kubernetes.render import render as render_objects
from functions.controller.local.context import PlanContext
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Target, pools_of, unusable_problems
from functions.controller.local.ports import plan_ports
from functions.controller.local.settings import LocalSettings
from functions.controller.local.spec import ProcessSpec
from tests.manifests.checks.settings import environment_of
from tests.manifests.rendering import PROJECT, Document, Rendering
from tests.manifests.structural import unknown_or_wrong, validators
from tests.manifests.workloads import KSERVE_CONTAINER, Workload, workloads

DEMO = ("inferenceservices", "policies", "registry")
FLEET = tuple(f"{folder}/fleet" for folder in DEMO)
POOL = "smollm2-135m"
# Options that must differ between a pod and a process: address, port, path of the weights, event sockets.
_PLACES = ("--host", "--port", "--model", "--kv-events-config")


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return load_directory(declared_in(DEMO), relative_to=PROJECT)


@pytest.fixture(scope="module")
def processes(demo: Loaded) -> dict[str, ProcessSpec]:
    context = PlanContext(
        layout=StateLayout(Path("/state")),
        ports=plan_ports(LocalSettings(_env_file=None, port_base=8440)),
        python=Path("/ours/python"),
        engine_python=Path("/engine/python"),
        weed=Path("/bin/weed"),
        valkey_server=Path("/bin/valkey-server"),
        drain_timeout_s=20.0,
        models_root=Path("/state/models"),
        has_trace_store=True,
    )
    assert unusable_problems(demo, Target()) == ()
    return plan_fleet(context, pools_of(demo), Target(), {})


@pytest.fixture
def pods(staging: Rendering) -> Workload:
    (found,) = [workload for workload in workloads(staging) if workload.labels.get("shoal.dev/pool") == POOL]
    return found


def declared_in(folders: tuple[str, ...]) -> list[Path]:
    """Return the files that the folders' kustomizations name."""
    return [
        PROJECT / folder / name
        for folder in folders
        for name in yaml.safe_load((PROJECT / folder / "kustomization.yaml").read_text())["resources"]
    ]


@pytest.mark.parametrize("folder", [*DEMO, *FLEET])
def test_kustomizations_leave_no_file_out(folder: str) -> None:
    there = {path.name for path in (PROJECT / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert {path.name for path in declared_in((folder,))} == there


@pytest.mark.parametrize("folders", [DEMO, FLEET], ids=["demo", "fleet"])
def test_the_controller_applies_what_the_files_say(folders: tuple[str, ...], crds_dir: Path) -> None:
    loaded = load_directory(declared_in(folders), relative_to=PROJECT)
    rendered = render_objects(loaded, "main@0")
    assert rendered.problems == ()
    written = {each["metadata"]["name"]: each for each in _services(folders)}
    bodies = [each.body for each in rendered.desired.objects if each.body["kind"] == INFERENCE_SERVICE.kind]
    assert bodies
    for body in bodies:
        assert body["spec"] == _without_replicas(written[body["metadata"]["name"]])["spec"]
        assert body["metadata"] == {**written[body["metadata"]["name"]]["metadata"], "namespace": "shoal-models"}
        validator = validators(crds_dir)[INFERENCE_SERVICE.api_version, INFERENCE_SERVICE.kind]
        assert list(unknown_or_wrong(validator, body)) == []


def test_kustomize_and_controller_say_the_same(demo: Loaded, staging: Rendering) -> None:
    (applied,) = [
        each.body
        for each in render_objects(demo, "main@0").desired.objects
        if each.body["kind"] == INFERENCE_SERVICE.kind
    ]
    assert applied == _without_replicas(staging.one("InferenceService", POOL))


def test_pods_and_processes_get_the_same_arguments(processes: dict[str, ProcessSpec], pods: Workload) -> None:
    process = processes[f"engine-{POOL}-0"]
    (engine,) = [each for each in pods.containers if each["name"] == KSERVE_CONTAINER]
    pod = [argument.replace("$(POOL)", POOL) for argument in engine["args"]]
    assert _given(list(process.argv[3:])) == _given(pod)
    assert process.argv[1:3] == tuple(engine["command"][1:3])


def test_pods_and_processes_get_the_same_environment(
    processes: dict[str, ProcessSpec], pods: Workload, staging: Rendering
) -> None:
    (engine,) = [each for each in pods.containers if each["name"] == KSERVE_CONTAINER]
    pod, process = environment_of(engine, pods, staging), dict(processes[f"engine-{POOL}-0"].env)
    (service,) = _services(DEMO)
    asked = {entry["name"]: entry["value"] for entry in service["spec"]["predictor"]["model"]["env"]}
    assert asked
    assert {name: pod.get(name) for name in asked} == {name: process.get(name) for name in asked} == asked


def test_agents_know_the_same_of_their_engines(
    processes: dict[str, ProcessSpec], pods: Workload, staging: Rendering
) -> None:
    (agent,) = [each for each in pods.containers if each["name"] == "shoal-agent"]
    pod, process = environment_of(agent, pods, staging), dict(processes[f"agent-{POOL}-0"].env)
    assert pod["SHOAL_REPLICA_POOL"] == process["SHOAL_REPLICA_POOL"] == POOL
    assert pod["SHOAL_REPLICA_MAX_ADAPTERS"] == pod["SHOAL_REPLICA_MAX_LORA_RANK"] == "", "the snapshot says it"
    assert pod.keys() >= {name for name in process if name.endswith("_FILE") and "CA" not in name}


def test_agents_listen_where_engines_tell_of_their_caches(
    processes: dict[str, ProcessSpec], pods: Workload, staging: Rendering
) -> None:
    (engine,) = [each for each in pods.containers if each["name"] == KSERVE_CONTAINER]
    (agent,) = [each for each in pods.containers if each["name"] == "shoal-agent"]
    pod = (engine["args"], environment_of(agent, pods, staging))
    process = (processes[f"engine-{POOL}-0"].argv, dict(processes[f"agent-{POOL}-0"].env))
    for arguments, environment in (pod, process):
        events = json.loads(last_argument(tuple(arguments), "--kv-events-config") or "")
        assert events["enable_kv_cache_events"]
        assert environment["SHOAL_REPLICA_KV_EVENTS_ENDPOINT"] == events["endpoint"]
        assert environment["SHOAL_REPLICA_KV_EVENTS_REPLAY_ENDPOINT"] == events["replay_endpoint"]
        # Events contain the tenants' cache salts: loopback, or a socket in a directory that only its owner may enter.
        assert all(events[name].startswith(("ipc://", "tcp://127.0.0.1:")) for name in ("endpoint", "replay_endpoint"))


def _services(folders: tuple[str, ...]) -> list[Document]:
    documents = [each for path in declared_in(folders) for each in yaml.safe_load_all(path.read_text())]
    return [each for each in documents if each["kind"] == INFERENCE_SERVICE.kind]


def _without_replicas(service: Document) -> Document:
    """Return the service without minReplicas, which the autoscaler sets if an AutoscalingPolicy covers the pool."""
    predictor = {key: value for key, value in service["spec"]["predictor"].items() if key != "minReplicas"}
    kept: dict[str, Any] = {**service, "spec": {**service["spec"], "predictor": predictor}}
    return kept


def _given(arguments: list[str]) -> list[tuple[str, str]]:
    """Return options and values in either spelling, without those of `_PLACES`."""
    found: list[tuple[str, str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            found.append((name, value))
        else:
            name, _ = found.pop()
            found.append((name, argument))
    return sorted(option for option in found if option[0] not in _PLACES)
