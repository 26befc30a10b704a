"""Pictures, sounds and files in a prompt, by a hash of each in their place.

What is sent as base64 is no text: megabytes of it are some hundred tokens to a model, and counted as text they would be
more than any tenant's budget. So where a content part points at something (a URL, or bytes in base64), the pointer
becomes 32 hex digits, and is counted. What merely has such a name, as a tool's argument `file` may, stays.

Worked example (test_a_picture_of_a_megabyte_is_a_hash): one message with a picture of 1 MB in base64 is 100 bytes of
text and one piece of media, whatever route it came by.

Neighbours: `prompt_text` asks; `media` judges where such pointers may lead.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from xxhash import xxh3_128_hexdigest

_POINTERS = frozenset(
    (
        *("image_url", "audio_url", "video_url", "file_url", "image", "audio", "video", "file"),
        *("input_audio", "source", "file_data", "image_embeds", "audio_embeds"),
    )
)
_RAW = frozenset(("file_data", "image_embeds", "audio_embeds"))  # base64 without a URL around it
_NEEDLES = tuple(f'"{name}":'.encode() for name in sorted(_POINTERS))
_SCHEMES = ("data:", "https:", "http:")
_INNER = ("url", "data", "file_data")


def may_have_media(document: bytes) -> bool:
    """Whether JSON has a name that a pointer has: a look at its bytes, for most have none."""
    return any(needle in document for needle in _NEEDLES)


def lean(value: Any) -> tuple[Any, int]:
    """The value with hashes in the place of media, and how many there were; a copy only where there were some.

    Depth and size are bounded by intake: the worst body that it lets pass takes about as long here as its parsing did.
    """
    if type(value) is list:
        return _lean_items(value, enumerate(value))
    if type(value) is dict:
        return _lean_items(value, value.items())
    return value, 0


def _lean_items(value: Any, items: Iterable[tuple[Any, Any]]) -> tuple[Any, int]:
    media, kept = 0, value
    for key, inner in items:
        if key in _POINTERS and _is_media(key, inner):
            less, more = xxh3_128_hexdigest(orjson.dumps(inner)), 1
        elif type(inner) is dict or type(inner) is list:
            less, more = lean(inner)
        else:
            continue
        if more:
            kept = value.copy() if kept is value else kept
            kept[key] = less
            media += more
    return kept, media


def _is_media(name: str, value: Any) -> bool:
    if type(value) is str:
        return name in _RAW or value[:6].lower().startswith(_SCHEMES)
    if type(value) is not dict or value.get("type") == "text":  # a document of Anthropic's that is text
        return False
    return any(type(value.get(inner)) is str for inner in _INNER)
