"""Process specs from pools and settings: pure, stable and complete."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from functions.controller.local.context import PlanContext
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool, Target
from functions.controller.local.ports import plan_ports
from functions.controller.local.settings import LocalSettings
from functions.controller.local.slots import TooManyReplicas, assign_slots, fit_replicas
from functions.controller.local.spec import STOP_ORDER, HttpProbe, difference
from functions.engines.sim.settings import read_settings

POOL = Pool(name="base-a", replicas=2, model="base-a", args=("--max-cpu-loras=8",), env=(("VLLM_X", "1"),))
CONTEXT = PlanContext(
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


def test_ports_follow_the_base() -> None:
    ports = CONTEXT.ports
    assert (ports.gateway, ports.registry, ports.bus, ports.s3, ports.engine(1), ports.agent(1), ports.peer(1)) == (
        8443, 8444, 8446, 8447, 8461, 8481, 8501,
    )  # fmt: skip


def test_one_port_can_be_moved_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PORT_BASE", "9000")
    monkeypatch.setenv("SHOAL_PORT_GATEWAY", "443")
    ports = plan_ports(LocalSettings())
    assert (ports.gateway, ports.registry) == (443, 9004)


def test_no_two_uses_share_a_port() -> None:
    ports = [use.port for use in CONTEXT.ports.uses(range(20))]
    assert len(ports) == len(set(ports))


def test_every_replica_has_an_engine_and_an_agent_with_matching_addresses() -> None:
    specs = plan_fleet(CONTEXT, [POOL], Target(), {})
    engine, agent = specs["engine-base-a-1"], specs["agent-base-a-1"]
    assert engine.argv == (
        "/engine/python", "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1", "--port", "8461", "--model", "/state/models/base-a", "--served-model-name", "base-a",
        "--kv-events-config", engine.argv[12], "--max-cpu-loras=8",
    )  # fmt: skip
    assert dict(engine.env)["VLLM_X"] == "1" and dict(engine.env)["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert engine.liveness == HttpProbe("http://127.0.0.1:8481/engine/livez")
    assert dict(agent.env)["SHOAL_REPLICA_ENGINE_PORT"] == "8461"
    events = json.loads(engine.argv[12])
    assert events["enable_kv_cache_events"] and events["endpoint"] == "ipc:///state/run/kv-base-a-1.sock"
    assert dict(agent.env)["SHOAL_REPLICA_KV_EVENTS_ENDPOINT"] == events["endpoint"]
    assert dict(agent.env)["SHOAL_REPLICA_KV_EVENTS_REPLAY_ENDPOINT"] == events["replay_endpoint"]


def test_the_simulated_engine_runs_under_our_own_python() -> None:
    specs = plan_fleet(CONTEXT, [POOL], Target(engine="sim", replicas=1), {})
    assert specs["engine-base-a-0"].argv[:3] == ("/ours/python", "-m", "functions.engines.sim")
    assert "engine-base-a-1" not in specs


def test_simulated_engine_gets_the_task_of_its_model() -> None:
    pool = dataclasses.replace(POOL, task="score")
    simulated = plan_fleet(CONTEXT, [pool], Target(engine="sim", replicas=1), {})["engine-base-a-0"]
    assert read_settings(simulated.argv[3:], {}).task == "score"
    assert "--sim-task" not in plan_fleet(CONTEXT, [pool], Target(), {})["engine-base-a-0"].argv


def test_dependencies_of_every_process_are_planned() -> None:
    specs = plan_fleet(CONTEXT, [POOL], Target(), {})
    assert all(name in specs for spec in specs.values() for name in (*spec.after, *spec.stops_before))


def test_secrets_are_passed_as_files_only() -> None:
    """Any user of the machine can list processes with their arguments and environment."""
    secret = ("TOKEN", "PASSWORD", "PEPPER", "CREDENTIALS", "KEY")
    named = [
        (name, value)
        for spec in plan_fleet(CONTEXT, [POOL], Target(), {}).values()
        for name, value in spec.env
        if any(word in name.split("_") for word in secret)
    ]
    assert len(named) > 8
    assert all(name.endswith("_FILE") and value.startswith("/state/") for name, value in named)


def test_scaling_one_pool_leaves_the_other_untouched() -> None:
    other = Pool(name="zebra", replicas=1, model="zebra")
    before = plan_fleet(CONTEXT, [POOL, other], Target(), {})
    slots = {s.replica_id: s.slot for s in before.values() if s.replica_id is not None and s.slot is not None}
    bigger = Pool(name="base-a", replicas=3, model="base-a", args=POOL.args, env=POOL.env)
    change = difference(before, plan_fleet(CONTEXT, [bigger, other], Target(), slots))
    assert {spec.name for spec in change.added} == {"engine-base-a-2", "agent-base-a-2"}
    assert not change.removed
    assert not change.replaced


def test_new_replica_gets_the_lowest_free_slot() -> None:
    assert assign_slots(["a", "b", "c"], {"b": 0, "gone": 1}, 20) == {"a": 1, "b": 0, "c": 2}


def test_slot_claimed_twice_goes_to_one_replica() -> None:
    assert sorted(assign_slots(["a", "b"], {"a": 5, "b": 5}, 20).values()) == [0, 5]


def test_worked_example_of_port_capacity() -> None:
    assert fit_replicas({"a": 2, "b": 4}, {"a": 19}, 20) == {"a": 16, "b": 4}
    assert fit_replicas({"a": 2, "b": 4}, {"a": 16, "b": 3}, 20) == {"a": 16, "b": 3}, "less than declared is asked for"
    assert fit_replicas({"a": 21}, {}, 20) == {"a": 21}, "too many are declared: that is for the pusher to hear"


def test_more_replicas_than_ports_are_reported() -> None:
    with pytest.raises(TooManyReplicas, match="21 replicas"):
        assign_slots([f"r{i}" for i in range(21)], {}, 20)


def test_gateways_stop_before_engines_and_their_dependencies() -> None:
    travelling = replace(POOL, name="base-b", model="base-b@v1")  # weights from a node fetcher
    change = difference(
        plan_fleet(
            replace(CONTEXT, prometheus=Path("/bin/prometheus"), parked_engines=1), [POOL, travelling], Target(), {}
        ),
        {},
    )
    roles = [name.partition("-")[0] for name in change.removed]
    assert [role for index, role in enumerate(roles) if role not in roles[:index]] == list(STOP_ORDER)


def test_a_changed_argument_replaces_the_engine_alone() -> None:
    before = plan_fleet(CONTEXT, [POOL], Target(), {})
    changed = Pool(name="base-a", replicas=2, model="base-a", args=(*POOL.args, "--max-num-seqs=4"), env=POOL.env)
    change = difference(before, plan_fleet(CONTEXT, [changed], Target(), {}))
    assert {spec.name for spec in change.replaced} == {"engine-base-a-0", "engine-base-a-1"}


def test_a_changed_limit_restarts_nothing() -> None:
    before = plan_fleet(CONTEXT, [POOL], Target(), {})
    slower = {
        name: dataclasses.replace(spec, timing=dataclasses.replace(spec.timing, drain_s=99))
        for name, spec in before.items()
    }
    change = difference(before, slower)
    assert len(change.adjusted) == len(before)
    assert not change.replaced
