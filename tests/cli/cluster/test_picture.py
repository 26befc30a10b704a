"""Status of an installation computed from its objects, and the pods whose logs a name selects."""

import json
from typing import Any

import pytest
from rich.console import Console

from functions.cli.cluster.access import MODELS, SYSTEM, Body
from functions.cli.cluster.logs import Source, Tail, sources_of
from functions.cli.cluster.picture import ClusterObjects, status_document
from functions.cli.cluster.status import rows_of, show
from functions.cli.refused import CommandRefused
from tests.cli.cluster.test_checks import body, node, not_ready


def pod(name: str, namespace: str = SYSTEM, *, ready: bool = True, containers: str = "", **labels: str) -> Body:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    statuses = [{"restartCount": 2, "state": {} if ready else {"waiting": waiting}}]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    named = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return body(
        name,
        namespace,
        {"phase": "Running", "conditions": conditions, "containerStatuses": statuses},
        {"nodeName": "node-a", "containers": [{"name": each} for each in (containers or "main").split()]},
        labels=named,
    )


def process(name: str, number: str = "1", **changes: Any) -> Body:
    return pod(f"{name}-{number}", app_kubernetes_io__name=name, **changes)


ENGINE = pod("llama-x", MODELS, containers="kserve-container shoal-agent", shoal_dev__pool="llama")
PODS = (
    process("gateway", containers="queue-proxy gateway"),
    process("registry"),
    process("controller"),
    process("controller", "2"),
    process("bus", containers="valkey"),
    ENGINE,
)
RECORD = body("shoal-controller")
POOL = body("llama", MODELS, labels={"shoal.dev/pool": "llama"})


def seen(**changes: Any) -> ClusterObjects:
    fields: dict[str, Any] = {
        "pods": PODS,
        "pools": (POOL,),
        "objects": ({**body("acme"), "kind": "tenants"}, {**body("default"), "kind": "quotapolicies"}),
        "nodes": (node("a"),),
        "record": RECORD,
        "leader": "controller-2_abc",
    }
    return ClusterObjects(**{**fields, **changes})


def shown(it: dict[str, Any]) -> str:
    console = Console(width=200, record=True)
    show({"server": "https://cluster", "context": None, **it}, console)
    return console.export_text()


def test_an_installation_that_is_ready() -> None:
    it = status_document(seen())
    assert it["ready"]
    assert {each["name"]: (each["ready"], each["pods"]) for each in it["processes"]} == {
        "gateway": (1, 1), "registry": (1, 1), "controller": (2, 2), "bus": (1, 1),
    }  # fmt: skip
    assert next(each for each in it["processes"] if each["name"] == "controller")["leader"] == "controller-2"
    (replica,) = it["replicas"]
    assert (replica["pool"], replica["phase"], replica["zone"], replica["restarts"]) == ("llama", "ready", "a", 2)
    assert it["counts"] == {"pool": 1, "tenant": 1, "quota": 1}
    told = shown(it)
    assert "ready: 1 pool, 1 quota, 1 tenant" in told
    assert "led by controller-2" in told


def test_a_second_service_for_a_version_that_loads_makes_nothing_unready() -> None:
    """Its pool has all of its replicas; the rollout reports that a version is loading."""
    labels = {"shoal.dev/pool": "llama", "shoal.dev/version-of": "llama"}
    second = body("llama-v2-1a2b3c", MODELS, not_ready("PredictorNotReady", "x"), labels=labels)
    it = status_document(seen(pools=(POOL, second)))
    assert it["ready"] and it["counts"]["pool"] == 1


def test_what_is_not_ready_is_told_with_its_reason() -> None:
    broken = {**body("globex", SYSTEM, not_ready("Invalid", "unknown tier")), "kind": "tenants"}
    it = status_document(seen(pods=(*PODS[1:], process("gateway", ready=False)), objects=(broken,)))
    assert not it["ready"]
    told = shown(it)
    assert "0/1" in told and "CrashLoopBackOff: back-off" in told
    assert "tenant/globex" in told and "unknown tier" in told and "Stalled" in told
    assert "there is no pod" in shown(status_document(seen(pods=())))


def test_a_revision_that_was_refused_stands_beside_the_one_in_force() -> None:
    history = [
        {"revision": "main@bad", "result": "refused", "ended_unix_s": 0.0, "message": "tier: gold"},
        {"revision": "main@good", "result": "applied", "ended_unix_s": 0.0},
    ]
    data = {"lastAppliedRevision": "main@good", "history": json.dumps(history)}
    told = shown(status_document(seen(record={**RECORD, "data": data})))
    assert "main@good; main@bad refused: tier: gold" in told
    data["history"] = json.dumps(history[1:])
    assert "main@good  applied" in shown(status_document(seen(record={**RECORD, "data": data})))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gateway", [(SYSTEM, "gateway-1", "gateway")]),
        ("controller", [(SYSTEM, "controller-1", "main"), (SYSTEM, "controller-2", "main")]),
        ("bus", [(SYSTEM, "bus-1", "valkey")]),
        ("llama", [(MODELS, "llama-x", "kserve-container")]),
        ("llama-x/shoal-agent", [(MODELS, "llama-x", "shoal-agent")]),
    ],
)
def test_a_name_means_a_process_a_pool_or_a_pod(name: str, expected: list[tuple[str, str, str]]) -> None:
    assert sources_of(name, PODS) == [Source(*each) for each in expected]


def test_names_that_mean_nothing_are_told_those_that_do() -> None:
    with pytest.raises(CommandRefused, match=r"there are: bus, bus-1, controller, .*llama, llama-x"):
        sources_of("nothing", PODS)
    with pytest.raises(CommandRefused, match="it has kserve-container, shoal-agent"):
        sources_of("llama/other", PODS)


def test_each_line_is_told_once_though_the_server_repeats_a_second() -> None:
    log = ["2026-11-23T10:00:00.1Z one", "2026-11-23T10:00:01.1Z two"]
    asked: list[dict[str, str]] = []

    def read(path: str, **params: str) -> str:
        asked.append(params)
        since = params.get("sinceTime", "")
        return "".join(f"{line}\n" for line in log if line[:19] >= since[:19])

    tail = Tail(read, Source(SYSTEM, "gateway-1", "gateway"))
    assert list(tail.first(10)) == ["one", "two"]
    log += ["2026-11-23T10:00:01.2Z two", "2026-11-23T10:00:02.0Z four words in it"]
    assert list(tail.more()) == ["two", "four words in it"]
    assert list(tail.more()) == []
    assert asked[0]["tailLines"] == "10" and asked[-1]["sinceTime"] == "2026-11-23T10:00:02Z"


def test_events_of_both_forms_are_in_order() -> None:
    about = {"kind": "Tenant", "name": "acme"}
    old = {
        "metadata": {},
        "involvedObject": about,
        "lastTimestamp": "2026-11-23T10:00:05Z",
        "count": 3,
        "type": "Normal",
    }
    series = {"count": 7, "lastObservedTime": "2026-11-23T10:00:01.000000Z"}
    new = {"metadata": {}, "involvedObject": about, "series": series, "type": "Warning", "reason": "Refused"}
    rows = rows_of([old, new], warnings=False)
    assert [(row["at"], row["count"], row["object"]) for row in rows] == [
        ("2026-11-23T10:00:01", 7, "Tenant/acme"),
        ("2026-11-23T10:00:05", 3, "Tenant/acme"),
    ]
    assert [row["reason"] for row in rows_of([old, new], warnings=True)] == ["Refused"]
