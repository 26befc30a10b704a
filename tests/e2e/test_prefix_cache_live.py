"""Conversations over two real replicas find their KV cache again, with events, blooms and the gateway's own record.

Prompts have two blocks or more (of 128 tokens in vLLM on CPU). Sessions may leave a replica that seems slow for a
while, so in one round of several all later turns must be cached.
"""

import pytest

from tests.e2e.prefix_turns import Conversation, figure, known_answers, until_known, until_told, use_source
from tests.fleets import Fleet

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(1500)]
REPLICAS, TALKS, TURNS, ROUNDS = 2, 3, 3, 3


@pytest.mark.parametrize("source", ["bloom", "sent", "events"])
def test_later_turns_find_the_cache_of_earlier_ones(vllm_fleet: Fleet, source: str) -> None:
    use_source(vllm_fleet, source)
    if source != "sent":
        until_known(vllm_fleet, source, REPLICAS)
    rounds = []
    for attempt in range(ROUNDS):
        talks = [Conversation(f"{source} {attempt} {talk}", opening_words=220) for talk in range(TALKS)]
        rounds.append(talks)
        for turn in range(TURNS):
            known, lessons = known_answers(vllm_fleet), figure(vllm_fleet, "shoal_prefix_lessons_total")
            with vllm_fleet.client(timeout_s=300.0) as client:
                for talk in talks:
                    talk.say(client, words=60, max_tokens=8)
            if source != "sent":
                assert turn == 0 or known_answers(vllm_fleet) >= known + TALKS
                until_told(vllm_fleet, source, REPLICAS, lessons + TALKS)
        print(source, [talk.turns for talk in talks])
        if all(turn.cached_tokens > 0 for talk in talks for turn in talk.turns[1:]):
            return
    raise AssertionError([talk.turns for talks in rounds for talk in talks])
