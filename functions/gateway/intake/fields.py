"""Field tables of chat and completions: which values a request's fields may have, read top to bottom.

The engine checks much of this too, but it answers some broken values with 500 and others with a crash, and its limits
are made for one trusted user. Fields that are not in a table pass on as they are (engines have many of their own),
except those by which a caller would reach past the platform.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

from functions.gateway.errors import bad_request
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.media import media_problem
from functions.gateway.limits import Limits

Check = Callable[[Any], str | None]  # what is wrong with a value, or None

# Set by the platform alone. `cache_salt` is replaced rather than refused: SDKs send it in good faith.
_PLATFORM_FIELDS = ("priority", "kv_transfer_params", "ec_transfer_params", "request_id", "vllm_xargs")

INT32_MAX = 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def check_fields(body: JsonObject, table: dict[str, Check]) -> None:
    """Raises Refused (400, with param) at the table's first field whose value is wrong. Null means absent."""
    if not body.keys().isdisjoint(_PLATFORM_FIELDS):
        _refuse_platform_fields(body)
    if len(body) > len(table):
        _refuse_first(body, table)
        return
    for name, value in body.items():  # most have five fields or so, of a table's thirty
        check = table.get(name)
        if check is not None and value is not None and check(value) is not None:
            _refuse_first(body, table)


def _refuse_platform_fields(body: JsonObject) -> None:
    for name in _PLATFORM_FIELDS:
        if body.get(name) is not None:
            raise bad_request(f"'{name}' is set by the platform; leave it out.", param=name)


def _refuse_first(body: JsonObject, table: dict[str, Check]) -> None:
    """Of several that are wrong, the one named does not depend on the order in which a client wrote them."""
    for name, check in table.items():
        value = body.get(name)
        problem = check(value) if value is not None else None
        if problem is not None:
            raise bad_request(f"'{name}' {problem}.", param=name)


def chat_table(limits: Limits) -> dict[str, Check]:
    return common_table(limits) | {
        "messages": messages_check(limits.messages),
        "tools": objects(limits.tools, "tool"),
        "tool_choice": text_or_object,
        "response_format": object_check,
        "store": boolean,
        "max_completion_tokens": integer(1, INT32_MAX),
        "max_tokens": integer(1, INT32_MAX),
        "logprobs": boolean,
        "top_logprobs": integer(0, 20),
        "parallel_tool_calls": boolean,
    }


def completion_table(limits: Limits) -> dict[str, Check]:
    return common_table(limits) | {
        "prompt": _prompt(limits.prompts),
        "max_tokens": integer(0, INT32_MAX),
        "best_of": integer(1, limits.choices),
        "echo": boolean,
        "logprobs": integer(0, 20),
        "suffix": text,
    }


def tokenize_table(limits: Limits) -> dict[str, Check]:
    return {
        "messages": messages_check(limits.messages),
        "prompt": text,
        "add_special_tokens": boolean,
        "add_generation_prompt": boolean,
        "return_token_strs": boolean,
        "tools": objects(limits.tools, "tool"),
    } | session_table(limits)


def detokenize_table(limits: Limits) -> dict[str, Check]:
    return {"tokens": token_ids} | session_table(limits)


def common_table(limits: Limits) -> dict[str, Check]:
    return {
        "stream": boolean,
        "stream_options": _stream_options,
        "n": integer(1, limits.choices),
        "stop": stop_check(limits.stop_strings),
        "seed": integer(_INT64_MIN, _INT64_MAX),
        "temperature": number(0.0, 100.0),
        "top_p": number(0.0, 1.0),
        "top_k": integer(-1, INT32_MAX),
        "min_p": number(0.0, 1.0),
        "presence_penalty": number(-2.0, 2.0),
        "frequency_penalty": number(-2.0, 2.0),
        "repetition_penalty": number(0.0, 100.0),
        "logit_bias": _logit_bias(limits.logit_bias_entries),
        "min_tokens": integer(0, INT32_MAX),
        "user": text,
    } | session_table(limits)


def session_table(limits: Limits) -> dict[str, Check]:
    """What admission reads on every route."""
    return {
        "service_tier": text,
        "session_id": _short_text(limits.session_chars),
        "prompt_cache_key": _short_text(limits.session_chars),
    }


def boolean(value: Any) -> str | None:
    return None if type(value) is bool else "must be true or false"


def text(value: Any) -> str | None:
    return None if type(value) is str else "must be a string"


def _short_text(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not str:
            return "must be a string"
        return None if len(value) <= limit else f"is over {limit} characters"

    return check


def object_check(value: Any) -> str | None:
    return None if type(value) is dict else "must be an object"


def text_or_object(value: Any) -> str | None:
    return None if type(value) in (str, dict) else "must be a string or an object"


def integer(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        ok = type(value) is int and low <= value <= high  # a bool is no int here
        return None if ok else f"must be an integer from {low} to {high}"

    return check


def number(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        ok = type(value) in (int, float) and isfinite(value) and low <= value <= high
        return None if ok else f"must be a number from {low:g} to {high:g}"

    return check


def objects(limit: int, what: str) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list or any(type(item) is not dict for item in value):
            return f"must be an array of {what} objects"
        return None if len(value) <= limit else f"has {len(value)} entries; the most is {limit}"

    return check


def stop_check(limit: int) -> Check:
    def check(value: Any) -> str | None:
        strings = [value] if type(value) is str else value
        if type(strings) is not list or any(type(item) is not str for item in strings):
            return "must be a string or an array of strings"
        return None if len(strings) <= limit else f"has {len(strings)} strings; the most is {limit}"

    return check


def _logit_bias(limit: int) -> Check:
    bias = number(-100.0, 100.0)

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return "must be an object of token ids and numbers"
        if len(value) > limit:
            return f"has {len(value)} entries; the most is {limit}"
        if any(not _is_token_id(key) or bias(number) for key, number in value.items()):
            return "must map token ids (digits) to numbers from -100 to 100"
        return None

    return check


def _is_token_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 10  # int() of thousands of digits raises in the engine


def _stream_options(value: Any) -> str | None:
    if type(value) is not dict:
        return "must be an object"
    if any(type(value.get(name)) not in (bool, type(None)) for name in ("include_usage", "continuous_usage_stats")):
        return "has an include_usage or continuous_usage_stats that is not true or false"
    return None


def token_ids(value: Any) -> str | None:
    ok = type(value) is list and all(type(token) is int and 0 <= token <= _INT64_MAX for token in value)
    return None if ok else "must be an array of token ids"


def _prompt(limit: int) -> Check:
    wrong = "must be a string, an array of strings, an array of token ids, or an array of such arrays"

    def check(value: Any) -> str | None:
        if type(value) is str:
            return None if value else "must not be empty"
        if type(value) is not list or not value:
            return wrong
        if type(value[0]) is int:
            return None if token_ids(value) is None else wrong
        if len(value) > limit:
            return f"has {len(value)} prompts; the most is {limit}"
        uniform = all(type(item) is str for item in value) or all(item and token_ids(item) is None for item in value)
        return None if uniform else wrong

    return check


def messages_check(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list or not value:
            return "must be a non-empty array of messages"
        if len(value) > limit:
            return f"has {len(value)} messages; the most is {limit}"
        for index, message in enumerate(value):
            problem = _message(message)
            if problem is not None:
                return f"has a wrong message at index {index}: {problem}"
        return None

    return check


def _message(message: Any) -> str | None:
    if type(message) is not dict:
        return "it must be an object with role and content"
    if type(message.get("role")) is not str or not message["role"]:
        return "role must be a string such as system, user or assistant"
    content = message.get("content")
    if content is None:
        return None if message["role"] == "assistant" else "content is missing"
    if type(content) is str:
        return None
    if type(content) is list and content and all(_is_part(part) for part in content):
        return next((problem for part in content if (problem := media_problem(part)) is not None), None)
    return "content must be a string or an array of {type, …} parts"


def _is_part(part: Any) -> bool:
    return type(part) is dict and type(part.get("type")) is str and type(part.get("text", "")) is str
