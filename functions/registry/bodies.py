"""JSON bodies: read within a bound and a time, decoded strictly into a frozen type, described in the OpenAPI document.

put: Annotated[PutVersion, Depends(body_of(PutVersion))]      @router.put(…, openapi_extra=describes(PutVersion))
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from functions.registry.errors import ApiError
from functions.registry.guards import read_body

BODY_MAX_BYTES = 64 * 1024

Body = TypeVar("Body", bound=msgspec.Struct)


class JsonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a route takes. A field that is not there is an error, and so is one that nobody reads."""


class Nothing(JsonBody, frozen=True):
    """`{}`, or no body at all."""


def body_of(type_: type[Body], max_bytes: int = BODY_MAX_BYTES) -> Callable[[Request], Awaitable[Body]]:
    """A dependency that reads the request's body as `type_`; an empty body is `{}`."""
    decoder = msgspec.json.Decoder(type_)

    async def read(request: Request) -> Body:
        refuse_other_media(request, "application/json")
        document = b"".join(await read_body(request, max_bytes)) or b"{}"
        try:
            return decoder.decode(document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, "invalid_body", f"the body cannot be used: {_lowered(str(error))}") from error

    return read


def refuse_other_media(request: Request, expected: str) -> None:
    """Nothing named passes: a body of a few bytes by hand."""
    given = request.headers.get("content-type", expected).partition(";")[0].strip().lower()
    if given != expected:
        message = f"the body's media type is {given[:80]!r}; this route takes {expected}"
        raise ApiError(415, "unsupported_media_type", message)


def describes(type_: type[msgspec.Struct], *, required: bool = True) -> dict[str, Any]:
    """The body's schema, for `openapi_extra`; the types are flat, so their schema stands alone."""
    schema = msgspec.json.schema(type_)
    own = _with_anchors(schema["$defs"][type_.__name__])
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": own}}}}


def _with_anchors(schema: Any) -> Any:
    """Patterns as JSON Schema writes them; ours say \\A and \\Z, since `$` lets a final newline by in Python."""
    if isinstance(schema, dict):
        return {name: _with_anchors(value) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_with_anchors(value) for value in schema]
    if isinstance(schema, str) and schema.startswith("\\A") and schema.endswith("\\Z"):
        return f"^{schema[2:-2]}$"
    return schema


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
