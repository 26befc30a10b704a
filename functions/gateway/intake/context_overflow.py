"""Context overflow: drops the oldest turns of a chat that exceeds the context window, if its tenant's policy says so.

    refuse (default)   no change; the tier's cap or the engine rejects the chat with 400
    slide              `decisions.request.context_window` selects the turns; the answer has `x-shoal-context: slid=N`
    summarise          like slide, and a summary replaces the dropped turns (`composition.summary`)

Tokens are estimated, because nothing here tokenises: from what was learnt of this tenant's text, with a margin, so
that a chat estimated to fit does fit. Room for the answer is what the request asks for, but at most half of the
window, or a quarter if the request does not say.

Neighbours: `intake` calls this before the tier's caps are checked.
"""

from collections.abc import Callable
from typing import Any

from functions.api.snapshot import QuotaEntry
from functions.decisions.request.context_window import Said, messages_to_drop, turns_in
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import OutputFields, field_in_force, text_bytes

_MARGIN_RATIO = 0.1  # part of the window: the estimate's error is smaller after some requests of a tenant
_MESSAGE_TOKENS = 5  # tokens that a chat template adds around each message

_AROUND = ("tools", "functions", "documents", "chat_template_kwargs", "response_format")

TokensOf = Callable[[int], int]  # converts bytes of text to tokens


def headroom_tokens(parsed: JsonObject, output: OutputFields, quota: QuotaEntry | None, window_tokens: int) -> int:
    """Return the number of tokens that the prompt may have: window or tier's cap, less 10 % and the answer's share.

    Worked example (test_room_is_what_the_answer_leaves): window 2,048, 10 % margin, 500 tokens requested: 1,344.
    """
    cap = quota.limits.max_context_tokens if quota is not None else None
    most = window_tokens if cap is None else min(window_tokens, cap)
    wanted = parsed.get(field_in_force(parsed, output.names))
    answer = most // 4 if wanted is None else min(wanted, most // 2)
    return int(most * (1 - _MARGIN_RATIO)) - answer


def overflow(parsed: JsonObject, room: int, tokens_of: TokensOf) -> range:
    """Return the indices of messages to drop for the chat to fit `room` tokens together with its other texts."""
    around = tokens_of(text_bytes([parsed.get(name) for name in _AROUND]))
    return messages_to_drop([_said(message, tokens_of) for message in parsed["messages"]], room - around)


def slide(parsed: JsonObject, gone: range) -> int:
    """Drop the messages with the indices `gone` from the chat; return the number of dropped turns."""
    messages: list[dict[str, Any]] = parsed["messages"]
    lost = [Said(message["role"], 0) for message in messages[gone.start : gone.stop]]
    parsed["messages"] = messages[: gone.start] + messages[gone.stop :]
    return turns_in(lost) if lost else 0


def _said(message: dict[str, Any], tokens_of: TokensOf) -> Said:
    inner = {name: value for name, value in message.items() if name != "role"}
    return Said(message["role"], tokens_of(text_bytes(inner)) + _MESSAGE_TOKENS)
