"""Text of a prompt in a fixed order, independent of the route: hashed for prefixes and measured for size.

The text resembles what a chat template makes of the request, without the template's own words: tools first, then each
message's role and content. Two requests with a common beginning here have one in the engine too, as far as the text
goes. Token ids are eight bytes each. Pictures, sounds and files are replaced by hashes, because base64 is not text:
megabytes of it are some hundred tokens to a model. In a content part that points at something (a URL, or bytes in
base64), the pointer becomes 32 hex digits and is counted. A field that merely has such a name, like a tool's argument
`file`, is unchanged. Worked example (test_a_picture_of_a_megabyte_is_a_hash): a message with a picture of 1 MB in
base64 is 100 bytes of text and one piece of media on every route.

The separators may occur in a prompt. Two different prompts can then look alike, and the caller's own request may be
routed to a replica without its prefix. The text decides nothing else.

`features` uses it, `functions.decisions.prefix.block_names` hashes it, and `media` checks where pointers may lead.
"""

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_128_hexdigest

from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import BYTES_PER_TOKEN, OutputFields

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
    """Return True if JSON contains the name of a pointer. This byte search is fast, because most bodies have none."""
    return any(needle in document for needle in _NEEDLES)


def lean(value: Any) -> tuple[Any, int]:
    """Return the value with media replaced by hashes, and the number of media. It is copied only if it has media.

    Intake limits depth and size: the worst body that it admits takes about as long here as its parsing did.
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
    if type(value) is not dict or value.get("type") == "text":  # a text document in Anthropic's format
        return False
    return any(type(value.get(inner)) is str for inner in _INNER)


MEDIA_TOKENS = 1024  # one picture: 576 (336 pixels square) to 1,300 (a megapixel) in common models
# Fields that become part of the prompt, over all routes.
_AROUND_MESSAGES = ("tools", "functions", "documents", "chat_template_kwargs")
_ANY_AROUND_MESSAGES = frozenset(_AROUND_MESSAGES)
_TEXTS = (
    *("tools", "system", "instructions", "instruction", "chat_template_kwargs", "query", "queries", "text_1", "data_1"),
    *("prompt", "input", "messages", "documents", "items", "text_2", "data_2", "tokens"),
)
_TURN = "\x1e"  # separates roles and contents: two bytes per message, for the template's five tokens or so


class PromptText(NamedTuple):
    text: bytes
    ids: int | None = None  # number of token ids, if the prompt consists of nothing else
    media: int = 0  # pictures and sounds, whose tokens do not follow from their bytes


def prompt_text(parsed: JsonObject, output: OutputFields | None) -> PromptText:
    """Return the prompt of a request with checked fields. `output` says where the route's prompt is."""
    field = output.prompt if output is not None else ""
    if field == "messages" and "system" not in parsed:
        return _chat(parsed, parsed["messages"])
    if field == "prompt":
        return _completion(parsed["prompt"], parsed.get("suffix"))
    return _other(parsed)


def _chat(parsed: JsonObject, messages: list[dict[str, Any]]) -> PromptText:
    pieces: list[str] = []
    media = 0
    if not _ANY_AROUND_MESSAGES.isdisjoint(parsed):
        pieces += [orjson.dumps(parsed[name]).decode() for name in _AROUND_MESSAGES if parsed.get(name)]
    for message in messages:
        pieces.append(message["role"])
        content = message.get("content")
        if type(content) is str:
            pieces.append(content)
        elif content:
            media += _add_parts(pieces, content)
        if len(message) > 2:
            _add_more(pieces, message)
    return PromptText(_TURN.join(pieces).encode(), None, media)


def _add_parts(pieces: list[str], parts: list[dict[str, Any]]) -> int:
    """Append the parts of a message to `pieces`: text as it is, the rest as JSON. Return the number of media."""
    media = 0
    for part in parts:
        text = part.get("text")
        if type(text) is str:
            pieces.append(text)
            if len(part) > 2:
                media += _add_rest(pieces, part)
        else:
            rest, found = lean(part)
            media += found
            pieces.append(orjson.dumps(rest).decode())
    return media


def _add_rest(pieces: list[str], part: dict[str, Any]) -> int:
    """Append the other fields of a text part to `pieces` as JSON; return the number of media in them.

    An engine may read them as a picture, or a template may render them.
    """
    rest, found = lean({name: value for name, value in part.items() if name not in ("type", "text")})
    pieces.append(orjson.dumps(rest).decode())
    return found


def _add_more(pieces: list[str], message: dict[str, Any]) -> None:
    """Append a message's fields other than role and content (tool calls, names) to `pieces` as JSON, if any."""
    more = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    if more:
        pieces.append(orjson.dumps(more).decode())


def _completion(prompt: Any, suffix: str | None) -> PromptText:
    """Return the prompt of a completion: the text before the answer and, with a suffix, the text after it."""
    found = PromptText(prompt.encode()) if type(prompt) is str else _prompts(prompt)
    if not suffix:
        return found
    after = suffix.encode()
    ids = found.ids + len(after) // BYTES_PER_TOKEN if found.ids is not None else None
    return PromptText(found.text + _TURN.encode() + after, ids)


def _prompts(prompt: list[Any]) -> PromptText:
    """Return several prompts or token ids as one text. The engine separates prompts; the first has the prefix."""
    if type(prompt[0]) is int:
        return PromptText(_packed(prompt), len(prompt))
    if type(prompt[0]) is str:
        return PromptText(_TURN.join(prompt).encode())
    return PromptText(b"".join([_packed(ids) for ids in prompt]), sum(map(len, prompt)))


def _packed(ids: list[int]) -> bytes:
    return array("q", ids).tobytes()


def _other(parsed: JsonObject) -> PromptText:
    """Return the prompt of other routes: all their text fields; those that are not strings as JSON."""
    values = [parsed[name] for name in _TEXTS if parsed.get(name) is not None]
    if len(values) == 1 and _are_ids(values[0]):
        return PromptText(_packed(values[0]), len(values[0]))
    texts: list[bytes] = []
    media = 0
    for value in values:
        if type(value) is str:
            texts.append(value.encode())
            continue
        document = orjson.dumps(value)
        if may_have_media(document):
            rest, found = lean(value)
            media += found
            document = orjson.dumps(rest)
        texts.append(document)
    return PromptText(_TURN.encode().join(texts), None, media)


def _are_ids(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(item) is int and 0 <= item < 2**63 for item in value)
