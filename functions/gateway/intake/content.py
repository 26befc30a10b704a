"""Checks of a model's input: messages and items, their parts, and the tools offered with them.

The types of all content are checked before other code reads it, at every depth that this gateway reads. So a `type`
that is an object, or a `content` that is a number, is reported as the caller's mistake.

Neighbours: `media` checks references and ids of parts; `field_tables` has the fields.
"""

from typing import Any

from functions.gateway.intake.checks import Check, objects
from functions.gateway.intake.media import media_problem

_CALLERS_TOOLS = ("function", "custom")  # the caller runs these; an engine would run all others


def messages(limit: int) -> Check:
    return _each_message(limit, _message)


def anthropic_messages(limit: int) -> Check:
    return _each_message(limit, _anthropic_message)


def _each_message(limit: int, problem_of: Check) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list or not value:
            return "must be a non-empty array of messages"
        if len(value) > limit:
            return f"has {len(value)} messages; the most is {limit}"
        for index, message in enumerate(value):
            problem = problem_of(message)
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


def _anthropic_message(message: Any) -> str | None:
    if type(message) is not dict or message.get("role") not in ("user", "assistant", "system"):
        return "it must be an object with a role (user or assistant) and content"
    if message.get("content") is None:
        return "content is missing"
    return text_or_parts(message["content"])


def text_or_parts(content: Any) -> str | None:
    """Return what is wrong with a content, or None: null, a text, or parts that may contain parts are allowed.

    The parser bounds the depth of a body.
    """
    if type(content) is not list:
        return None if content is None or type(content) is str else "content must be a string or an array of parts"
    for part in content:
        if type(part) is not dict:
            return "content must be a string or an array of {type, …} parts"
        source = part.get("source")  # the source of a document, which may contain parts
        nested = source.get("content") if type(source) is dict else None
        problem = media_problem(part) or text_or_parts(part.get("content")) or text_or_parts(nested)
        if problem is not None:
            return problem
    return None


def items(limit: int) -> Check:
    """Return a check for the input of /v1/responses: a text, or at most `limit` messages, calls and their outputs."""

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
        return "may not refer to items by id, because none are stored: send the items themselves"
    for name in ("content", "output"):
        problem = text_or_parts(item.get(name))
        if problem is not None:
            return f"has a wrong item: {problem}"
    return None


def scored_one(value: Any) -> str | None:
    """Return what is wrong with one input of a scoring model, or None: a text or an object with parts is allowed."""
    if type(value) is str:
        return None if value else "must not be empty"
    parts = value.get("content") if type(value) is dict else None
    if type(parts) is not list or not parts or any(type(part) is not dict for part in parts):
        return "must be a string, or an object with content: an array of {type, …} parts"
    return next((problem for part in parts if (problem := media_problem(part)) is not None), None)


def scored(limit: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list:
            return scored_one(value)
        if not 1 <= len(value) <= limit:
            return f"has {len(value)} entries; it may have 1 to {limit}: send the rest in further requests"
        return next((problem for item in value if (problem := scored_one(item)) is not None), None)

    return check


def callers_tools(limit: int) -> Check:
    """Return a check for the at most `limit` tools of /v1/responses: only kinds that the caller runs are allowed.

    Engines would run other kinds of tools themselves.
    """
    shaped = objects(limit, "tool")

    def check(value: Any) -> str | None:
        problem = shaped(value)
        if problem is None and any(tool.get("type") not in _CALLERS_TOOLS for tool in value):
            return "may only have tools of type function or custom, which you run: built-in tools are not supported"
        return problem

    return check


def anthropic_tools(limit: int) -> Check:
    shaped = objects(limit, "tool")

    def check(value: Any) -> str | None:
        problem = shaped(value)
        if problem is None and any(tool.get("type", "custom") != "custom" for tool in value):
            return "may only have tools of your own (name, description, input_schema): built-in tools are not supported"
        return problem

    return check
