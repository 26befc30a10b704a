"""Messages between nodes and tracker are strict and bounded."""

import json

import pytest

from functions.artifacts.swarm.protocol import (
    MAX_AVOIDED,
    MessageRefused,
    decode_announcement,
    decode_answer,
    encode_announcement,
    encode_answer,
)
from functions.decisions.distribution.peers import PeerFacts
from functions.decisions.distribution.swarm import PeerAnswer
from functions.decisions.distribution.tracker import Announcement

NEWS = Announcement("10.0.0.1:8500", "z1", 0b101, 2, ("10.0.0.2:1",))
GOOD = json.loads(encode_announcement(NEWS, 9))


def test_an_announcement_survives_the_wire() -> None:
    body, news = decode_announcement(encode_announcement(NEWS, 9, leaving=True), loopback_allowed=False)
    assert (body.chunks, body.leaving, news) == (9, True, NEWS)


def test_an_answer_survives_the_wire() -> None:
    answer = PeerAnswer((PeerFacts("10.0.0.2:1", "z2", 0b110),), 0b1, 2.5, 7)
    assert decode_answer(encode_answer(answer, 9), 9, loopback_allowed=False) == answer


def test_too_many_useless_peers_are_cut_off() -> None:
    many = Announcement("10.0.0.1:1", "", 0, 0, tuple(f"10.0.1.{n}:1" for n in range(100)))
    _, news = decode_announcement(encode_announcement(many, 9), loopback_allowed=False)
    assert news.avoid == many.avoid[:MAX_AVOIDED]


@pytest.mark.parametrize(
    "change",
    [
        {"address": "127.0.0.1:1"},
        {"address": "http://10.0.0.1:1"},
        {"address": "x" * 65},
        {"chunks": 0},
        {"chunks": 32_769},
        {"chunks": 90},
        {"have": "AAAA"},
        {"have": "//8="},
        {"have": 5},
        {"room": -1},
        {"room": 5000},
        {"room": True},
        {"zone": "z" * 65},
        {"avoid": ["10.0.0.2:1"] * 65},
        {"more": 1},
    ],
)
def test_an_odd_announcement_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MessageRefused):
        decode_announcement(json.dumps(GOOD | change).encode(), loopback_allowed=False)


@pytest.mark.parametrize("document", [b"", b"[]", b"\xff", b"{", b"[" * 100_000, b"null"])
def test_invalid_message_is_refused(document: bytes) -> None:
    with pytest.raises(MessageRefused):
        decode_announcement(document, loopback_allowed=False)
    with pytest.raises(MessageRefused):
        decode_answer(document, 9, loopback_allowed=False)


@pytest.mark.parametrize(
    "change",
    [
        {"peers": [{"address": "10.0.0.1:80", "zone": "", "have": "AAAAAA=="}]},
        {"peers": [{"address": f"10.0.0.{n}:80", "zone": "", "have": "AAA="} for n in range(65)]},
        {"grants": "//8="},
        {"again_after_s": 0},
        {"again_after_s": 1e9},
    ],
)
def test_an_odd_answer_is_refused(change: dict[str, object]) -> None:
    good = json.loads(encode_answer(PeerAnswer((), 0, 1.0, 1), 9))
    assert decode_answer(json.dumps(good).encode(), 9, loopback_allowed=False).again_after_s == 1.0
    with pytest.raises(MessageRefused):
        decode_answer(json.dumps(good | change).encode(), 9, loopback_allowed=False)


def test_a_peer_at_an_odd_address_is_left_out_and_the_others_stay() -> None:
    addresses = ("127.0.0.1:80", "169.254.169.254:80", "elsewhere:80", "10.0.0.1:80")
    answer = PeerAnswer(tuple(PeerFacts(address, "", 0b1) for address in addresses), 0b1, 1.0, 4)
    for loopback_allowed, believed in ((False, addresses[3:]), (True, (addresses[0], addresses[3]))):
        found = decode_answer(encode_answer(answer, 9), 9, loopback_allowed=loopback_allowed)
        assert tuple(peer.address for peer in found.peers) == believed
        assert found.grants == 0b1
