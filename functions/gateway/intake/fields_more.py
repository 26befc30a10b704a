"""Field tables of the routes beside chat and completions: responses, messages, and those of pooling models.

As in `fields`: what the engine would answer with 500, or spend without bound, is refused here in words; what is not in
a table passes on. What a gateway in front of many engines cannot keep (stored responses, background work, tools that an
engine would run) is refused with what to do instead.
"""

from typing import Any

from functions.gateway.intake.fields import (
    INT32_MAX,
    Check,
    boolean,
    common_table,
    integer,
    messages_check,
    number,
    object_check,
    objects,
    session_table,
    stop_check,
    text,
    text_or_object,
    token_ids,
)
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.media import media_problem
from functions.gateway.limits import Limits

_CALLERS_TOOLS = frozenset({"function", "custom"})  # run by the caller; all others an engine would run
_INT64_MAX = 2**63 - 1
_ENCODINGS = ("float", "base64")


def responses_table(limits: Limits) -> dict[str, Check]:
    sampling = {name: check for name, check in common_table(limits).items() if name not in ("n", "stream_options")}
    return sampling | {
        "input": _responses_input(limits.messages),
        "instructions": text,
        "max_output_tokens": integer(1, INT32_MAX),
        "tools": _callers_tools(limits.tools),
        "tool_choice": text_or_object,
        "parallel_tool_calls": boolean,
        "text": object_check,
        "reasoning": object_check,
        "metadata": object_check,
        "top_logprobs": integer(0, 20),
        "store": _never("keeps nothing here: leave it out or send false, and send what was said before as input"),
        "background": _never("is not offered: leave it out, and use /v1/batches for work that may wait"),
        "previous_response_id": _unknown("names nothing here, for responses are not stored: send what was said before"),
        "conversation": _unknown("names nothing here, for responses are not stored: send what was said before"),
        "previous_input_messages": _unknown("is the engine's own: send what was said before as input"),
        "prompt": _unknown("names nothing here, for prompts are not stored: send instructions and input"),
    }


def keep_nothing(body: JsonObject) -> None:
    """The engine is never asked to store a response: the next request may well go to another."""
    body["store"] = False


def messages_table(limits: Limits) -> dict[str, Check]:
    """Anthropic's, and `min_tokens`, which engines heed here too. Their `service_tier`s say nothing of classes here."""
    return {
        "messages": _anthropic_messages(limits.messages),
        "system": _text_or_parts,
        "max_tokens": integer(1, INT32_MAX),
        "min_tokens": integer(0, INT32_MAX),
        "stop_sequences": stop_check(limits.stop_strings),
        "stream": boolean,
        "temperature": number(0.0, 100.0),
        "top_p": number(0.0, 1.0),
        "top_k": integer(-1, INT32_MAX),
        "tools": _anthropic_tools(limits.tools),
        "tool_choice": object_check,
        "thinking": object_check,
        "metadata": object_check,
    } | session_table(limits)


def embeddings_table(limits: Limits) -> dict[str, Check]:
    return _pooling(limits) | {
        "input": _inputs(limits.pooling_inputs),
        "messages": messages_check(limits.messages),
        "dimensions": integer(1, 65_536),
        "encoding_format": _one_of(_ENCODINGS),
        "embed_dtype": _one_of(("float32",)),
        "endianness": _one_of(("native", "little")),
    }


def classify_table(limits: Limits) -> dict[str, Check]:
    return _pooling(limits) | {
        "input": _inputs(limits.pooling_inputs),
        "messages": messages_check(limits.messages),
    }


def score_table(limits: Limits) -> dict[str, Check]:
    names = ("queries", "text_1", "data_1", "documents", "items", "text_2", "data_2")
    return _pooling(limits) | {name: _scored(limits.pooling_inputs) for name in names}


def rerank_table(limits: Limits) -> dict[str, Check]:
    return _pooling(limits) | {
        "query": _scored_one,
        "documents": _scored(limits.pooling_inputs),
        "top_n": integer(0, INT32_MAX),
    }


def _pooling(limits: Limits) -> dict[str, Check]:
    return {
        "user": text,
        "truncate_prompt_tokens": integer(-1, INT32_MAX),
        "max_tokens_per_query": integer(0, INT32_MAX),
        "max_tokens_per_doc": integer(0, INT32_MAX),
        "instruction": text,
        "add_special_tokens": boolean,
        "use_activation": boolean,
        "stream": _never("is not offered: an answer of numbers comes whole"),
    } | session_table(limits)


def _never(why: str) -> Check:
    """A switch that stays off."""

    def check(value: Any) -> str | None:
        return None if value is False else why

    return check


def _unknown(why: str) -> Check:
    def check(value: Any) -> str | None:
        return why

    return check


def _one_of(allowed: tuple[str, ...]) -> Check:
    def check(value: Any) -> str | None:
        return None if type(value) is str and value in allowed else f"must be one of {', '.join(allowed)}"

    return check


def _inputs(limit: int) -> Check:
    wrong = "must be a string, an array of strings, an array of token ids, or an array of such arrays"

    def check(value: Any) -> str | None:
        if type(value) is str:
            return None if value else "must not be empty"
        if type(value) is not list or not value:
            return wrong
        if type(value[0]) is int:
            return None if token_ids(value) is None else wrong
        if len(value) > limit:
            return f"has {len(value)} inputs; the most is {limit}: send the rest in further requests"
        uniform = all(type(item) is str and item for item in value) or all(
            item and token_ids(item) is None for item in value
        )
        return None if uniform else wrong

    return check


def _scored_one(value: Any) -> str | None:
    if type(value) is str:
        return None if value else "must not be empty"
    parts = value.get("content") if type(value) is dict else None
    if type(parts) is not list or not parts or any(type(part) is not dict for part in parts):
        return "must be a string, or an object with content: an array of {type, …} parts"
    return next((problem for part in parts if (problem := media_problem(part)) is not None), None)


def _scored(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list:
            return _scored_one(value)
        if not 1 <= len(value) <= limit:
            return f"has {len(value)} entries; it may have 1 to {limit}: send the rest in further requests"
        return next((problem for item in value if (problem := _scored_one(item)) is not None), None)

    return check


def _callers_tools(limit: int) -> Check:
    shaped = objects(limit, "tool")

    def check(value: Any) -> str | None:
        problem = shaped(value)
        if problem is None and any(tool.get("type") not in _CALLERS_TOOLS for tool in value):
            return "may have tools of type function or custom, which you run: engines run none for callers"
        return problem

    return check


def _anthropic_tools(limit: int) -> Check:
    shaped = objects(limit, "tool")

    def check(value: Any) -> str | None:
        problem = shaped(value)
        if problem is None and any(tool.get("type", "custom") != "custom" for tool in value):
            return "may have tools of your own (name, description, input_schema): no others are offered"
        return problem

    return check


def _responses_input(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is str:
            return None if value else "must not be empty"
        if type(value) is not list or not value or any(type(item) is not dict for item in value):
            return "must be a string or a non-empty array of items"
        if len(value) > limit:
            return f"has {len(value)} items; the most is {limit}"
        return next((problem for item in value if (problem := _item_problem(item)) is not None), None)

    return check


def _item_problem(item: dict[str, Any]) -> str | None:
    if item.get("type") == "item_reference":
        return "may not refer to items by id, for none are stored: send them whole"
    for name in ("content", "output"):
        problem = _parts_problem(item.get(name))
        if problem is not None:
            return f"has a wrong item: {problem}"
    return None


def _parts_problem(content: Any) -> str | None:
    if type(content) is not list:
        return None if content is None or type(content) is str else "content must be a string or an array of parts"
    for part in content:
        if type(part) is not dict:
            return "content must be a string or an array of {type, …} parts"
        source = part.get("source")  # of a document, which may be made of parts again
        nested = source.get("content") if type(source) is dict else None
        problem = media_problem(part) or _parts_problem(part.get("content")) or _parts_problem(nested)
        if problem is not None:
            return problem
    return None


def _text_or_parts(value: Any) -> str | None:
    return _parts_problem(value)


def _anthropic_messages(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list or not value:
            return "must be a non-empty array of messages"
        if len(value) > limit:
            return f"has {len(value)} messages; the most is {limit}"
        for index, message in enumerate(value):
            problem = _anthropic_message(message)
            if problem is not None:
                return f"has a wrong message at index {index}: {problem}"
        return None

    return check


def _anthropic_message(message: Any) -> str | None:
    if type(message) is not dict or message.get("role") not in ("user", "assistant", "system"):
        return "it must be an object with a role (user or assistant) and content"
    if message.get("content") is None:
        return "content is missing"
    return _parts_problem(message["content"])
