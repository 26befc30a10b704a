"""`shoal key create --limit`: limits as policies write them, told to the registry by its names."""

import pytest

from functions.cli.key import limit_of
from functions.cli.refused import Refused


def test_a_limit_is_written_as_in_a_policy() -> None:
    assert limit_of("requestsPerMinute=60") == ("requests_per_minute", 60)
    assert limit_of("tokenBurstSeconds=1") == ("token_burst_seconds", 1)


@pytest.mark.parametrize("text", ["", "requestsPerMinute", "requests_per_minute=60", "weight=2"])
def test_what_is_no_limit_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(Refused, match=r"no limit; allowed: requestsPerMinute|a whole number from 1"):
        limit_of(text)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "1" * 13])
def test_a_limit_is_a_whole_number_from_1(value: str) -> None:
    with pytest.raises(Refused, match="maxOutputTokens is a whole number from 1"):
        limit_of(f"maxOutputTokens={value}")
