"""Relay of an engine's events to the client: only complete events go out, in order, for any bytes and any segments.

The first byte selects the dialect, and if the client wants usage at the end and with every event. The second byte
selects the size of the segments. The output must not depend on the segments, up to the point where an answer is found
invalid. There is one exception. If an engine names its model a second time in one event, after the first choice, the
second name is renamed only in events that the relay parses, and not in events that start like the one before. No engine
does that.
"""

import contextlib
from collections.abc import Iterable

from functions.gateway.request.answers import BadAnswer, Renaming, engine_error
from functions.gateway.request.dialects import ANTHROPIC, OPENAI, POOLING, RESPONSES, Dialect, Relay
from tests.fuzz.inputs import Input, segments

DICTIONARY = (
    'data: {"id":"1","model":"engine-name","choices":[{"delta":{"content":"x"}}]}\n\n',
    'data: {"model":"engine-name","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
    "data: [DONE]\n\n",
    'data: {"error":{"message":"m"}}\n\n',
    'event: message_start\ndata: {"message":{"model":"engine-name","usage":{"input_tokens":1}}}\n\n',
    'event: content_block_delta\ndata: {"delta":{"text":"x"}}\n\n',
    'event: message_delta\ndata: {"usage":{"output_tokens":2}}\n\n',
    "event: message_stop\ndata: {}\n\n",
    'event: response.output_text.delta\ndata: {"delta":"x"}\n\n',
    'event: response.completed\ndata: {"response":{"model":"engine-name","usage":{"output_tokens":0}}}\n\n',
    "event: error\ndata: {}\n\n",
    ": ping\n\n",
    'data: {"model":"engine-name","choices":[{"index":0,"delta":{}}],"usage":{"completion_tokens":2}}\n\n',
    '"model":"engine-name"',
    '"usage":',
    '"prompt_tokens_details":{"cached_tokens":1}',
    "\r\n\r\n",
)
ENGINE, PUBLIC = "engine-name", "acme/bot"
_MAX_EVENT_BYTES = 512
_DIALECTS = (OPENAI, RESPONSES, ANTHROPIC, POOLING)


def check(data: bytes) -> None:
    given = Input(data)
    choice, size = given.byte(), given.byte()
    dialect, keeps = _DIALECTS[choice % 4], (bool(choice & 4), bool(choice & 8))
    answer = given.rest()
    whole, whole_is_bad = _fed(dialect, keeps, [answer])
    cut, cut_is_bad = _fed(dialect, keeps, segments(answer, size or 1))
    if not (whole_is_bad or cut_is_bad):
        assert _renamed(whole) == _renamed(cut), (whole, cut)
    for out in (whole, cut):
        assert out == b"" or out.endswith(b"\n\n"), "half an event went out"
    dialect.first_sign(whole)
    engine_error(answer)
    with contextlib.suppress(BadAnswer):
        dialect.whole(answer, Renaming(ENGINE, PUBLIC))


def _renamed(events: bytes) -> bytes:
    return Renaming(ENGINE, PUBLIC).rename_fields(events)


def _fed(dialect: Dialect, keeps: tuple[bool, bool], pieces: Iterable[bytes]) -> tuple[bytes, bool]:
    relay = dialect.relay(Renaming(ENGINE, PUBLIC), *keeps, _MAX_EVENT_BYTES)
    out = b""
    try:
        for piece in pieces:
            out += relay.feed(piece)
    except BadAnswer:
        return out, True
    _counts_are_sane(relay, out)
    return out, False


def _counts_are_sane(relay: Relay, out: bytes) -> None:
    assert 0 <= relay.events <= out.count(b"\n\n"), "more events were counted than went out"
    if relay.usage is not None:
        counts = (relay.usage.prompt_tokens, relay.usage.completion_tokens, relay.usage.cached_tokens)
        assert all(0 <= count <= 10_000_000 for count in counts)
