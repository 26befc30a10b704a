"""Server tools that a request names: expanded to functions for the model, and matched with the calls in its answer.

Pure. Each name may be called as often as its declaration allows within one request, and all tools together
`MAX_CALLS` times. Calls over a limit, or with invalid JSON, are answered with a sentence, so that the model can
continue.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from functions.api.snapshot import ToolEntry
from functions.gateway.errors import bad_request, quote
from functions.gateway.intake.json_body import JsonObject

MAX_CALLS = 32  # in one request, for all tools
MAX_ROUNDS = 8  # requests to the model for one client request
_MAX_ARGUMENTS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model requests; `problem` is set instead of arguments if it will not be made."""

    call_id: str
    name: str
    arguments: bytes = b""
    problem: str = ""


@dataclass(slots=True)
class DeclaredTools:
    """The server tools of one request, and how often each was called."""

    tools: dict[str, ToolEntry]
    called: dict[str, int] = field(default_factory=dict)

    def calls_in(self, message: JsonObject) -> list[ToolCall] | None:
        """Return a message's tool calls if all call server tools. Otherwise return None: the caller gets the answer."""
        asked = message.get("tool_calls")
        if type(asked) is not list or not asked:
            return None
        functions = [call.get("function") if type(call) is dict else None for call in asked]
        if any(type(function) is not dict or function.get("name") not in self.tools for function in functions):
            return None
        return [self._call(str(call.get("id")), call["function"]) for call in asked]

    def _call(self, call_id: str, function: JsonObject) -> ToolCall:
        name = str(function["name"])
        self.called[name] = self.called.get(name, 0) + 1
        if self.called[name] > self.tools[name].max_calls or sum(self.called.values()) > MAX_CALLS:
            return ToolCall(call_id, name, problem="This tool may not be called again in this request.")
        text = function.get("arguments")
        arguments = text.encode() if type(text) is str else b""
        if len(arguments) > _MAX_ARGUMENTS_BYTES or not _is_object(arguments):
            return ToolCall(call_id, name, problem="The arguments must be a JSON object.")
        return ToolCall(call_id, name, arguments)


def expand(body: JsonObject, offered: tuple[ToolEntry, ...]) -> DeclaredTools | None:
    """Replace the server tools that `body` names by functions, in `body`, and return them; None if it names none.

    Raises RequestRejected (400) for an unknown server tool or two tools of the same name.
    """
    listed: list[JsonObject] = body.get("tools") or []
    if not any(tool.get("type") == "server" for tool in listed):
        return None
    by_name = {tool.name: tool for tool in offered}
    used: dict[str, ToolEntry] = {}
    functions: list[JsonObject] = []
    for tool in listed:
        if tool.get("type") != "server":
            functions.append(tool)
            continue
        name = tool.get("name")
        entry = by_name.get(name) if type(name) is str else None
        if entry is None:
            known = ", ".join(by_name) or "none"
            raise bad_request(
                f"There is no server tool {quote(str(name))}; the declared ones are: {known}.", param="tools"
            )
        used[entry.name] = entry
        functions.append(_function(entry))
    names = [_name_of(tool) for tool in functions]
    clash = next((name for name in used if names.count(name) > 1), None)
    if clash is not None:
        raise bad_request(f"Two tools are named {quote(clash)}. Tool names must be unique.", param="tools")
    body["tools"] = functions
    return DeclaredTools(used)


def result(call: ToolCall, content: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": call.call_id, "content": content}


def _function(entry: ToolEntry) -> JsonObject:
    parameters = orjson.loads(entry.parameters)
    return {
        "type": "function",
        "function": {"name": entry.name, "description": entry.description, "parameters": parameters},
    }


def _name_of(tool: JsonObject) -> Any:
    function = tool.get("function")
    return function.get("name") if type(function) is dict else None


def _is_object(text: bytes) -> bool:
    try:
        return type(orjson.loads(text)) is dict
    except orjson.JSONDecodeError:
        return False
