"""Plans of load tests, without a fleet: growing conversations, refusals, the spike, popularity."""

import random
from collections import Counter

import pytest

from loadtests.locust.conversation import Conversation, tokens_at_most, turns, words
from loadtests.locust.refusals import LONGEST_WAIT_S, NextStep, next_step, retry_after_s
from loadtests.locust.spike import Spike
from loadtests.popularity import Popularity


def test_each_turn_begins_with_all_of_the_one_before() -> None:
    talk, before = Conversation("a", "be kind", 4, 2048), []
    for turn in range(4):
        messages = talk.next_turn(f"question {turn}", 32)
        assert messages is not None and messages[: len(before)] == before
        talk.add_answer(f"answer {turn}")
        before = [*messages, {"role": "assistant", "content": f"answer {turn}"}]
    assert talk.next_turn("one more", 32) is None


def test_a_conversation_ends_before_its_context_is_full() -> None:
    talk, rng = Conversation("a", "be kind", 1000, 512), random.Random(1)
    for _ in range(1000):
        messages = talk.next_turn(words(rng, 30), 64)
        if messages is None:
            break
        assert sum(tokens_at_most(message["content"]) for message in messages) + 64 <= 512
        talk.add_answer(words(rng, 40))
    else:
        raise AssertionError("it never ended")


def test_same_seed_gives_same_words() -> None:
    assert words(random.Random("a"), 20) == words(random.Random("a"), 20) != words(random.Random("b"), 20)
    assert {turns(random.Random(n)) for n in range(300)} == set(range(2, 9))


@pytest.mark.parametrize(
    ("status", "header", "tries", "step"),
    [
        (200, None, 1, NextStep("answered")),
        (429, "3", 1, NextStep("wait", 3.0)),
        (503, "1", 4, NextStep("wait", 1.0)),
        (503, "1", 5, NextStep("give_up", why="503 overloaded")),
        (503, None, 1, NextStep("fail", why="503 overloaded, and no retry-after")),
        (429, "soon", 1, NextStep("fail", why="429 overloaded, and no retry-after")),
        (429, "86400", 1, NextStep("fail", why=f"429 overloaded, and retry-after above {LONGEST_WAIT_S:.0f} s")),
        (500, "1", 1, NextStep("fail", why="500 overloaded")),
        (404, None, 1, NextStep("fail", why="404 overloaded")),
    ],
)
def test_a_refusal_is_obeyed_and_everything_else_fails(
    status: int, header: str | None, tries: int, step: NextStep
) -> None:
    assert next_step(status, header, "overloaded", tries, 5) == step


def test_retry_after_is_whole_seconds() -> None:
    assert [retry_after_s(value) for value in ("0", " 7 ", "-1", "1.5", "9" * 10, "", None)] == [0, 7, *[None] * 5]


def test_worked_example_of_the_spike() -> None:
    spike = Spike(users=10, run_time_s=180)
    assert [spike.load(at_s) for at_s in (0, 60, 119, 120, 179)] == [
        (10, 2.0),
        (50, 2.0),
        (50, 2.0),
        (10, 2.0),
        (10, 2.0),
    ]
    assert spike.load(180) is None
    assert [spike.phase(at_s) for at_s in (59, 60, 120)] == ["before", "spike", "after"]
    assert Spike(users=1, run_time_s=9).load(4) == (5, 4.0)  # four more within a third of three seconds


def test_popularity_follows_zipf_and_can_be_shared() -> None:
    two = Popularity(2, 1.0, random.Random(1))
    assert two.share_of_top(1) == pytest.approx(2 / 3)
    order = [Popularity(50, 1.1, random.Random("order")) for _ in range(2)]
    drawn = [
        Counter(each.draw(rng) for _ in range(20_000))
        for each, rng in zip(order, (random.Random(1), random.Random(2)), strict=True)
    ]
    first = drawn[0].most_common(1)[0][0]
    assert drawn[1].most_common(1)[0][0] == first
    assert drawn[0][first] / 20_000 == pytest.approx(order[0].share_of_top(1), abs=0.02)
