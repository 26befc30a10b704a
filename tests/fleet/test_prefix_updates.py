"""Prefix messages: encoded messages decode unchanged, anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.prefix.block_bloom import build
from functions.fleet.prefix_updates import (
    ASK_MAX_BYTES,
    UPDATE_MAX_BYTES,
    Delta,
    PrefixBloom,
    PrefixRequest,
    PrefixUpdate,
    PrefixUpdateInvalid,
    State,
    decode,
    decode_request,
    encode,
    pack,
    unpack,
)

NAMES = st.lists(st.integers(0, 2**64 - 1), max_size=50)


@given(NAMES, NAMES)
def test_prefix_update_round_trips(added: list[int], removed: list[int]) -> None:
    updates: list[PrefixUpdate] = [
        Delta("r-0", "base", 7, 3, 16, pack(added), pack(removed)),
        State("r-0", "base", 7, 3, 16, 0, 2, pack(added)),
        PrefixBloom("r-0", "base", 16, len(added), build(added)),
    ]
    assert [decode(encode(item)) for item in updates] == updates
    assert list(unpack(pack(added))) == added


def test_prefix_request_round_trips() -> None:
    ask = PrefixRequest("base", "events", ("r-0", "r-1"), everyone=True)
    assert decode_request(encode(ask)) == ask


@pytest.mark.parametrize(
    "update",
    [
        Delta("r 0", "base", 7, 3, 16),
        Delta("r-0", "base", -1, 3, 16),
        Delta("r-0", "base", 7, 2**60, 16),
        Delta("r-0", "base", 7, 3, 16, b"1234567"),
        Delta("r-0", "base", 7, 3, 16, bytes(UPDATE_MAX_BYTES)),
        State("r-0", "base", 7, 3, 16, 0, 0),
        PrefixBloom("r-0", "", 16, 0, b""),
    ],
)
def test_invalid_prefix_updates_are_refused(update: PrefixUpdate) -> None:
    with pytest.raises(PrefixUpdateInvalid):
        decode(encode(update))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_refused(content: bytes) -> None:
    for read in (decode, decode_request):
        with pytest.raises(PrefixUpdateInvalid):
            read(content)


def test_size_is_bounded() -> None:
    with pytest.raises(PrefixUpdateInvalid, match="over the limit"):
        decode(bytes(UPDATE_MAX_BYTES + 1))
    with pytest.raises(PrefixUpdateInvalid, match="over the limit"):
        decode_request(bytes(ASK_MAX_BYTES + 1))
