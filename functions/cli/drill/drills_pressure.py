"""Drills of load: overload, a noisy tenant, long prompts, and a full KV cache.

Simulated engines are slowed down first, so that a client on the same machine can overload them.
"""

from types import MappingProxyType

from functions.cli.drill.declared import Drill, DrillLoad, Effect
from functions.cli.drill.stage import DrillStage

SLOW = 20.0  # 32 sequences in a step of 0.22 s: two replicas serve about 7 requests a second of 40 tokens
LONG_PROMPT_WORDS = 1150  # about 1,700 tokens: one step of 85 ms among steps of 8 ms
KV_HELD = 0.96


def _some(value: float | None) -> bool:
    return value is not None and value > 0.0


def pace(stage: DrillStage, factor: float) -> None:
    """Slow simulated engines down by a factor; leave real ones as they are, which on two cores are slow enough."""
    if stage.status()["target"]["engine"] == "sim":
        for replica in stage.replicas():
            stage.set_faults(replica, slow_factor=factor)


OVERLOAD = Drill(
    name="overload",
    summary="Five times the load within seconds, for half a minute: the excess is rejected early.",
    fault="five times as many requests as before, for half a minute",
    taken_back="the load is as before",
    alert="Overload",
    effect=Effect(
        "requests are rejected because capacity is short", "gateway", "shoal_shed_total", _some, fold="sum", grows=True
    ),
    inject=lambda stage: None,
    prepare=lambda stage: pace(stage, SLOW),
    load=DrillLoad(requests_per_s=4.0, words=30),
    spike=(DrillLoad(requests_per_s=16.0, words=30, traffic="spike"),),
    tolerates=frozenset({"refused"}),
    hold_s=30.0,
    fires_within_s=75.0,
)

NOISY_TENANT = Drill(
    name="noisy-tenant",
    summary="One key sends twenty times the requests that its limit allows; other clients are not affected.",
    fault="12 requests a second with a key whose limit is 30 a minute",
    taken_back="these requests stop",
    alert="NoisyTenant",
    effect=Effect(
        "requests over a limit are rejected", "gateway", "shoal_quota_rejections_total", _some, fold="sum", grows=True
    ),
    inject=lambda stage: None,
    spike=(
        DrillLoad(
            requests_per_s=12.0,
            traffic="noisy",
            max_tokens=8,
            key_limits=MappingProxyType({"requests_per_minute": 30}),
        ),
    ),
    hold_s=20.0,
    fires_within_s=75.0,
)

HEAD_OF_LINE = Drill(
    name="head-of-line-prefill",
    summary="Long prompts arrive among short streams, whose tokens stall during the prefill.",
    fault="four prompts of 1,700 tokens a second beside short ones, on engines three times as slow",
    taken_back="these requests stop",
    alert="HeadOfLinePrefill",
    effect=Effect(
        "long prompts are computed",
        "gateway",
        "shoal_tokens_total",
        lambda value: value is not None and value > 10_000.0,
        labels=MappingProxyType({"kind": "prompt"}),
        fold="sum",
        grows=True,
    ),
    inject=lambda stage: None,
    prepare=lambda stage: pace(stage, 3.0),
    load=DrillLoad(requests_per_s=4.0, words=60, max_tokens=200),
    spike=(DrillLoad(requests_per_s=4.0, words=LONG_PROMPT_WORDS, max_tokens=4, traffic="long"),),
    simulated_only=True,
    hold_s=20.0,
    fires_within_s=75.0,
)


def _hold_kv(stage: DrillStage) -> None:
    for replica in stage.replicas():
        stage.set_faults(replica, kv_held_ratio=KV_HELD)


KV_EXHAUSTION = Drill(
    name="kv-exhaustion",
    summary="The KV cache is nearly full: requests wait for blocks, the newest first.",
    fault="96 % of each engine's KV blocks are occupied without a request, as after a leak",
    taken_back="the blocks are free again",
    alert="KvExhaustion",
    effect=Effect(
        "a replica's cache is full",
        "gateway",
        "shoal_pool_kv_usage_ratio",
        lambda value: value is not None and value > 0.95,
    ),
    inject=_hold_kv,
    load=DrillLoad(requests_per_s=6.0, words=60, max_tokens=200),
    tolerates=frozenset({"refused"}),
    simulated_only=True,
    hold_s=15.0,
)

DRILLS = (NOISY_TENANT, KV_EXHAUSTION, HEAD_OF_LINE, OVERLOAD)
