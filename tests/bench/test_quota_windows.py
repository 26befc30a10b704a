"""Least and most tokens of any minute in the quota load test."""

from loadtests.quotas.windows import Minutes, minutes


def test_minutes_return_least_and_most_of_any_whole_minute() -> None:
    steady = [(float(second), 10) for second in range(121)]
    assert minutes(steady, 0.0, 120.0) == Minutes(600, 600)
    burst = [*steady, (100.0, 70)]
    assert minutes(burst, 0.0, 120.0) == Minutes(600, 670)
    gap = [(at_s, tokens) for at_s, tokens in steady if not 80.0 <= at_s < 90.0]
    assert minutes(gap, 0.0, 120.0) == Minutes(500, 600)


def test_minutes_ignore_incomplete_first_minute_and_tokens_after_the_end() -> None:
    assert minutes([(0.0, 5), (30.0, 5)], 0.0, 59.0) == Minutes(None, 10)
    assert minutes([(0.0, 5), (61.0, 5), (200.0, 99)], 0.0, 100.0) == Minutes(5, 5)


def test_tokens_a_minute_apart_are_in_different_windows() -> None:
    assert minutes([(0.0, 5), (60.0, 5)], 0.0, 100.0).most == 5
