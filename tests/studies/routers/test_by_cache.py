"""llm-d, AIBrix and Dynamo: what each does differently, with the figures of their publications."""

from collections import Counter
from random import Random

import pytest

from functions.simulator.router_port import RouterEngineMetrics
from studies.routers.aibrix import AIBrix
from studies.routers.block_owners import BlockOwners
from studies.routers.dynamo import Dynamo
from studies.routers.llm_d import LLMD, LLMDPrecise
from tests.studies.routers.questions import Told, load, make_question, rows

FIVE = (1, 2, 3, 4, 5)


class TestLLMD:
    @pytest.mark.parametrize(("shared", "wanted"), [(4, "a"), (3, "b")])
    def test_prefix_match_outweighs_a_queue_only_if_it_is_long(self, shared: int, wanted: str) -> None:
        router = LLMD(Told(engines={"a": RouterEngineMetrics(1, 3, 0.5)}), Random(1))
        router._sent(make_question(FIVE[:shared]), rows("a")[0])
        assert (
            router.pick(make_question((*FIVE[:shared], *range(90, 95 - shared))), rows("a", "b"), load())[0] == wanted
        )

    def test_emptier_cache_is_chosen_without_queue_and_match(self) -> None:
        router = LLMD(
            Told(engines={"a": RouterEngineMetrics(9, 0, 0.4), "b": RouterEngineMetrics(1, 0, 0.3)}), Random(1)
        )
        assert router.pick(make_question(FIVE), rows("a", "b"), load())[0] == "b", "how many run is not asked"

    def test_only_the_first_4096_tokens_are_compared(self) -> None:
        engines = Told()
        router = LLMD(engines, Random(1))
        prompt = tuple(range(1000))
        first = router.pick(make_question(prompt), rows("a", "b"), load())[0]
        other_end = (*prompt[:256], *range(5000, 5744))
        engines.engines = {
            first: RouterEngineMetrics(0, 0, 1.0),
            "ab".replace(first, ""): RouterEngineMetrics(0, 0, 0.0),
        }
        assert router.pick(make_question(other_end), rows("a", "b"), load())[0] == first, (
            "3 for a whole match beats 2 for room"
        )

    def test_prefix_table_evicts_like_the_replicas_cache(self) -> None:
        router = LLMD(Told(), Random(1))
        small = rows("a", kv_tokens=5 * 16)
        router.pick(make_question(FIVE), small, load())
        assert router._prefix_scores(make_question(FIVE), small) == {"a": 1.0}
        router.pick(make_question((11, 12, 13)), small, load())
        assert router._prefix_scores(make_question(FIVE), small) == {"a": 2 / 5}, "the beginning outlives the end"

    def test_precise_scores_are_normalized_to_their_range(self) -> None:
        router = LLMDPrecise(Told(cached={"a": 80, "b": 70}), Random(1))
        assert router._prefix_scores(make_question(FIVE), rows("a", "b", "c")) == {"a": 1.0, "b": 0.0}
        alone = LLMDPrecise(Told(cached={"b": 16}), Random(1))
        assert alone._prefix_scores(make_question(FIVE), rows("a", "b")) == {"b": 1.0}
        assert alone.pick(make_question(FIVE), rows("a", "b"), load(b=50))[0] == "b", (
            "a fifth of the prompt counts as all of it"
        )

    def test_equal_scores_are_chosen_at_random(self) -> None:
        router = LLMDPrecise(Told(), Random(1))
        picked: Counter[str] = Counter(router.pick(make_question(), rows("a", "b"), load())[0] for _ in range(200))
        assert min(picked["a"], picked["b"]) > 70


class TestAIBrix:
    def test_worked_example_from_the_prologue(self) -> None:
        def picked_with(**running: int) -> str:
            router = AIBrix(Random(1))
            router._owners.enter(FIVE, rows("a")[0][0])
            return router.pick(make_question(FIVE), rows("a", "b", "c"), load(**running))[0]

        assert picked_with(a=12, b=1, c=2) == "b"
        assert picked_with(a=4, b=1, c=1) in ("b", "c")
        assert picked_with(a=3, b=2, c=3) == "a"

    def test_longest_match_wins_then_fewest_running(self) -> None:
        router, pool = AIBrix(Random(1)), rows("a", "b", "c")
        router._owners.enter(FIVE, pool[0][0])
        router._owners.enter(FIVE[:2], pool[1][0])
        assert router.pick(make_question(FIVE), pool, load(a=2, b=1, c=2))[0] == "a"
        assert router.pick(make_question((1, 2, 8)), pool, load(a=2, b=1, c=2))[0] == "b"


class TestDynamo:
    def test_worked_example_from_the_prologue(self) -> None:
        engines, (a, b) = Told(), rows("a", "b")
        router = Dynamo(engines, Random(1))
        router.pick(make_question(tuple(range(500, 510)), key="other"), [b], load())
        engines.cached = {"a": 800}
        question = make_question(tuple(range(100)))
        assert [router._cost(question, a[0], 800), router._cost(question, b[0], 1600)] == [150.0, 220.0]
        assert router.pick(question, [a, b], load())[0] == "a"

    def test_running_request_counts_until_its_end_and_its_prompt_until_its_start(self) -> None:
        router, (a,) = Dynamo(Told(), Random(1)), rows("a")
        question = make_question(tuple(range(10)), prompt_tokens=168)
        router.pick(question, [a], load())
        seen = [router._cost(make_question((77,)), a[0], 16)]
        router.started("r")
        seen.append(router._cost(make_question((77,)), a[0], 16))
        router.ended("r")
        router.ended("r")
        seen.append(router._cost(make_question((77,)), a[0], 16))
        # 16 new tokens and one new block; then 10.5 blocks of prompt, as prefill (168 / 16) and as decode (11, whole).
        assert seen == [1 + 10.5 + 12, 1 + 12, 1 + 1]

    def test_shared_block_is_counted_once(self) -> None:
        router, (a,) = Dynamo(Told(), Random(1)), rows("a")
        for key in ("one", "two"):
            router.pick(make_question(FIVE, key=key), [a], load())
            router.started(key)
        assert router._cost(make_question(FIVE), a[0], 0) == 5.0
        router.ended("one")
        assert router._cost(make_question(FIVE), a[0], 0) == 5.0

    def test_retried_request_is_not_counted_twice(self) -> None:
        router, (a, b) = Dynamo(Told(), Random(1)), rows("a", "b")
        router.pick(make_question(FIVE), [a], load())
        router.pick(make_question(FIVE), [b], load())
        assert router._cost(make_question((9,)), a[0], 16) == 2.0, "nothing is left there of the attempt that failed"

    def test_positive_temperature_spreads_picks(self) -> None:
        def picked(temperature: float) -> Counter[str]:
            router = Dynamo(Told(cached={"a": 64}), Random(1), temperature)
            found: Counter[str] = Counter()
            for number in range(300):
                question = make_question(FIVE, key=str(number))
                found[router.pick(question, rows("a", "b"), load())[0]] += 1
                router.ended(question.key)
            return found

        assert picked(0.0) == {"a": 300}
        # exp(-1 / 0.5) = 0.135 to 1: one in 8.4
        assert 18 < picked(0.5)["b"] < 56


def test_owner_table_matches_prefixes() -> None:
    owners = BlockOwners(4)
    a, b = (row[0] for row in rows("a", "b"))
    owners.enter((1, 2, 3), a)
    owners.enter((1, 2), b)
    assert owners.matched((1, 2, 3, 4), {a, b}) == {a: 3, b: 2}
    assert owners.matched((1, 2, 3), {b}) == {b: 2}
    owners.enter((7, 8), a)
    assert len(owners) == 4
    assert owners.matched((1, 2, 3), {a, b}) == {a: 2, b: 2}, "the end of the oldest went first"
    assert not owners.matched((), {a})
