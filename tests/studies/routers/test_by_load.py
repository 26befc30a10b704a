"""Power of two choices, and consistent hashing with bounded loads."""

from collections import Counter
from random import Random

from studies.routers.bounded_hash import BoundedHash
from studies.routers.by_count import PowerOfTwo
from tests.studies.routers.questions import load, make_question, rows


def test_less_loaded_of_two_random_replicas_is_chosen() -> None:
    router, pool = PowerOfTwo(Random(1)), rows("a", "b", "c")
    picked: Counter[str] = Counter(router.pick(make_question(), pool, load(a=9, b=5))[0] for _ in range(600))
    assert picked["a"] == 0, "whoever else is drawn has fewer"
    # c wins both pairs that include it, b only the one with a: 2 to 1
    assert 330 < picked["c"] < 470
    assert picked["b"] == 600 - picked["c"]


def test_single_replica_is_chosen() -> None:
    assert PowerOfTwo(Random(1)).pick(make_question(), rows("a"), load(a=9))[0] == "a"


def test_session_stays_and_few_move_when_a_replica_is_removed() -> None:
    router, five, four = BoundedHash(), rows("a", "b", "c", "d", "e"), rows("a", "b", "c", "d")
    sessions = [f"s{number}" for number in range(400)]
    before = {each: router.pick(make_question(session=each), five, load())[0] for each in sessions}
    again = {each: router.pick(make_question(session=each), five, load())[0] for each in sessions}
    after = {each: router.pick(make_question(session=each), four, load())[0] for each in sessions}
    assert before == again
    assert all(after[each] == before[each] for each in sessions if before[each] != "e")
    assert min(Counter(before.values()).values()) > 40, "256 places on the ring each: nobody is left out"


def test_full_replica_passes_the_session_on() -> None:
    router, pool = BoundedHash(), rows("a", "b", "c")
    home = router.pick(make_question(session="s"), pool, load())[0]
    others = [row[0] for row in pool if row[0] != home]
    # The prologue's example: 1.25 x 6 / 3 = 2.5, so a replica with 2 gets no third.
    assert router.pick(make_question(session="s"), pool, load(**{home: 1, others[0]: 2, others[1]: 2}))[0] == home
    assert router.pick(make_question(session="s"), pool, load(**{home: 2, others[0]: 2, others[1]: 1}))[0] == others[1]


def test_without_a_session_the_first_block_is_the_key() -> None:
    router, pool = BoundedHash(), rows("a", "b", "c", "d")
    assert (
        router.pick(make_question((7, 1, 2)), pool, load())[0]
        == router.pick(make_question((7, 8, 9), key="other"), pool, load())[0]
    )
    unknown = {router.pick(make_question(key=f"r{number}"), pool, load())[0] for number in range(40)}
    assert unknown == {"a", "b", "c", "d"}, "a prompt of which nothing is known has no home"
