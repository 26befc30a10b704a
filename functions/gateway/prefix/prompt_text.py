"""The text of a prompt, in one order, whatever route it came by: what is hashed for prefixes and measured for size.

It is what a chat template is likely to make of the request, but for the template's own words: tools first, then each
message's role and content. So two requests with a common beginning here have one in the engine, as far as the text
goes. Pictures and sounds stand as hashes of where they are (`prompt_media`); token ids as eight bytes each.

The separators may occur in a prompt: then two prompts can look alike here that are not, and the caller's own request is
routed to a replica that lacks its prefix. Nothing else is decided by this text.

Neighbours: `features` asks; `functions.decisions.prefix.text_blocks` hashes it.
"""

from array import array
from typing import Any, NamedTuple

import orjson

from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import OutputFields
from functions.gateway.prefix.prompt_media import lean, may_have_media

MEDIA_TOKENS = 1024  # one picture: 576 (336 pixels square) to 1,300 (a megapixel) in common models
_TEXTS = (
    *("tools", "system", "instructions", "query", "queries", "text_1", "data_1"),
    *("prompt", "input", "messages", "documents", "items", "text_2", "data_2", "tokens"),
)
_TURN = "\x1e"  # before a role, and between role and content: two bytes a message, of the template's five tokens or so


class PromptText(NamedTuple):
    text: bytes
    ids: int | None = None  # how many token ids it is, where it is nothing else
    media: int = 0  # pictures and sounds, whose tokens no byte count tells


def prompt_text(parsed: JsonObject, output: OutputFields | None) -> PromptText:
    """The prompt of a request whose fields were checked; `output` is its route's, which knows where the prompt is."""
    field = output.prompt if output is not None else ""
    if field == "messages" and "system" not in parsed:
        return _chat(parsed, parsed["messages"])
    if field == "prompt":
        prompt = parsed["prompt"]
        return PromptText(prompt.encode()) if type(prompt) is str else _prompts(prompt)
    return _other(parsed)


def _chat(parsed: JsonObject, messages: list[dict[str, Any]]) -> PromptText:
    pieces: list[str] = []
    media = 0
    tools = parsed.get("tools")
    if tools:
        pieces.append(orjson.dumps(tools).decode())
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
    """The text of a message in parts, what else is in them as its JSON; how many pictures and sounds there are."""
    media = 0
    for part in parts:
        text = part.get("text")
        if type(text) is str:
            pieces.append(text)
        else:
            rest, found = lean(part)
            media += found
            pieces.append(orjson.dumps(rest).decode())
    return media


def _add_more(pieces: list[str], message: dict[str, Any]) -> None:
    """Tool calls, names and whatever else templates render."""
    more = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    if more:
        pieces.append(orjson.dumps(more).decode())


def _prompts(prompt: list[Any]) -> PromptText:
    """Several prompts, or token ids; the engine takes each prompt for itself, and the first has the prefix."""
    if type(prompt[0]) is int:
        return PromptText(_packed(prompt), len(prompt))
    if type(prompt[0]) is str:
        return PromptText(_TURN.join(prompt).encode())
    return PromptText(b"".join([_packed(ids) for ids in prompt]), sum(map(len, prompt)))


def _packed(ids: list[int]) -> bytes:
    return array("q", ids).tobytes()


def _other(parsed: JsonObject) -> PromptText:
    """Routes of other shapes: every field that holds text, what is no text itself as its JSON."""
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
