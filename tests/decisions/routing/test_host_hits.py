"""Prompts cached in host memory: what a hit costs, and which replica it makes the best."""

import msgspec
import pytest

from functions.api.ids import ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.choice import Prediction, decide, predict
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolView
from tests.decisions.routing.test_routing import POLICY, POOL, replica, request_with

RELOAD_MS = 0.02  # 128 KiB a token at 6.5 GB/s
A, B, C = map(ReplicaId, "abc")


def chosen(in_device: dict[str, int], in_host: dict[str, int], **beats: dict[str, object]) -> Prediction:
    """Route a prompt of 800 tokens; `in_host` counts tokens beyond those on the accelerator."""
    views = [replica(name, **({"reload_ms_per_token": RELOAD_MS} | beats.get(name, {}))) for name in "abc"]
    names = in_device.keys() | in_host.keys()
    request = request_with(
        prompt_tokens=800,
        cached_tokens={ReplicaId(name): in_device.get(name, 0) + in_host.get(name, 0) for name in names},
        reload_tokens={ReplicaId(name): tokens for name, tokens in in_host.items()},
    )
    found = decide(request, PoolView(POOL, tuple(views)), POLICY, {})
    assert isinstance(found, Prediction)
    return found


def test_a_host_hit_costs_its_reload() -> None:
    """The prologue's example: a host hit costs more than a hit on the accelerator and less than a whole prefill."""
    request = request_with(prompt_tokens=800, cached_tokens={B: 600, C: 590}, reload_tokens={B: 600})
    times = [
        predict(request, replica(name, reload_ms_per_token=RELOAD_MS), OwnLoad()).total_ms for name in ("a", "b", "c")
    ]
    assert times == [400.0, pytest.approx(112.0), 105.0]


@pytest.mark.parametrize(
    ("in_device", "in_host", "best"),
    [
        ({}, {"b": 600}, "b"),  # cheaper than a prefill
        ({"a": 600}, {"b": 600}, "a"),  # dearer than a hit on the accelerator
        ({"a": 590}, {"b": 600}, "b"),  # ten more tokens save those behind more than the copy costs
        ({"a": 597}, {"b": 600}, "a"),  # three do not
        ({"a": 300}, {"b": 600}, "b"),
        ({"a": 300}, {"a": 300, "b": 600}, "a"),  # equal in all, and half of it is on the accelerator
    ],
)
def test_better_hit_wins(in_device: dict[str, int], in_host: dict[str, int], best: str) -> None:
    assert chosen(in_device, in_host).replica.id == best


def test_a_slow_copy_loses_to_a_fast_prefill() -> None:
    """Blocks that reload at 0.3 ms a token are not worth it on an engine that prefills a token in 0.05 ms."""
    fast = {name: {"prefill_ms_per_token": 0.05, "reload_ms_per_token": 0.3} for name in "abc"}
    assert chosen({}, {"b": 600}, **fast).replica.id != B


def test_trace_contains_reloaded_tokens() -> None:
    told = chosen({}, {"b": 600}).explain()
    assert (told["cached_tokens"], told["reload_tokens"], told["reload_ms"]) == (600, 600, 12.0)
    assert "reload_tokens" not in chosen({"b": 600}, {}).explain()


def test_a_full_pool_spreads_host_hits_as_well() -> None:
    """If caches have no weight, a replica is not penalized for reloads either."""
    full = {name: {"kv_usage_ratio": 1.0} for name in "abc"} | {"b": {"kv_usage_ratio": 1.0, "service_ms": 49.0}}
    spread = RoutingEntry("spread", ("*",), spread_above_utilization_ratio=0.5)
    views = tuple(replica(name, running=1, reload_ms_per_token=RELOAD_MS, **full[name]) for name in "abc")
    request = request_with(prompt_tokens=800, cached_tokens={B: 600}, reload_tokens={B: 600})
    found = decide(request, PoolView(POOL, views), spread, {})
    assert isinstance(found, Prediction) and found.replica.id == B


def test_more_than_the_prompt_is_not_reloaded() -> None:
    """A gateway may overestimate what is cached: a prompt never waits for blocks beyond its own length."""
    request = request_with(prompt_tokens=100, cached_tokens={B: 600}, reload_tokens={B: 600})
    view = replica("b", reload_ms_per_token=RELOAD_MS)
    assert predict(request, view, OwnLoad()).reload_ms == pytest.approx(2.0)
    assert predict(msgspec.structs.replace(request, reload_tokens={}), view, OwnLoad()).reload_ms == 0.0
