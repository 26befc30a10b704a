"""API keys: minted keys parse, mistyped ones do not, and the secret is never shown."""

import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import keys

ENTROPY = bytes(range(32))
KEY = keys.mint("demo", "ci", ENTROPY)


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.from_regex(keys.KEY_ID_PATTERN, fullmatch=True))
def test_what_was_minted_parses(entropy: bytes, key_id: str) -> None:
    key = keys.mint("demo", key_id, entropy)
    parsed = keys.parse(key)
    assert parsed is not None
    assert (parsed.key_id, len(parsed.secret)) == (key_id, keys.SECRET_CHARS)
    assert key.startswith(f"shoal_demo_{key_id}_{parsed.secret}")


def test_every_single_wrong_character_is_noticed() -> None:
    for index, character in enumerate(KEY):
        wrong = KEY[:index] + ("b" if character != "b" else "c") + KEY[index + 1 :]
        assert keys.parse(wrong) is None, wrong


@pytest.mark.parametrize(
    "text", ["", "shoal", KEY[:-1], KEY + "a", KEY + "\n", " " + KEY, KEY.upper(), "a" * 5000, "é" * 60, "\x00"]
)
def test_invalid_keys_parse_to_none(text: str) -> None:
    assert keys.parse(text) is None


@settings(deadline=None)
@given(st.text(max_size=140))
def test_no_text_makes_parsing_raise(text: str) -> None:
    assert keys.parse(text) is None


def test_different_entropy_makes_different_secrets() -> None:
    secrets = {keys.parse(keys.mint("demo", "ci", bytes([n]) + bytes(31))).secret for n in range(256)}  # type: ignore[union-attr]
    assert len(secrets) == 256


@pytest.mark.parametrize(
    ("env", "key_id", "entropy"),
    [
        ("demo", "ci", bytes(31)),
        ("Demo", "ci", ENTROPY),
        ("demo", "c_i", ENTROPY),
        ("demo", "", ENTROPY),
        ("demo", "c" * 33, ENTROPY),
        ("d" * 17, "ci", ENTROPY),
    ],
)
def test_minting_refuses_what_would_not_parse(env: str, key_id: str, entropy: bytes) -> None:
    with pytest.raises(ValueError, match=r"32 random bytes|cannot carry .*: 1 to (16|32) "):
        keys.mint(env, key_id, entropy)


def test_longest_id_and_secret_parse() -> None:
    assert keys.parse(keys.mint("d" * 16, "c" * 32, ENTROPY)) is not None


def test_a_repr_hides_the_secret() -> None:
    parsed = keys.parse(KEY)
    assert parsed is not None
    assert parsed.secret not in repr(parsed)
    assert parsed.secret not in f"{parsed}"


def test_the_stored_hash_is_hmac_sha256_under_the_pepper() -> None:
    assert keys.keyed_hash(b"pepper", "secret") == hmac.new(b"pepper", b"secret", "sha256").hexdigest()
    assert keys.keyed_hash(b"pepper", "secret") != keys.keyed_hash(b"other", "secret")
