"""All named routers: fresh for each run, deterministic by seed, and only the oracle reads true output lengths."""

from dataclasses import replace
from random import Random

import pytest

from functions.simulator.experiment import Oracle
from functions.simulator.router_port import RouterEngineMetrics, SimulatedRouter
from studies.routers.simulated import ROUTERS
from tests.studies.routers.questions import Told, load, make_question, rows

OTHERS = [name for name in ROUTERS if name != "shoal"]


def made(name: str, engines: Told, rng: Random) -> SimulatedRouter:
    make = ROUTERS[name]
    assert make is not None
    return make(engines, rng)


def test_shoal_router_has_no_separate_entry() -> None:
    assert ROUTERS["shoal"] is None


@pytest.mark.parametrize("name", OTHERS)
def test_picks_depend_on_the_seed_and_not_on_true_lengths(name: str) -> None:
    def picked(output_tokens: int) -> list[str]:
        router = made(name, Told(cached={"b": 16}), Random(7))
        found: list[str] = []
        for number in range(60):
            question = make_question((number % 3, 10 + number % 5), key=f"r{number}", session=f"s{number % 7}")
            found.append(router.pick(replace(question, output_tokens=output_tokens), rows("a", "b", "c"), load(a=1))[0])
            router.started(question.key)
            if number % 2:
                router.ended(question.key)
        return found

    assert picked(5) == picked(5) == picked(500)


@pytest.mark.parametrize("name", OTHERS)
def test_router_picks_only_candidates(name: str) -> None:
    router = made(name, Told(), Random(1))
    assert router.pick(make_question((1, 2), key="first"), rows("a", "b"), load())[0] in ("a", "b")
    for number in range(10):
        assert router.pick(make_question((1, 2), key=f"r{number}"), rows("b"), load(b=20))[0] == "b"


def test_oracle_picks_the_earliest_first_token() -> None:
    ahead = Told(ahead_s={"a": 1.0, "b": 0.2})
    assert Oracle(ahead).pick(make_question(prompt_tokens=1000), rows("a", "b"), load())[0] == "b"
    ahead.cached = {"a": 900}
    assert Oracle(ahead).pick(make_question(prompt_tokens=1000), rows("a", "b"), load())[0] == "a", (
        "1.1 + 0.2 s, and 1.2 + 2 s"
    )
    assert Oracle(ahead).pick(make_question(prompt_tokens=901), rows("a", "b"), load())[0] == "a"


def test_oracle_accounts_for_delays_of_running_requests() -> None:
    oracle = Oracle(Told(ahead_s={"b": 0.3}, engines={"a": RouterEngineMetrics(40, 0, 0.5)}))
    assert oracle.pick(make_question(prompt_tokens=1000), rows("a", "b"), load())[0] == "b", (
        "0.8 s of theirs for 0.3 of its own"
    )
    assert oracle.pick(make_question(prompt_tokens=100), rows("a", "b"), load())[0] == "a", (
        "a short prompt disturbs nobody"
    )
