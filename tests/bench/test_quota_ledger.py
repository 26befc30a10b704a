"""Engine log lines of answers that no client received: the only allowed difference between computed and charged."""

from loadtests.quotas.ledger import unheard_of


def test_unheard_lines_are_all_but_one_of_each_complete_answer() -> None:
    whole, twice, left = ["a", "5", "0", "9"], ["b", "5", "0", "9"], ["c", "7", "2", "3"]
    assert unheard_of([whole, twice, left, twice], {"a", "b"}) == [twice, left]
    assert unheard_of([whole], {"a"}) == [] == unheard_of([], {"a"})
