"""Prompt media: media count as media on every route, and look-alikes stay text."""

from typing import Any

import pytest

from functions.gateway.intake.routes import CHAT, MESSAGES, RESPONSES_ROUTE, Route
from functions.gateway.prefix.prompt_text import lean, prompt_text

BASE64 = "QUJD" * 250_000
DATA_URL = f"data:image/png;base64,{BASE64}"


@pytest.mark.parametrize(
    ("route", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": DATA_URL}}),
        (CHAT, {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}),
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
        (RESPONSES_ROUTE, {"type": "input_image", "image_url": DATA_URL}),
        (RESPONSES_ROUTE, {"type": "input_file", "file_data": BASE64}),
    ],
)
@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}], ids=["alone", "with a system prompt"])
def test_a_picture_of_a_megabyte_is_a_hash(route: Route, part: dict[str, Any], more: dict[str, Any]) -> None:
    field = "input" if route is RESPONSES_ROUTE else "messages"
    parsed = {field: [{"role": "user", "content": [part]}], **more}
    found = prompt_text(parsed, route.output)
    assert (found.media, found.ids) == (1, None) and len(found.text) < 250


def test_different_pictures_give_different_texts() -> None:
    one, other = (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"data": data}}]}], "system": "s"}
        for data in ("QUJD", "QUJE")
    )
    assert prompt_text(one, MESSAGES.output).text != prompt_text(other, MESSAGES.output).text


def test_tool_result_counts_as_text() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "word " * 20_000}
    found = prompt_text({"messages": [{"role": "user", "content": [result]}]}, MESSAGES.output)
    assert found.media == 0 and len(found.text) > 100_000


@pytest.mark.parametrize(
    "value",
    [
        {"type": "tool_use", "input": {"file": "main.py", "source": "disk", "image": 7, "audio": None}},
        {"type": "document", "source": {"type": "text", "data": "a long document"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
        ["image_url", {"properties": {"file_url": {"type": "string"}}}],
    ],
)
def test_field_names_alone_are_not_media(value: Any) -> None:
    assert lean(value) == (value, 0)


def test_pictures_in_tool_results_are_found() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": BASE64}}
    kept, media = lean([{"type": "tool_result", "content": [picture, picture, {"type": "text", "text": "x"}]}])
    assert media == 2 and kept[0]["content"][2] == {"type": "text", "text": "x"}
    assert kept[0]["content"][0] == kept[0]["content"][1] and len(kept[0]["content"][0]["source"]) == 32
