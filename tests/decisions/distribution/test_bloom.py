"""Bloom filter of the adapters on a disk: no false negatives, few false positives, bounded size."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName, ModelId, engine_name
from functions.decisions.distribution import bloom
from functions.decisions.distribution.bloom import MAX_BYTES, MAX_TEXT_CHARS, Bloom, build, decode


def digests(count: int, salt: str = "") -> list[Digest]:
    return [Digest("sha256:" + hashlib.sha256(f"{salt}{number}".encode()).hexdigest()) for number in range(count)]


def made(count: int) -> Bloom:
    found = build(digests(count))
    assert found is not None
    return found


def false_yes_ratio(told: Bloom) -> float:
    others = digests(20_000, salt="other")
    return sum(told.holds(digest) for digest in others) / len(others)


def test_worked_example_from_the_prologue() -> None:
    told = made(2000)
    assert (len(told.bits), told.hashes) == (2397, 7)
    assert 0.005 < false_yes_ratio(told) < 0.02


@pytest.mark.parametrize(("count", "least", "most"), [(13_673, 0.005, 0.02), (27_000, 0.06, 0.15)])
def test_filter_beyond_its_bound_keeps_its_size_and_loses_precision(count: int, least: float, most: float) -> None:
    told = made(count)
    assert len(told.encode()) <= MAX_TEXT_CHARS
    assert least < false_yes_ratio(told) < most


@given(st.integers(1, 300))
def test_filter_has_no_false_negatives(count: int) -> None:
    told = decode(made(count).encode())
    assert told is not None
    assert all(told.holds(digest) for digest in digests(count))


def test_an_adapter_is_found_by_its_name_in_the_engine() -> None:
    told = made(10)
    assert all(told.holds_adapter(engine_name(ModelId("acme/bot"), digest)) for digest in digests(10))


def test_empty_set_has_no_filter() -> None:
    assert build([]) is None
    assert build([Digest("sha256:short"), Digest("md5:" + "a" * 32)]) is None


@pytest.mark.parametrize("name", ["smollm2-135m", "acme/bot@v1", "acme/bot@sha256:xyz", "", "@"])
def test_name_without_digest_is_not_found(name: str) -> None:
    assert not Bloom(b"\xff" * 8, 7).holds_adapter(EngineName(name))


@pytest.mark.parametrize("text", ["", "A", "!!!!", "AAAA", "EQAA", "BA==", "x" * (MAX_TEXT_CHARS + 1), "Aé=="])
def test_invalid_filter_decodes_to_none(text: str) -> None:
    assert decode(text) is None


@given(st.binary(max_size=100), st.integers(0, 2**64 - 1))
def test_any_bytes_are_a_filter_or_none(content: bytes, key: int) -> None:
    text = bloom.base64.b64encode(content).decode()
    told = decode(text)
    if told is not None:
        assert told.holds(Digest(f"sha256:{key:016x}")) in (True, False)
        assert told.encode() == text
    assert len(content) <= MAX_BYTES
