"""Gateway features for a tenant's applications: stored conversations and tool calls.

Both are off by default. A tool is an HTTPS endpoint of the tenant that the gateway calls when the model requests
it. Its address is checked at every call, since a name may resolve differently by then.

Neighbours: `tenant` has these as fields; `functions.gateway.chat.tools` and `functions.gateway.chat.conversations`
implement them.
"""

import json
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from functions.api.kinds.base import Name, Strict, matching
from functions.api.kinds.quantities import Duration, Positive, duration_s

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_URL_MAX_CHARS = 500
_PARAMETERS_MAX_CHARS = 8_000
MAX_TOOLS = 32


def _checked_tool_name(text: str) -> str:
    if _TOOL_NAME.fullmatch(text) is None:
        raise ValueError("1 to 64 of 0-9 A-Z a-z _ -, as models write it")
    return text


def _checked_url(text: str) -> str:
    allowed = f"an https URL of up to {_URL_MAX_CHARS} characters, without user name or fragment"
    try:
        parts = urlsplit(text)
        sound = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise ValueError(allowed) from error
    plain = text.isascii() and text.isprintable() and " " not in text and "@" not in parts.netloc
    if not sound or not plain or parts.fragment or len(text) > _URL_MAX_CHARS:
        raise ValueError(allowed)
    return text


def _checked_parameters(text: str) -> str:
    allowed = f"a JSON Schema object as JSON text of up to {_PARAMETERS_MAX_CHARS} characters"
    try:
        parsed = json.loads(text) if len(text) <= _PARAMETERS_MAX_CHARS else None
    except (ValueError, RecursionError) as error:
        raise ValueError(allowed) from error
    if not isinstance(parsed, dict):
        raise ValueError(allowed)
    return text


class Tool(Strict):
    """An HTTPS endpoint that receives the model's arguments as a JSON body and responds with the text for the model."""

    name: Annotated[str, AfterValidator(_checked_tool_name), matching(_TOOL_NAME.pattern)]
    """Name by which requests and models refer to the tool."""
    description: Annotated[str, Field(max_length=1000)] = ""
    """Description of the tool for the model."""
    url: Annotated[str, AfterValidator(_checked_url), matching(r"https://.{1,492}")]
    """URL that the gateway sends a POST to. It must be an address of the public internet, or of a network that the
    operator allows."""
    parameters: Annotated[str, AfterValidator(_checked_parameters)] = '{"type":"object"}'
    """JSON Schema of its arguments, as JSON text."""
    timeout: Duration = "10s"
    """Longest duration of one call."""
    max_calls: Annotated[int, Field(ge=1, le=16)] = 4
    """Calls allowed within one request."""
    max_bytes: Annotated[int, Field(ge=1, le=1024 * 1024)] = 65_536
    """Largest response in bytes; a longer one is reported to the model as an error."""
    secret: Name | None = None
    """Name of the file among the gateway's tool secrets whose text is sent as the bearer token."""

    @property
    def timeout_s(self) -> float:
        return duration_s(self.timeout)


class Conversations(Strict):
    """Stored conversations: the gateway keeps a session's chat, so that requests contain only new messages."""

    store: bool = False
    """true: the gateway adds the session's earlier messages to requests with a session id."""
    ttl: Duration = "24h"
    """Time for which a conversation is stored after its last request."""
    max_tokens: Positive = 32_000
    """Approximate limit of a stored conversation in tokens; the oldest turns are dropped first."""

    @property
    def ttl_s(self) -> float:
        return duration_s(self.ttl)
