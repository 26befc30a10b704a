"""Length of a request against its tenant's tier: what is requested, and what is passed on to the engine.

Output is exact: the engine is given the cap as `max_tokens` where the request leaves more open. Context is exact where
the cap is the pool's window or above, since the engine itself refuses; below that a prompt's text counts as 4 bytes a
token, for nothing here tokenises (token ids are counted one by one).

Neighbours: `functions.decisions.quota.caps` decides; `intake` calls this once a request's fields and model are known.
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
_LEAST_BYTES_PER_TOKEN = 2  # of a body, whatever is in it: a token id and its comma
_TEMPLATE_FIELDS = ("tools", "functions", "documents", "chat_template_kwargs")  # what templates put into prompts
_AROUND = ("instructions", "tools", "chat_template_kwargs")  # what /v1/responses puts before its input
_NOT_TEXT = frozenset(
    {"type", "source", "image_url", "image_embeds", "audio_url", "input_audio", "audio_embeds", "video_url"}
)


PromptField = Literal["messages", "prompt", "input"]


@dataclass(frozen=True, slots=True)
class OutputFields:
    """How a route says what to answer, and how long."""

    prompt: PromptField
    names: tuple[str, ...]  # the one that the engine heeds first
    default_tokens: int | None = None  # where none of them is given; None: to the end of the context window
    has_choices: bool = False  # `n` answers may be asked for


def hold_to_caps(
    parsed: JsonObject, output: OutputFields, field: str, quota: QuotaEntry, body_bytes: int, *, window_tokens: int
) -> None:
    """Bound the output that `parsed` asks for in `field`, the one in force; raises OverQuota (400) where it asks for
    more than the tier allows."""
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
    """The field that says how long the answer may be, of those that a route has; it may be absent."""
    for name in names:
        if parsed.get(name) is not None:
            return name
    return names[-1]


def _prompt_matters(
    request: LengthRequest, granted: int | OverCap | None, body_bytes: int, context_cap: int | None, window_tokens: int
) -> bool:
    """Whether prompt and output together might pass a context cap that the engine does not see."""
    if context_cap is None or context_cap >= window_tokens or isinstance(granted, OverCap):
        return False
    requested = request.output_tokens if request.output_tokens is not None else request.engine_default_tokens
    longest = granted if granted is not None else requested
    return body_bytes // _LEAST_BYTES_PER_TOKEN + longest >= context_cap


def prompt_tokens(parsed: JsonObject, field: PromptField) -> int:
    """About how many tokens the prompt is; of several prompts, the longest."""
    if field == "input":
        return (text_bytes(parsed["input"]) + text_bytes([parsed.get(name) for name in _AROUND])) // BYTES_PER_TOKEN
    if field == "messages":
        template_bytes = sum(len(orjson.dumps(parsed[name])) for name in _TEMPLATE_FIELDS if parsed.get(name))
        system_bytes = text_bytes(parsed.get("system"))  # Anthropic's, beside the messages
        return (system_bytes + template_bytes + sum(map(_message_bytes, parsed["messages"]))) // BYTES_PER_TOKEN
    prompt, suffix_tokens = parsed["prompt"], _prompt_tokens(parsed.get("suffix") or "")
    if type(prompt) is str or type(prompt[0]) is int:
        return suffix_tokens + _prompt_tokens(prompt)
    return suffix_tokens + max(map(_prompt_tokens, prompt))


def text_bytes(value: Any) -> int:
    """Of all text in a value of any shape; images and sounds are the engine's to count. A token id counts as one.

    Its depth and size are bounded where the body is parsed.
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
    """Of its text and its tool calls; images and sounds are the engine's to count."""
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
        f"{found}; the tier '{tier}' allows {over.cap_tokens} tokens of {what}. Ask for less, or for another tier."
    )
    code = "context_length_exceeded" if what == "context" else "output_length_exceeded"
    return OverQuota(ErrorAnswer(400, "invalid_request_error", code, message, param), over.dimension)
