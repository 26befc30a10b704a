"""Request bodies with the fields that change an answer, and vLLM's checks on them.

Unknown fields are accepted and ignored, as in vLLM. Checks that vLLM makes on the raw body (before the schema's)
raise a Refusal with vLLM's wording; those that depend on the model or the limits are in `accept`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from functions.engines.sim.refusals import invalid

_INT64 = 2**63
_SALT_CHARS = 128
_SALT_FORBIDDEN = frozenset("@/\\\x00")


class Body(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class ContentPart(Body):
    type: str = "text"
    text: str = ""


class Message(Body):
    role: str
    content: str | list[ContentPart] | None = None

    def plain_text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptionsBody(Body):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]


class GenerationBody(Body):
    """Fields that chat and plain completions share."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    seed: int | None = Field(None, ge=-_INT64, le=_INT64 - 1)
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    stream: bool | None = False
    stream_options: StreamOptionsBody | None = None
    temperature: float | None = None
    top_p: float | None = None
    response_format: ResponseFormat | None = None
    priority: int = Field(0, ge=-_INT64, le=_INT64 - 1)
    request_id: str | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _raw_checks(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            _check_cache_salt(data.get("cache_salt"))
            _check_response_format(data.get("response_format"))
            if data.get("stream_options") and not data.get("stream"):
                raise invalid("Stream options can only be defined when `stream=True`.", param="stream_options")
        return data

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def json_mode(self) -> bool:
        return self.response_format is not None and self.response_format.type in ("json_object", "json_schema")


class ChatBody(GenerationBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    echo: bool = False
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = "none"

    @model_validator(mode="before")
    @classmethod
    def _raw_chat_checks(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        _check_top_logprobs(data)
        return _with_tool_choice(data)

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(GenerationBody):
    prompt: list[Annotated[int, Field(ge=0)]] | list[list[Annotated[int, Field(ge=0)]]] | str | list[str] | None = None
    n: int = 1
    echo: bool | None = False
    logprobs: int | None = None
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _raw_completion_checks(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("prompt") in (None, ""):
            raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
        return data

    @property
    def wanted_tokens(self) -> int:
        return 16 if self.max_tokens is None else self.max_tokens


class TokenizeCompletionBody(Body):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatBody(Body):
    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    return_token_strs: bool | None = False
    tools: list[dict[str, Any]] | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=_INT64 - 1)]]


class LoadAdapterBody(BaseModel):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterBody(BaseModel):
    lora_name: str


def _check_cache_salt(salt: object) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if len(salt) > _SALT_CHARS or _SALT_FORBIDDEN.intersection(salt):
        raise invalid(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
            param="cache_salt",
        )


def _check_response_format(wanted: object) -> None:
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema" and wanted.get("json_schema") is None:
        raise invalid(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            param="response_format",
        )


def _check_top_logprobs(data: Mapping[str, Any]) -> None:
    top = data.get("top_logprobs")
    if top is None:
        return
    if not isinstance(top, int | float):
        raise invalid("`top_logprobs` must be an integer.", param="top_logprobs", value=top)
    if top < 0 and top != -1:
        raise invalid("`top_logprobs` must be a positive value or -1.", param="top_logprobs", value=top)
    if top and not data.get("logprobs"):
        raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")


def _with_tool_choice(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Default the tool choice to "auto" if there are tools. Raise EngineRefusal for `tools: []` or a choice without
    tools."""
    tools = data.get("tools")
    if tools == []:
        raise invalid(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
            param="tools",
        )
    if data.get("tool_choice", "none") not in (None, "none") and not tools:
        raise invalid("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    return {**data, "tool_choice": "auto"} if tools and "tool_choice" not in data else data


# Checks of vLLM's SamplingParams, in its order and wording.


_MAX_LOGPROBS = 20
_MAX_N = 16384


def check_sampling(body: GenerationBody, *, n: int, max_tokens: int, logprobs: int | None) -> None:
    temperature, top_p = body.temperature, body.top_p
    if n < 1:
        raise invalid(f"n must be at least 1, got {n}.")
    if n > _MAX_N:
        raise invalid(f"n must be at most {_MAX_N}, got {n}.")
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {temperature}."
        raise invalid(message, param="temperature", value=temperature)
    if temperature is not None and temperature > 2:
        message = f"temperature must be in [0, 2], got {temperature}."
        raise invalid(message, param="temperature", value=temperature)
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {top_p}.", param="top_p", value=top_p)
    if max_tokens < 1:
        raise invalid(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens", value=max_tokens)
    _check_ending(body, n=n, max_tokens=max_tokens, logprobs=logprobs)


def _check_ending(body: GenerationBody, *, n: int, max_tokens: int, logprobs: int | None) -> None:
    if body.min_tokens > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        raise invalid(message)
    if any(not stop for stop in body.stops):
        raise invalid("stop cannot contain an empty string.")
    if n > 1 and body.temperature == 0:
        raise invalid(f"n must be 1 when using greedy sampling, got {n}.")
    if logprobs is not None and logprobs > _MAX_LOGPROBS:
        raise invalid(
            f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {_MAX_LOGPROBS}",
            param="logprobs",
            value=logprobs,
            late=True,
        )
