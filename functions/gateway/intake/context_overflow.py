"""Context overflow: a chat longer than the context window loses its oldest turns, where its tenant wants that.

    refuse (default)   nothing is done here; the tier's cap or the engine refuses with 400
    slide              `decisions.request.context_window` says which turns go; the answer's `x-shoal-context: slid=N`
    how many summarise          as slide, and what went is told to the model in a summary (`composition.summary`)

Tokens are estimated, since nothing here tokenises: by what was learnt of this tenant's text, and with a margin, so that
what is taken to fit does. Room for the answer is what the request asks for, but at most half of the window; a quarter
where it does not say.

Neighbours: `intake` asks, before the tier's caps are looked at.
"""

from collections.abc import Callable
from typing import Any

from functions.api.snapshot import QuotaEntry
from functions.decisions.request.context_window import Said, dropped, turns_in
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import OutputFields, field_in_force, text_bytes

_MARGIN_RATIO = 0.1  # of the window: estimates are off by less, once a tenant has been heard for a while
_MESSAGE_TOKENS = 5  # what a chat template writes around each

_AROUND = ("tools", "functions", "documents", "chat_template_kwargs", "response_format")

TokensOf = Callable[[int], int]  # bytes of text -> tokens


def headroom_tokens(parsed: JsonObject, output: OutputFields, quota: QuotaEntry | None, window_tokens: int) -> int:
    """What the prompt may be.

    Worked example (test_room_is_what_the_answer_leaves): window 2,048, 10 % margin, 500 tokens asked for: 1,344.
    """
    cap = quota.limits.max_context_tokens if quota is not None else None
    most = window_tokens if cap is None else min(window_tokens, cap)
    wanted = parsed.get(field_in_force(parsed, output.names))
    answer = most // 4 if wanted is None else min(wanted, most // 2)
    return int(most * (1 - _MARGIN_RATIO)) - answer


def overflow(parsed: JsonObject, room: int, tokens_of: TokensOf) -> range:
    """The indices of messages that must go for the chat to fit."""
    around = tokens_of(text_bytes([parsed.get(name) for name in _AROUND]))
    return dropped([_said(message, tokens_of) for message in parsed["messages"]], room - around)


def slide(parsed: JsonObject, gone: range) -> int:
    """Drop these messages; answers how many turns they were."""
    messages: list[dict[str, Any]] = parsed["messages"]
    lost = [Said(message["role"], 0) for message in messages[gone.start : gone.stop]]
    parsed["messages"] = messages[: gone.start] + messages[gone.stop :]
    return turns_in(lost) if lost else 0


def _said(message: dict[str, Any], tokens_of: TokensOf) -> Said:
    inner = {name: value for name, value in message.items() if name != "role"}
    return Said(message["role"], tokens_of(text_bytes(inner)) + _MESSAGE_TOKENS)
