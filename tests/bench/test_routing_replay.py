"""The replay in virtual time: the same figures each time, and shoal's router first where caches and lengths differ."""

import random

from functions.decisions.baselines import RouterName
from loadtests.routing.report import figures, quantile, table
from loadtests.routing.trace import ADAPTERS, Asked, lora
from loadtests.routing.virtual import Replay, Shape


def conversations(count: int = 300) -> list[Asked]:
    """Prompts of 1 to 60 blocks, of which a conversation's next turn repeats all."""
    rng = random.Random(3)
    found, histories, at_s = list[Asked](), list[tuple[int, ...]](), 0.0
    for number in range(count):
        at_s += rng.expovariate(5.0)
        past = histories.pop(rng.randrange(len(histories))) if len(histories) > 20 else ()
        turn = tuple(number * 100 + block for block in range(rng.choice((1, 2, 4, 8, 16, 40))))
        histories.append(past + turn if len(past) < 60 else turn)
        found.append(Asked(at_s, past + turn, rng.randint(50, 400)))
    return found


def p99_ms(router: RouterName, count: int = 300) -> float:
    samples = Replay(router, Shape(replicas=4)).run(conversations(count), 1.0)
    return float(figures(samples, 5.0)["ttft_p99_ms"])


def test_shoal_is_first_in_the_slowest_answers() -> None:
    found = {name: p99_ms(name) for name in ("shoal", "cache-aware")}
    assert min(found, key=lambda name: found[name]) == "shoal", found


def test_the_same_seed_gives_the_same_figures() -> None:
    assert p99_ms("shoal", 40) == p99_ms("shoal", 40)


def test_the_lora_mix_has_sessions_that_share_their_beginning() -> None:
    asked = lora(300.0, 12.0)
    assert asked == lora(300.0, 12.0) and asked == sorted(asked, key=lambda each: each.at_s)
    assert 9.0 < len(asked) / 300.0 < 15.0
    assert all(each.adapter is not None and each.adapter < ADAPTERS for each in asked)
    turns: dict[str | None, tuple[int, ...]] = {}
    for each in asked:
        assert each.blocks[: len(turns.get(each.session, ()))] == turns.get(each.session, ())
        turns[each.session] = each.blocks


def test_the_table_has_a_line_a_router() -> None:
    figure = figures(Replay("shoal", Shape(replicas=2)).run(conversations(20), 1.0), 0.0)
    assert (figure["requests"], figure["counted"], figure["failed"]) == (20, 20, 0)
    assert len(table({"shoal": figure, "round-robin": figure}).splitlines()) == 3
    assert [quantile([1.0, 2.0, 3.0], q) for q in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0] and quantile([], 0.5) == 0.0
