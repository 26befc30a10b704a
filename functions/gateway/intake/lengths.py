"""Length limits of a tenant's tier: checks the requested lengths and sets the output limit for the engine.

The output limit is exact: if the request allows more, the engine gets the cap as `max_tokens`. The context limit is
exact if the cap is the pool's window or larger, because the engine itself rejects. Below that, 4 bytes of prompt text
count as one token, because nothing here tokenises (token ids are counted one by one).

Neighbours: `functions.decisions.quota.caps` decides; `intake` calls this once fields and model are known.
"""

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from functions.api.snapshot import QuotaEntry
from functions.decisions.quota import caps as quota_caps
from functions.decisions.quota.caps import LengthRequest, OverCap
from functions.gateway.errors import ErrorAnswer, OverQuota
from functions.gateway.intake.json_body import JsonObject

BYTES_PER_TOKEN = 4  # English under a 50k-word BPE
_LEAST_BYTES_PER_TOKEN = 2  # lower bound for any body: a token id and its comma
_TEMPLATE_FIELDS = ("tools", "functions", "documents", "chat_template_kwargs")  # fields that templates add to prompts
_AROUND = ("instructions", "tools", "chat_template_kwargs")  # fields that /v1/responses puts before its input
_NOT_TEXT = frozenset(
    {"type", "source", "image_url", "image_embeds", "audio_url", "input_audio", "audio_embeds", "video_url"}
)


PromptField = Literal["messages", "prompt", "input"]


@dataclass(frozen=True, slots=True)
class OutputFields:
    """Fields of a route that limit an answer's length, and the field of its prompt."""

    prompt: PromptField
    names: tuple[str, ...]  # the engine uses the first one that is set
    default_tokens: int | None = None  # output length if none is set; None: to the end of the context window
    has_choices: bool = False  # a request may ask for `n` answers


def apply_caps(
    parsed: JsonObject, output: OutputFields, field: str, quota: QuotaEntry, body_bytes: int, *, window_tokens: int
) -> None:
    """Lower or set the output length in `field`, the one in force, as the tier's caps require.

    Raises OverQuota (400) if the request cannot be made to fit them.
    """
    caps = quota.limits
    if caps.max_output_tokens is None and caps.max_context_tokens is None:
        return
    request = LengthRequest(
        parsed.get(field), parsed.get("min_tokens"), output.default_tokens or window_tokens, prompt_tokens=0
    )
    granted = quota_caps.grant(request, caps)
    if _prompt_matters(request, granted, body_bytes, caps.max_context_tokens, window_tokens):
        granted = quota_caps.grant(request._replace(prompt_tokens=prompt_tokens(parsed, output.prompt)), caps)
    if isinstance(granted, OverCap):
        raise _over(granted, field, output.prompt, quota.name)
    if granted is not None:
        parsed[field] = granted


def field_in_force(parsed: JsonObject, names: tuple[str, ...]) -> str:
    """Return the first of these names of length fields that the body sets, or the last name if it sets none."""
    for name in names:
        if parsed.get(name) is not None:
            return name
    return names[-1]


def _prompt_matters(
    request: LengthRequest, granted: int | OverCap | None, body_bytes: int, context_cap: int | None, window_tokens: int
) -> bool:
    """Return True if prompt and output together might exceed a context cap that the engine does not know."""
    if context_cap is None or context_cap >= window_tokens or isinstance(granted, OverCap):
        return False
    requested = request.output_tokens if request.output_tokens is not None else request.engine_default_tokens
    longest = granted if granted is not None else requested
    return body_bytes // _LEAST_BYTES_PER_TOKEN + longest >= context_cap


def prompt_tokens(parsed: JsonObject, field: PromptField) -> int:
    """Return the estimated tokens of the prompt in this field; of several prompts, those of the longest."""
    if field == "input":
        return (text_bytes(parsed["input"]) + text_bytes([parsed.get(name) for name in _AROUND])) // BYTES_PER_TOKEN
    if field == "messages":
        template_bytes = sum(len(orjson.dumps(parsed[name])) for name in _TEMPLATE_FIELDS if parsed.get(name))
        system_bytes = text_bytes(parsed.get("system"))  # Anthropic's field, separate from the messages
        return (system_bytes + template_bytes + sum(map(_message_bytes, parsed["messages"]))) // BYTES_PER_TOKEN
    prompt, suffix_tokens = parsed["prompt"], _prompt_tokens(parsed.get("suffix") or "")
    if type(prompt) is str or type(prompt[0]) is int:
        return suffix_tokens + _prompt_tokens(prompt)
    return suffix_tokens + max(map(_prompt_tokens, prompt))


def text_bytes(value: Any) -> int:
    """Return the bytes of all text in a value of any shape, without images and sounds, which are left to the engine.

    A token id counts as BYTES_PER_TOKEN. The parser bounds depth and size.
    """
    if type(value) is str:
        return len(value.encode())
    if type(value) is dict:
        return sum(text_bytes(inner) for name, inner in value.items() if name not in _NOT_TEXT)
    if type(value) is list:
        return sum(map(text_bytes, value))
    return BYTES_PER_TOKEN if type(value) is int else 0


def _prompt_tokens(prompt: str | list[int]) -> int:
    return len(prompt.encode()) // BYTES_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def _message_bytes(message: dict[str, Any]) -> int:
    """Return the bytes of a message's text, tool calls and other fields; images and sounds are left to the engine."""
    more = {name: value for name, value in message.items() if name not in ("role", "content")}
    more_bytes = len(orjson.dumps(more)) if more else 0
    content: str | list[dict[str, Any]] = message.get("content") or ""
    return more_bytes + (len(content.encode()) if isinstance(content, str) else sum(map(_part_bytes, content)))


def _part_bytes(part: dict[str, Any]) -> int:
    texts = [value for name, value in part.items() if name not in _NOT_TEXT and type(value) is str]
    return sum(len(text.encode()) for text in texts)


def _over(over: OverCap, output_field: str, prompt_field: str, tier: str) -> OverQuota:
    params = {"output": output_field, "min_output": "min_tokens", "prompt": prompt_field}
    param = params[over.subject]
    if over.subject == "prompt":
        found = f"The prompt is about {over.found_tokens} tokens (4 bytes of text count as one)"
    else:
        found = f"'{param}' is {over.found_tokens}"
    what = "output" if over.dimension == "max_output_tokens" else "context"
    message = (
        f"{found}; the tier '{tier}' allows {over.cap_tokens} tokens of {what}. Request less, or ask for another tier."
    )
    code = "context_length_exceeded" if what == "context" else "output_length_exceeded"
    return OverQuota(ErrorAnswer(400, "invalid_request_error", code, message, param), over.dimension)
