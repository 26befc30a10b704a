"""Speed from the roofline model, cost per hour, and packing of replicas onto nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.capacity.accelerators import ACCELERATORS
from functions.decisions.capacity.cost import break_even_tokens_per_s, cost_per_million_tokens
from functions.decisions.capacity.memory import Serving
from functions.decisions.capacity.model_shape import KNOWN
from functions.decisions.capacity.packing import AcceleratorNode, PlacementDemand, pack
from functions.decisions.capacity.speed import speed_of

H100 = ACCELERATORS["NVIDIA-H100-80GB-HBM3"]


def test_speed_of_llama_8b_on_h100() -> None:
    speed = speed_of(KNOWN["llama-3.1-8b"], Serving(), H100)
    assert speed.step_of_ms(0, 0) == pytest.approx(8.3, abs=0.1)
    assert speed.ms_per_prompt_token == pytest.approx(0.036, abs=0.001)
    assert 10 <= speed.step_of_ms(32, 32 * 1000) <= 15, "published under load"


def test_more_accelerators_a_replica_make_it_faster() -> None:
    alone, four = (speed_of(KNOWN["llama-3.3-70b"], Serving(tensor_parallel=n), H100) for n in (1, 4))
    assert four.step_ms < alone.step_ms / 2
    assert four.ms_per_prompt_token == pytest.approx(alone.ms_per_prompt_token / 4)


def test_experts_cost_little_to_compute_and_much_to_hold() -> None:
    moe, dense = (speed_of(KNOWN[name], Serving(), H100) for name in ("qwen3-30b-a3b", "qwen3-32b"))
    assert moe.ms_per_prompt_token < dense.ms_per_prompt_token / 5
    assert moe.step_ms > dense.step_ms / 2


def test_a_batch_is_worth_it_until_memory_moves_more_than_weights() -> None:
    speed = speed_of(KNOWN["llama-3.1-8b"], Serving(), H100)
    assert speed.tokens_per_s(32, 500) > 20 * speed.tokens_per_s(1, 500)
    assert speed.tokens_per_s(256, 4000) < 3 * speed.tokens_per_s(32, 4000)


def test_break_even() -> None:
    assert cost_per_million_tokens(2 * 2.5, 9000) == pytest.approx(0.154, abs=0.001)
    assert break_even_tokens_per_s(2 * 2.5, 0.60) == pytest.approx(2315, abs=1)
    assert cost_per_million_tokens(5, break_even_tokens_per_s(5, 0.6)) == pytest.approx(0.6)
    assert cost_per_million_tokens(5, 0) is None
    with pytest.raises(ValueError, match="above 0"):
        break_even_tokens_per_s(5, 0)


def nodes(count: int, size: int, product: str = "H") -> list[AcceleratorNode]:
    return [AcceleratorNode(f"{product}{index}", product, size) for index in range(count)]


def test_large_replicas_are_packed_first() -> None:
    packed = pack([PlacementDemand("small", "H", 1, 4), PlacementDemand("large", "H", 4, 3)], nodes(2, 8))
    assert packed.unplaced == {}
    assert packed.used_ratio == 1.0


def test_a_pool_is_spread_over_nodes() -> None:
    packed = pack([PlacementDemand("a", "H", 1, 3)], nodes(3, 8))
    assert [node.placed for node in packed.nodes] == [["a"], ["a"], ["a"]]


def test_unplaced_replicas_have_a_reason() -> None:
    demands = [
        PlacementDemand("a", "H", 8, 2),
        PlacementDemand("b", "X", 1, 1),
        PlacementDemand("c", "H", 16, 1),
        PlacementDemand("d", "H", 6, 1),
    ]
    packed = pack(demands, [*nodes(1, 8), *(AcceleratorNode(f"h{n}", "H", 4) for n in range(2))])
    assert packed.unplaced == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert packed.reasons["b"] == "no node has X"
    assert "16 accelerators" in packed.reasons["c"]
    assert packed.reasons["d"] == "8 accelerators are free, but no 6 on one node"


@given(
    demands=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), max_size=6),
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), max_size=8),
)
def test_nothing_is_lost_and_no_node_is_too_full(demands: list[tuple[int, int]], sizes: list[int]) -> None:
    wanted = [PlacementDemand(f"p{index}", "H", size, count) for index, (size, count) in enumerate(demands)]
    given_nodes = [AcceleratorNode(f"n{index}", "H", size) for index, size in enumerate(sizes)]
    packed = pack(wanted, given_nodes)
    assert all(0 <= node.used <= node.accelerators for node in packed.nodes)
    assert not any(node.placed for node in given_nodes)
    for demand in wanted:
        placed = sum(node.placed.count(demand.pool) for node in packed.nodes)
        assert placed + packed.unplaced.get(demand.pool, 0) == demand.replicas
        left = max((node.free for node in packed.nodes), default=0)
        assert not packed.unplaced.get(demand.pool) or left < demand.accelerators
