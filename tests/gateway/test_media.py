"""Media: URLs that an engine may fetch."""

from typing import Any

import pytest

from functions.api.ids import TenantId
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.media import admit_media, host_problem, media_problem, url_problem

OUTSIDE = [
    "https://images.example.com/cat.png",
    "https://1.1.1.1/cat.png",
    "https://[2606:4700:4700::1111]/cat.png",
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:image/png;base64,AA==",
]
INSIDE = [
    "http://images.example.com/cat.png",
    "file:///etc/passwd",
    "ftp://example.com/x",
    "//example.com/x",
    "https://localhost/x",
    "https://localhost./x",
    "https://metadata/x",
    "https://api.local/x",
    "https://db.prod.svc.cluster.local/x",
    "https://metadata.google.internal/x",
    "https://127.0.0.1/x",
    "https://127.1/x",
    "https://2130706433/x",
    "https://0x7f.0.0.1/x",
    "https://0x7f.1/x",
    "https://10.0.0.1/x",
    "https://169.254.169.254/latest/meta-data",
    "https://168.63.129.16/x",
    "https://[::1]/x",
    "https://[::ffff:127.0.0.1]/x",
    "https://[64:ff9b::7f00:1]/x",
    "https://[fe80::1%25eth0]/x",
    "https://user@example.com/x",
    "https://127.0.0.%31/x",
    "https://localhos%74.example.com/x",
    "https://example.com\\@127.0.0.1/x",
    "https://exa\tmple.com/x",
    "https://",
    "https://[",
    "https://example.com/" + "a" * 2048,
    "data:" + "a" * (3 * 1024 * 1024),
    "",
    5,
    ["https://example.com"],
]


@pytest.mark.parametrize("url", OUTSIDE)
def test_public_urls_pass(url: str) -> None:
    assert url_problem(url) is None


@pytest.mark.parametrize("url", INSIDE, ids=[str(url)[:40] for url in INSIDE])
def test_internal_urls_are_refused(url: Any) -> None:
    assert url_problem(url) is not None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://10.0.0.1/x"}},
        {"type": "image_url", "image_url": "http://10.0.0.1/x"},
        {"type": "text", "text": "hi", "image_url": {"url": "http://10.0.0.1/x"}},
        {"image_url": "http://10.0.0.1/x"},
        {"type": "input_image", "image_url": "http://10.0.0.1/x"},
        {"type": "input_file", "file_url": "http://10.0.0.1/x"},
        {"type": "audio_url", "audio_url": {"url": "http://10.0.0.1/x"}},
        {"type": "video_url", "video_url": {"url": "http://10.0.0.1/x"}},
        {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/x"}},
        {"type": "image", "source": {"type": "base64", "url": "http://10.0.0.1/x"}},
        {"type": "image_url", "url": "http://10.0.0.1/x"},
    ],
)
def test_every_shape_of_media_part_is_checked(part: dict[str, Any]) -> None:
    assert media_problem(part) is not None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "see http://10.0.0.1/x"},
        {"type": "image_url", "image_url": {"url": "https://images.example.com/cat.png", "detail": "low"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}},
        {"type": "tool_result", "tool_use_id": "1", "content": "10.0.0.1"},
    ],
)
def test_harmless_parts_pass(part: dict[str, Any]) -> None:
    assert media_problem(part) is None


PICTURE = {"type": "image_url", "image_url": {"url": "https://images.example.com/cat.png"}}
IN_PLACES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [PICTURE]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [PICTURE]}]}]},
    {"messages": [{"role": "user", "content": [{"type": "document", "source": {"content": [PICTURE]}}]}]},
    {"input": [{"type": "message", "content": [{"type": "input_image", "image_url": "https://images.example.com/x"}]}]},
    {"input": [{"type": "function_call_output", "output": [{"type": "input_file", "file_url": "https://a.b/x"}]}]},
    {"system": [{"type": "image", "source": {"type": "url", "url": "HTTPS://images.example.com/x"}}]},
    {"query": {"content": [PICTURE]}},
    {"documents": ["a", {"content": [PICTURE]}]},
    {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://x.y/v.mp4"}}]}]},
]


@pytest.mark.parametrize("body", IN_PLACES, ids=[str(index) for index in range(len(IN_PLACES))])
def test_media_host_not_allowed_by_the_operator_is_refused(body: dict[str, Any]) -> None:
    """A tenant's public name can point anywhere by the time that the engine resolves it."""
    with pytest.raises(RequestRejected) as refused:
        admit_media(body, b"pepper", TenantId("acme"), frozenset({"cdn.example.com"}))
    assert (refused.value.answer.status, refused.value.answer.code) == (400, "media_host_not_allowed")


def test_allowed_media_hosts_and_data_urls_pass() -> None:
    named = frozenset({"images.example.com"})
    for url in ("https://images.example.com/x", "https://IMAGES.example.com:443/x", "data:image/png;base64,AA=="):
        part = {"type": "image_url", "image_url": {"url": url}}
        admit_media({"messages": [{"role": "user", "content": [part]}]}, b"pepper", TenantId("acme"), named)
        assert host_problem(part, named) is None
    for host in ("evil-images.example.com", "images.example.com.evil.com", "example.com", "x.images.example.com"):
        assert host_problem({"image_url": f"https://{host}/x"}, named) is not None
