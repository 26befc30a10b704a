"""HTTP conventions of all routes: credentials, bounded JSON bodies, ETags, pages, disconnected clients.

    put: Annotated[PutVersion, Depends(body_of(PutVersion))]   @router.put(…, openapi_extra=body_schema(PutVersion))

A body is read with a size and a time limit, decoded strictly into a frozen type, and described in the OpenAPI
document. The `lock_version` of an object is its ETag; `If-Match` names the version that the caller has seen. A list
has up to `limit` entries after a cursor; `next_after` is the cursor of the next page, null on the last one.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Header, Path, Query, Request
from starlette.requests import ClientDisconnect

from functions.api.ids import DIGEST_PATTERN, MODEL_ID_PATTERN, NAME_PATTERN, ROLLOUT_ID_PATTERN
from functions.fleet import own_stalls
from functions.fleet.role_credentials import Purpose, RoleCredentials
from functions.http.guarded import authenticated
from functions.registry.errors import ApiError

_BEARER = "bearer "
_REGISTRY_PURPOSES: tuple[Purpose, ...] = ("publish", "follow", "account", "agent")
_BODY_TIMEOUT_S = 60.0

Answer = TypeVar("Answer")


def has_credential(header: str, accepted: Iterable[str]) -> bool:
    """Return True if the Authorization header has one of these tokens as its bearer token. Comparison takes constant
    time."""
    given = header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""
    shown = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
    return any(hmac.compare_digest(shown, hashlib.sha256(each.encode()).digest()) for each in accepted)


def require_token(token: str) -> Callable[[Request], None]:
    """Make a dependency that admits only requests with this token, and raises ApiError 401 for others."""

    def check(request: Request) -> None:
        if not has_credential(request.headers.get("authorization", ""), (token,)):
            raise _unauthenticated()
        authenticated(request.scope)

    return check


def require_role(credentials: RoleCredentials, *purposes: Purpose) -> Callable[[Request], None]:
    """Make a dependency that admits only requests with a credential of these roles or of the operator. It raises
    ApiError 403 for another role's credential, 401 for none."""

    def check(request: Request) -> None:
        header = request.headers.get("authorization", "")
        if not any(has_credential(header, credentials.accepted(purpose)) for purpose in ("operate", *purposes)):
            if any(has_credential(header, credentials.accepted(purpose)) for purpose in _REGISTRY_PURPOSES):
                raise ApiError(403, "wrong_role", "this credential belongs to a role that may not use this route")
            raise _unauthenticated()
        authenticated(request.scope)

    return check


def has_role(request: Request, credentials: RoleCredentials, purpose: Purpose) -> bool:
    """Return True if the request has a credential of this purpose or the operator's."""
    header = request.headers.get("authorization", "")
    return any(has_credential(header, credentials.accepted(each)) for each in ("operate", purpose))


def _unauthenticated() -> ApiError:
    message = "this route needs a credential of the installation: Authorization: Bearer <token>"
    return ApiError(401, "invalid_internal_token", message, headers={"www-authenticate": "Bearer"})


async def read_body(request: Request, max_bytes: int) -> list[bytes]:
    """Return the whole body in pieces. Raises ApiError if it is too large or too slow, or if the client disconnects."""
    too_large = ApiError(413, "body_too_large", f"the body is over the limit of {max_bytes} bytes")
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with own_stalls.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                size_bytes += len(part)
                if size_bytes > max_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        message = f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s"
        raise ApiError(408, "body_too_slow", message, headers={"connection": "close"}) from error
    except ClientDisconnect as error:
        raise ApiError(400, "body_incomplete", "the client disconnected before the body was complete") from error
    return parts


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Return the result of `work`, or cancel it and return None when the client disconnects."""
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            leaving = group.create_task(_client_gone(request))
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            working.cancel()  # no effect if it is done
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None  # the original exception, without its group
    return None if working.cancelled() else working.result()


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # skips the body, which a GET should not have


BODY_MAX_BYTES = 64 * 1024

Body = TypeVar("Body", bound=msgspec.Struct)


class JsonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of request bodies. Missing required fields and unknown fields are errors."""


class Nothing(JsonBody, frozen=True):
    """An empty body: `{}` or no body at all."""


def body_of(type_: type[Body], max_bytes: int = BODY_MAX_BYTES) -> Callable[[Request], Awaitable[Body]]:
    """Make a dependency that decodes the JSON request body as `type_`; an empty body counts as `{}`. It raises ApiError
    for another media type or an invalid, too large or too slow body."""
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
    """Raise ApiError 415 for another media type than `expected`. A request without content-type passes, for short
    bodies sent by hand."""
    given = request.headers.get("content-type", expected).partition(";")[0].strip().lower()
    if given != expected:
        message = f"the body's media type is {given[:80]!r}; this route takes {expected}"
        raise ApiError(415, "unsupported_media_type", message)


def body_schema(type_: type[msgspec.Struct], *, required: bool = True) -> dict[str, Any]:
    """Return a dict with the body's schema for a route's `openapi_extra`. The types are flat, so the schema needs no
    references."""
    schema = msgspec.json.schema(type_)
    own = _with_anchors(schema["$defs"][type_.__name__])
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": own}}}}


def _with_anchors(schema: Any) -> Any:
    """Convert patterns to JSON Schema's anchors. Ours use \\A and \\Z, because `$` in Python also matches before a
    final newline."""
    if isinstance(schema, dict):
        return {name: _with_anchors(value) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_with_anchors(value) for value in schema]
    if isinstance(schema, str) and schema.startswith("\\A") and schema.endswith("\\Z"):
        return f"^{schema[2:-2]}$"
    return schema


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


_TAG = re.compile(r'\s*"?([0-9]{1,12})"?\s*')

IfMatch = Annotated[str, Header(alias="if-match", max_length=100, description="ETag that the caller has seen; *: any.")]


def etag(lock_version: int) -> dict[str, str]:
    return {"etag": f'"{lock_version}"'}


def lock_version_of(if_match: str) -> int | None:
    """Return the lock version in an If-Match header, or None if it is empty or `*`. Raise ApiError 400 for another
    form."""
    if if_match.strip() in ("", "*"):
        return None
    match = _TAG.fullmatch(if_match)
    if match is None:
        message = f'If-Match is {if_match[:40]!r}; expected: one ETag of this registry, such as "3", or *'
        raise ApiError(400, "invalid_if_match", message, "if-match")
    return int(match[1])


MAX_LIMIT = 1000
CURSOR_MAX = 2**53

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of entries.")]
AfterModel = Annotated[
    str, Query(pattern=rf"^(?:{MODEL_ID_PATTERN})?$", max_length=130, description="Last id of the previous page.")
]
AfterName = Annotated[
    str, Query(pattern=rf"^(?:{NAME_PATTERN})?$", max_length=64, description="Last name of the previous page.")
]
AfterNumber = Annotated[
    int | None,
    Query(ge=1, le=CURSOR_MAX, description="`next_after` of the previous page; the newest entries come first."),
]

TenantName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
ModelName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
VersionName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
ChannelName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
RolloutName = Annotated[str, Path(pattern=rf"^{ROLLOUT_ID_PATTERN}$")]
DigestName = Annotated[str, Path(pattern=rf"^{DIGEST_PATTERN}$")]


def page_of(data: Sequence[Any], following: Any, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(data), "has_more": following is not None, "next_after": following, **more}
