"""Drills of load: five times as much within half a minute.

A fleet of simulated engines is made slow first, so that a client on the same machine can offer more than it carries.
"""

from functions.cli.drill.declared import Drill, Effect, Load
from functions.cli.drill.stage import Stage

SLOW = 20.0  # 32 sequences in a step of 0.22 s: two replicas carry some 7 requests a second of 40 tokens


def _pace(stage: Stage) -> None:
    """Of simulated engines; a real one on two cores is slow enough."""
    if stage.status()["target"]["engine"] == "sim":
        for replica in stage.replicas():
            stage.switch(replica, slow_factor=SLOW)


OVERLOAD = Drill(
    name="overload",
    summary="Five times the load within seconds, for half a minute: the rest is refused honestly and early.",
    fault="five times as many requests as before, for half a minute",
    taken_back="the load is what it was",
    alert="Overload",
    effect=Effect(
        "requests are refused for want of capacity",
        "gateway",
        "shoal_shed_total",
        lambda value: value is not None and value > 0.0,
        fold="sum",
        grows=True,
    ),
    inject=lambda stage: None,
    prepare=_pace,
    load=Load(requests_per_s=4.0, words=30),
    spike=(Load(requests_per_s=16.0, words=30, traffic="spike"),),
    tolerates=frozenset({"refused"}),
    hold_s=30.0,
    fires_within_s=75.0,
)

DRILLS = (OVERLOAD,)
