"""Model references and engine names: one text, one meaning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import (
    NAME_PATTERN,
    Digest,
    ModelId,
    ModelRef,
    engine_name,
    is_incoming,
    is_name,
    parse_model_ref,
)

HEX = "0123456789abcdef" * 4
names = st.from_regex(NAME_PATTERN, fullmatch=True)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("smollm2-135m", ModelRef(ModelId("smollm2-135m"))),
        ("acme/bot", ModelRef(ModelId("acme/bot"))),
        ("acme/bot:canary", ModelRef(ModelId("acme/bot"), channel="canary")),
        ("acme/bot@v2", ModelRef(ModelId("acme/bot"), version="v2")),
        (f"acme/bot@sha256:{HEX}", ModelRef(ModelId("acme/bot"), digest=Digest(f"sha256:{HEX}"))),
        (f"base@sha256:{HEX}", ModelRef(ModelId("base"), digest=Digest(f"sha256:{HEX}"))),
        ("a.b_c-d/x", ModelRef(ModelId("a.b_c-d/x"))),
    ],
)
def test_references_are_parsed(text: str, ref: ModelRef) -> None:
    assert parse_model_ref(text) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        "A",
        "a b",
        "a:",
        "a@",
        "a:x:y",
        "a@v1:x",
        "a:x@v1",
        f"a@sha256:{HEX[:-1]}",
        f"a@sha256:{HEX.upper()}",
        "a\n",
        "-a",
        "a-",
        ".",
        "..",
        "../a",
        "a/../b",
        "ä",
        "a" * 64,
        "a" * 400,
        "a\x00",
    ],
)
def test_invalid_references_parse_to_none(text: str) -> None:
    assert parse_model_ref(text) is None


@settings(deadline=None)
@given(names, names, names)
def test_a_reference_says_what_it_was_made_of(tenant: str, name: str, selector: str) -> None:
    assert parse_model_ref(f"{tenant}/{name}:{selector}") == ModelRef(ModelId(f"{tenant}/{name}"), channel=selector)
    assert parse_model_ref(f"{tenant}/{name}@{selector}") == ModelRef(ModelId(f"{tenant}/{name}"), version=selector)


@settings(deadline=None)
@given(st.text(max_size=80))
def test_no_text_makes_parsing_raise(text: str) -> None:
    ref = parse_model_ref(text)
    assert ref is None or text.startswith(ref.id)
    assert is_name(text) == (ref is not None and "/" not in text and text == ref.id)


def test_engine_names_tell_versions_apart_and_models_apart() -> None:
    first, second = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
    assert engine_name(ModelId("acme/a"), first) == "acme/a@sha256:1111111111111111"
    assert engine_name(ModelId("acme/a"), second) == "acme/a@sha256:2222222222222222"
    assert engine_name(ModelId("acme/b"), first) == "acme/b@sha256:1111111111111111"


@pytest.mark.parametrize(
    ("channel", "ours"),
    [("incoming", True), ("incoming-2", True), ("incoming-x", False), ("incomings", False), ("my-incoming", False)],
)
def test_the_channel_that_names_what_is_being_loaded_is_the_controllers(channel: str, ours: bool) -> None:
    assert is_incoming(channel) is ours
