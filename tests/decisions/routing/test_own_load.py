"""Load of this gateway: tokens until the first token, requests until their end, and nothing left over."""

from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import InFlightSlot, OwnLoad

R = ReplicaId("r")


def test_worked_example_of_tokens_ahead() -> None:
    load = OwnLoad()
    first = load.add_request(R, 4000, 1.0)
    load.add_request(R, 1000)
    assert (load.in_flight, load.ahead_tokens, first.sent_s) == ({R: 2}, {R: 5000}, 1.0)
    load.mark_first_token(first)
    load.mark_first_token(first)
    assert (load.in_flight, load.ahead_tokens) == ({R: 2}, {R: 1000})
    load.remove_request(first)
    assert (load.in_flight, load.ahead_tokens) == ({R: 1}, {R: 1000})


def test_request_that_ends_before_a_token_removes_its_prompt() -> None:
    load = OwnLoad()
    load.remove_request(load.add_request(R, 4000))
    assert (load.in_flight, load.ahead_tokens) == ({}, {})


@given(st.lists(st.tuples(st.sampled_from(["enter", "start", "leave"]), st.integers(0, 3), st.integers(0, 5000))))
def test_counts_match_requests_in_flight(steps: list[tuple[str, int, int]]) -> None:
    load, places = OwnLoad(), list[InFlightSlot]()
    for what, which, tokens in steps:
        if what == "enter":
            places.append(load.add_request(ReplicaId(f"r{which}"), tokens))
        elif places and what == "start":
            load.mark_first_token(places[which % len(places)])
        elif places:
            load.remove_request(places.pop(which % len(places)))
        for replica_id in {place.replica_id for place in places}:
            here = [place for place in places if place.replica_id == replica_id]
            assert load.in_flight[replica_id] == len(here)
            assert load.ahead_tokens.get(replica_id, 0) == sum(place.prefill_tokens for place in here)
    assert sum(load.in_flight.values()) == len(places)
    assert set(load.ahead_tokens) == {place.replica_id for place in places if place.prefill_tokens}
