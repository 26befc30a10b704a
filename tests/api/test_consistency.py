"""Checks across objects: cycles among fallbacks, the best matching pattern, defaults that need not be declared."""

import random

from hypothesis import given
from hypothesis import strategies as st

from functions.api.consistency.fallbacks import Hop, best_match, find_circle
from functions.api.declared import Declared
from functions.api.kinds.model import Model
from functions.api.kinds.routing_policy import RoutingPolicy
from tests.api.sources import FILES, POLICIES, M, Q, edited, load, problems_of


def policy() -> Declared[RoutingPolicy]:
    return load(FILES).objects_of(RoutingPolicy)[0]


ANY_POLICY = policy()


def hop(source: str, target: str, *tiers: str) -> Hop:
    return Hop(source, target, frozenset(tiers), ANY_POLICY, ("spec", "fallback", 0, "to"))


edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20)


@given(edges)
def test_cycle_is_found_exactly_if_there_is_one(pairs: list[tuple[int, int]]) -> None:
    hops = [hop(f"p{source}", f"p{target}") for source, target in pairs]
    circle = find_circle(hops)
    assert (circle is not None) == _has_circle(pairs)
    if circle is not None:
        assert all(one.target == other.source for one, other in zip(circle, circle[1:] + circle[:1], strict=True))
        assert all(step in hops for step in circle)


def _has_circle(pairs: list[tuple[int, int]]) -> bool:
    """Remove hops whose target has no fallback until none is left (no cycle) or no more can be removed (a cycle)."""
    left = {pair for pair in pairs if pair[0] != pair[1]}
    while left:
        fewer = {(source, target) for source, target in left if any(target == other for other, _ in left)}
        if fewer == left:
            return True
        left = fewer
    return False


def test_ten_thousand_hops_do_not_recurse() -> None:
    chain = [hop(f"p{number}", f"p{number + 1}") for number in range(10_000)]
    random.Random(7).shuffle(chain)
    assert find_circle(chain) is None
    circle = find_circle([*chain, hop("p10000", "p0")])
    assert circle is not None
    assert len(circle) == 10_001


POOL_B = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: b, labels: {shoal.dev/pool: b}}
spec: {predictor: {model: {modelFormat: {name: vLLM}, args: [--max-model-len=2048]}}}
"""


def with_fallbacks(*entries: str) -> dict[str, str]:
    text = "  fallback:\n" + "".join(f"    - {{when: saturated, {entry}}}\n" for entry in entries)
    return {**edited(Q, "  fallback: []\n", text), "inferenceservices/b.yaml": POOL_B}


def test_mutual_fallbacks_for_different_tiers_are_no_cycle() -> None:
    load(
        with_fallbacks("from: smollm2-135m, to: b, tiers: [standard]", "from: b, to: smollm2-135m, tiers: [enterprise]")
    )


def test_mutual_fallbacks_for_one_tier_report_tier_and_path() -> None:
    (problem,) = problems_of(
        with_fallbacks("from: smollm2-135m, to: b, tiers: [standard]", "from: b, to: smollm2-135m, tiers: []")
    )
    assert problem.message == (
        "closes a cycle of pools for the tier standard: smollm2-135m -> b -> smollm2-135m; remove one of these steps"
    )
    assert problem.key_path == "spec.fallback[1].to"


def test_exact_pool_name_beats_patterns_and_the_longest_pattern_wins() -> None:
    patterns = ["*", "llama-*", "llama-3-*", "llama-3-8b"]
    assert best_match("llama-3-8b", patterns) == "llama-3-8b"
    assert best_match("llama-3-70b", patterns) == "llama-3-*"
    assert best_match("llama-2", patterns) == "llama-*"
    assert best_match("bge-m3", patterns) == "*"
    assert best_match("bge-m3", ["llama-*"]) is None


def test_the_default_rollout_need_not_be_declared_others_must() -> None:
    assert load(FILES).objects_of(Model)[0].value.spec.rollout == "default"
    (problem,) = problems_of(
        edited(M, "  channels: {stable: v1}\n---", "  channels: {stable: v1}\n  rollout: carefull\n---")
    )
    assert problem.message == (
        'found "carefull", and there is no such RolloutPolicy; allowed: careful; did you mean "careful"?'
    )


def test_a_rule_that_speaks_of_slo_needs_a_promise() -> None:
    (problem,) = problems_of(edited(Q, "interactive: {share: 0.6, ttftSlo: 500ms}", "interactive: {share: 0.6}"))
    assert problem.key_path == "spec.scaleUp[0]"
    assert "has no ttftSlo" in problem.message


def test_without_an_admission_policy_the_built_in_promise_counts() -> None:
    start = POLICIES.index("apiVersion: shoal.dev/v1alpha1\nkind: AdmissionPolicy")
    end = POLICIES.index("apiVersion: shoal.dev/v1alpha1\nkind: RolloutPolicy")
    load({**FILES, Q: POLICIES[:start] + POLICIES[end:]})
