"""Drills of replicas: a crash, a slow replica, a lost node, a lost zone, a failed accelerator.

On a lost node, agent and engine disappear together and nothing restarts them before the cluster's eviction time. On one
machine the drill kills them and stops the controller (SIGSTOP) until the node is back.
"""

from collections.abc import Sequence
from types import MappingProxyType

import httpx

from functions.cli.drill.declared import Drill, DrillLoad, Effect, Mend
from functions.cli.drill.stage import CONTROLLER, ENGINE_S, DrillStage
from functions.cli.refused import CommandRefused

STREAMS = DrillLoad(requests_per_s=6.0, words=60, max_tokens=200)


def _some(value: float | None) -> bool:
    return value is not None and value > 0.0


REPLICA_CRASH = Drill(
    name="replica-crash",
    summary="An engine dies during requests and is restarted.",
    fault="the engine of the first replica is killed (SIGKILL)",
    taken_back="nothing: the controller starts it again",
    alert="ReplicaCrash",
    effect=Effect(
        "an engine is reported dead",
        "gateway",
        "shoal_pool_replicas",
        _some,
        labels=MappingProxyType({"state": "dead"}),
        fold="sum",
    ),
    inject=lambda stage: stage.kill(f"engine-{stage.replicas()[0]}"),
    load=STREAMS,
    tolerates=frozenset({"broken_off"}),
    min_replicas=2,
    hold_s=0.0,
    fires_within_s=30.0,
    heals_itself=True,
)


def _slow(stage: DrillStage) -> None:
    stage.set_faults(stage.replicas()[0], slow_factor=12.0)


def _slow_in_state(state: str) -> Effect:
    labels = MappingProxyType({"what": "slow", "state": state})
    return Effect(f"a slow replica: {state}", "registry", "shoal_replica_troubled", _some, labels=labels, fold="sum")


RESTARTED = Mend(
    words="the controller has drained and restarted it, and it is ready again",
    done=Effect("slow replicas were restarted", "registry", "shoal_slow_replica_restarts", _some, fold="sum"),
    under_way=_slow_in_state("restarting"),
    held=_slow_in_state("held"),
    within_s=180.0,  # a minute of suspicion, the drain of running requests, the start
)

SLOW_REPLICA = Drill(
    name="slow-replica",
    summary="One replica answers twelve times as slowly as the others.",
    fault="every step of the first replica's engine takes twelve times as long, until the controller restarts it",
    taken_back="a restarted engine is as fast as before",
    alert="SlowReplica",
    effect=Effect(
        "the time that each request adds to the next one's rises by over 50 ms",
        "gateway",
        "shoal_replica_service_seconds",
        lambda value: value is not None and value > 0.05,
        grows=True,  # compared with before the fault; the alert compares replicas with each other
    ),
    inject=_slow,
    load=STREAMS,
    simulated_only=True,
    min_replicas=2,
    hold_s=15.0,
    fires_within_s=90.0,
    clears_within_s=120.0,
    recovers_within_s=120.0,
    mend=RESTARTED,
)


def _lose(stage: DrillStage, replicas: Sequence[str]) -> None:
    stage.stop(CONTROLLER)
    stage.kill(*(f"{role}-{replica}" for replica in replicas for role in ("agent", "engine")))


NODE_LOSS = Drill(
    name="node-loss",
    summary="A node is lost: a replica's engine and agent disappear together.",
    fault="engine and agent of the first replica are killed; the controller is stopped, so nothing starts them",
    taken_back="the controller goes on and starts them",
    alert="NodeLoss",
    effect=Effect(
        "a replica is silent",
        "gateway",
        "shoal_pool_replicas",
        _some,
        labels=MappingProxyType({"state": "silent"}),
        fold="sum",
    ),
    inject=lambda stage: _lose(stage, stage.replicas()[:1]),
    load=STREAMS,
    tolerates=frozenset({"broken_off"}),
    min_replicas=2,
    recovers_within_s=120.0,
    clears_within_s=120.0,
)


def _lose_zone(stage: DrillStage) -> None:
    zones = zones_of(stage)
    _lose(stage, zones[min(zones)])


def zones_of(stage: DrillStage) -> dict[str, list[str]]:
    """Return the ready replicas by zone, as the heartbeats report them."""
    found: dict[str, list[str]] = {}
    for replica in stage.status()["replicas"]:
        if replica["phase"] == "ready":
            found.setdefault(str(replica.get("zone", "")), []).append(str(replica["replica_id"]))
    return found


def _need_zones(stage: DrillStage) -> None:
    if len(zones_of(stage)) < 2:
        raise CommandRefused("all replicas are in one zone: start the fleet with SHOAL_ZONES=2")


ZONE_LOSS = Drill(
    name="zone-loss",
    summary="All replicas of a zone disappear together; the other zone serves all requests.",
    fault="engines and agents of the first zone are killed; the controller is stopped, so nothing starts them",
    taken_back="the controller goes on and starts them",
    alert="ZoneLoss",
    effect=Effect(
        "replicas of a zone are silent",
        "gateway",
        "shoal_zone_replicas",
        _some,
        labels=MappingProxyType({"state": "silent"}),
        fold="sum",
    ),
    inject=_lose_zone,
    prepare=_need_zones,
    load=STREAMS,
    tolerates=frozenset({"broken_off"}),
    min_replicas=2,
    recovers_within_s=120.0,
    clears_within_s=120.0,
)


def _need_devices(stage: DrillStage) -> None:
    port = stage.context.ports.agent(stage.entry(f"agent-{stage.replicas()[0]}").slot or 0)
    page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=ENGINE_S).text
    if "shoal_accelerator_errors_total{" not in page:
        raise CommandRefused(
            "no replica has an accelerator here: start the fleet with SHOAL_SIMULATED_ACCELERATORS=true"
        )


def _fail_device(stage: DrillStage) -> None:
    replica, layout = stage.replicas()[0], stage.context.layout
    stage.register_expected_file(layout.accelerator_fault_file(replica))
    stage.write(layout.simulated_accelerator_file(replica), b'{"xids": [79]}')


ACCELERATOR_ERROR = Drill(
    name="accelerator-error",
    summary="The driver reports that a device fell off the bus (XID 79): its replica is removed from service.",
    fault="the simulated accelerator of the first replica reports XID 79",
    taken_back="the device works again, and the replica's fault is cleared as in its runbook",
    alert="AcceleratorError",
    effect=Effect(
        "a replica is out of service",
        "gateway",
        "shoal_pool_replicas",
        lambda value: value is not None and value < 2.0,
        labels=MappingProxyType({"state": "ready"}),
        fold="sum",
    ),
    inject=_fail_device,
    prepare=_need_devices,
    load=STREAMS,
    min_replicas=2,
    simulated_only=True,
    hold_s=15.0,
    clears_within_s=180.0,  # the alert clears ten minutes after the last error; two with short windows
    recovers_within_s=120.0,
)

DRILLS = (REPLICA_CRASH, SLOW_REPLICA, NODE_LOSS, ZONE_LOSS, ACCELERATOR_ERROR)
