"""Prompts that lie in host memory: what a hit there costs, and whom it makes the best."""

import msgspec
import pytest

from functions.api.ids import ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.routing.choice import Prediction, decide, predict
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolView
from tests.decisions.routing.test_routing import POLICY, POOL, asked, replica

RELOAD_MS = 0.02  # 128 KiB a token at 6.5 GB/s
A, B, C = map(ReplicaId, "abc")


def chosen(in_device: dict[str, int], in_host: dict[str, int], **beats: dict[str, object]) -> Prediction:
    """Of a prompt of 800 tokens; `in_host` are those beyond what is on the accelerator."""
    views = [replica(name, **({"reload_ms_per_token": RELOAD_MS} | beats.get(name, {}))) for name in "abc"]
    names = in_device.keys() | in_host.keys()
    request = asked(
        prompt_tokens=800,
        cached_tokens={ReplicaId(name): in_device.get(name, 0) + in_host.get(name, 0) for name in names},
        reload_tokens={ReplicaId(name): tokens for name, tokens in in_host.items()},
    )
    found = decide(request, PoolView(POOL, tuple(views)), POLICY, {})
    assert isinstance(found, Prediction)
    return found


def test_a_host_hit_costs_its_reload() -> None:
    """The prologue's example: neither nothing, as a hit on the accelerator, nor a whole prefill."""
    request = asked(prompt_tokens=800, cached_tokens={B: 600, C: 590}, reload_tokens={B: 600})
    times = [
        predict(request, replica(name, reload_ms_per_token=RELOAD_MS), OwnLoad()).total_ms for name in ("a", "b", "c")
    ]
    assert times == [400.0, pytest.approx(112.0), 105.0]


@pytest.mark.parametrize(
    ("in_device", "in_host", "best"),
    [
        ({}, {"b": 600}, "b"),  # better than to compute it
        ({"a": 600}, {"b": 600}, "a"),  # worse than to have it
        ({"a": 590}, {"b": 600}, "b"),  # ten tokens more spare those behind more than the copy takes
        ({"a": 597}, {"b": 600}, "a"),  # three do not
        ({"a": 300}, {"b": 600}, "b"),
        ({"a": 300}, {"a": 300, "b": 600}, "a"),  # as much in all, and half of it is there already
    ],
)
def test_which_hit_is_worth_more(in_device: dict[str, int], in_host: dict[str, int], best: str) -> None:
    assert chosen(in_device, in_host).replica.id == best


def test_a_slow_copy_loses_to_a_fast_prefill() -> None:
    """On an engine that reads a token in 0.05 ms, blocks that take 0.3 ms a token to fetch are no attraction."""
    fast = {name: {"prefill_ms_per_token": 0.05, "reload_ms_per_token": 0.3} for name in "abc"}
    assert chosen({}, {"b": 600}, **fast).replica.id != B


def test_the_trace_says_what_was_reloaded() -> None:
    told = chosen({}, {"b": 600}).explain()
    assert (told["cached_tokens"], told["reload_tokens"], told["reload_ms"]) == (600, 600, 12.0)
    assert "reload_tokens" not in chosen({"b": 600}, {}).explain()


def test_a_full_pool_spreads_host_hits_as_well() -> None:
    """Where caches count for nothing, a replica is not punished for what it would have to reload either."""
    full = {name: {"kv_usage_ratio": 1.0} for name in "abc"} | {"b": {"kv_usage_ratio": 1.0, "service_ms": 49.0}}
    spread = RoutingEntry("spread", ("*",), spread_above_utilization_ratio=0.5)
    views = tuple(replica(name, running=1, reload_ms_per_token=RELOAD_MS, **full[name]) for name in "abc")
    request = asked(prompt_tokens=800, cached_tokens={B: 600}, reload_tokens={B: 600})
    found = decide(request, PoolView(POOL, views), spread, {})
    assert isinstance(found, Prediction) and found.replica.id == B


def test_more_than_the_prompt_is_not_reloaded() -> None:
    """What a gateway believes may be more than there is: no prompt waits for blocks that it has not."""
    request = asked(prompt_tokens=100, cached_tokens={B: 600}, reload_tokens={B: 600})
    view = replica("b", reload_ms_per_token=RELOAD_MS)
    assert predict(request, view, OwnLoad()).reload_ms == pytest.approx(2.0)
    assert predict(msgspec.structs.replace(request, reload_tokens={}), view, OwnLoad()).reload_ms == 0.0
