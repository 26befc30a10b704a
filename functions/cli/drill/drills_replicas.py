"""Drills of replicas: one that crashes."""

from functions.cli.drill.declared import Drill, Effect, Load


def _some(value: float | None) -> bool:
    return value is not None and value > 0.0


REPLICA_CRASH = Drill(
    name="replica-crash",
    summary="An engine dies in the middle of its work and is started again.",
    fault="the engine of the first replica is killed (SIGKILL)",
    taken_back="nothing: the controller starts it again",
    alert="ReplicaCrash",
    effect=Effect(
        "an engine is reported dead", "gateway", "shoal_pool_replicas", _some, labels={"state": "dead"}, fold="sum"
    ),
    inject=lambda stage: stage.kill(f"engine-{stage.replicas()[0]}"),
    load=Load(requests_per_s=6.0, words=60, max_tokens=200),
    tolerates=frozenset({"broken_off"}),
    min_replicas=2,
    hold_s=0.0,
    fires_within_s=30.0,
    heals_itself=True,
)

DRILLS = (REPLICA_CRASH,)
