"""A conversation's second turn goes to the replica that has the first turn's blocks, with events and with blooms.

The first turns come at once and spread over the replicas. The second turns come one by one to idle replicas, so only
the cache makes a difference. On a busy machine measured rates can outweigh it for a while, so one round of several must
succeed; without knowledge of caches, one in 256 would.
"""

import pytest

from tests.e2e.prefix_turns import (
    Conversation,
    all_at_home,
    all_say,
    figure,
    known_answers,
    until_known,
    until_told,
    use_source,
)
from tests.fleets import Fleet
from tests.soak import sampled

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]
REPLICAS, TALKS, ROUNDS = 2, 8, 4


@pytest.mark.parametrize("source", sampled(["bloom", "events"], keep=["events"]))
def test_the_second_turn_goes_where_the_first_one_is(sim_fleet: Fleet, source: str) -> None:
    use_source(sim_fleet, source)  # events last, since other tests use the fleet with that policy
    until_known(sim_fleet, source, REPLICAS)
    rounds = []
    for attempt in range(ROUNDS):
        talks = [Conversation(f"{source} {attempt} {talk}", opening_words=250) for talk in range(TALKS)]
        rounds.append(talks)
        lessons = figure(sim_fleet, "shoal_prefix_lessons_total")
        all_say(sim_fleet, talks, words=60, max_tokens=200)
        until_told(sim_fleet, source, REPLICAS, lessons + TALKS)
        known = known_answers(sim_fleet)
        with sim_fleet.client() as client:
            for talk in talks:
                talk.say(client, words=30, max_tokens=8)
        assert known_answers(sim_fleet) >= known + TALKS
        if all_at_home(talks):
            return
    raise AssertionError([talk.turns for talks in rounds for talk in talks])
