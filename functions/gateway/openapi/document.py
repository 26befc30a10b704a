"""The OpenAPI document: FastAPI's routes, completed by the rules of admission, engines and answers.

The hot routes have no FastAPI operation, because the fast lane serves them; here they are listed like all others. The
gateway has no internal routes, and metrics have a port of their own, so neither is in the document.

Neighbours: `requests`, `replies` and `headers` have the parts; `functions.gateway.http.asgi` serves the document.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from functions.gateway.batch.limits import EXPIRY_MAX_S, EXPIRY_MIN_S
from functions.gateway.intake.routes import ROUTES, Route
from functions.gateway.limits import Limits
from functions.gateway.openapi import headers, replies
from functions.gateway.openapi.headers import HttpHeader
from functions.gateway.openapi.replies import STRING, Schema, nullable, object_schema, ref
from functions.gateway.openapi.requests import body_schema

PATH = "/openapi.json"
_PART = re.compile(r"\{(\w+)\}")
_JSON, _EVENTS = "application/json", "text/event-stream"
_ABOUT = (
    "OpenAI's API for the models of a shoal fleet, and Anthropic's Messages. The pool's RoutingPolicy decides about "
    "fields that a body's schema does not name; by default they are dropped. Null means absent. Every answer carries "
    "x-request-id."
)


@dataclass(frozen=True, slots=True)
class Operation:
    summary: str
    answer: Schema
    media: str = _JSON
    event: Schema | None = None  # schema of a stream's event
    body: Schema | None = None
    body_media: str = _JSON
    keyed: bool = True  # True if the operation needs a key
    refusals: tuple[int, ...] = (401, 404, 429, 500)
    reads: tuple[HttpHeader, ...] = (headers.REQUEST_ID,)  # headers besides the key
    is_served: bool = False  # True if an engine serves it and the tenant is charged
    statuses: tuple[int, ...] = (200,)  # statuses of successful answers


_ENGINE_REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 502, 503, 504)
_STORE_REFUSALS = (400, 401, 404, 429, 500, 503)
_REGISTRY_REFUSALS = (400, 401, 403, 404, 409, 429, 500, 503)
_MEANINGS = {
    400: "Malformed, out of range, over a cap, or for another kind of model",
    401: "The key is missing, malformed, unknown, revoked or expired",
    403: "The key lacks the scope or the class",
    404: "Not found, or not visible to this key",
    408: "Head or body took too long to arrive",
    409: "Not possible in the current state",
    412: "Changed since `if-match`",
    413: "The body is over the limit",
    415: "Not application/json, or an encoded body",
    422: "What was sent cannot be served",
    429: "The tenant's own limit: try again after `retry-after`",
    431: "Headers are over the limits",
    500: "The gateway failed",
    502: "Replicas failed, after retries",
    503: "The platform is full or has no capacity yet: try again after `retry-after`",
    504: "The deadline passed",
}
# Summary, schema of the answer, and schema of one event of a stream.
_ENGINE: dict[str, tuple[str, str, str | None]] = {
    "/v1/chat/completions": ("Answer a chat", "ChatCompletion", "ChatCompletionChunk"),
    "/v1/completions": ("Continue a text", "Completion", "Completion"),
    "/v1/responses": ("Answer by OpenAI's Responses API; nothing is stored", "Response", "NamedEvent"),
    "/v1/messages": ("Answer by Anthropic's Messages API", "Message", "NamedEvent"),
    "/v1/messages/count_tokens": ("Count the tokens of a message without inference", "TokenCount", None),
    "/v1/embeddings": ("Embed texts", "Embeddings", None),
    "/v1/classify": ("Classify texts", "Classification", None),
    "/v1/score": ("Score pairs of texts", "Scores", None),
    "/v1/rerank": ("Order documents by a query", "Ranking", None),
    "/v1/tokenize": ("Tokenize a prompt or a chat", "Tokens", None),
    "/v1/detokenize": ("Turn token ids into text", "Text", None),
}
_SECONDS = {"type": "integer", "minimum": EXPIRY_MIN_S, "maximum": EXPIRY_MAX_S}
_EXPIRY = object_schema("anchor seconds", anchor={"const": "created_at"}, seconds=_SECONDS)
_FILE = object_schema(
    "file purpose", file=STRING | {"format": "binary"}, purpose={"const": "batch"}, expires_after=nullable(_EXPIRY)
)
_BATCH = object_schema(
    "input_file_id endpoint completion_window",
    input_file_id=STRING,
    endpoint=STRING,
    completion_window=STRING,
    metadata=nullable({"type": "object", "additionalProperties": STRING, "maxProperties": 16}),
    output_expires_after=nullable(_EXPIRY),
)
_OTHERS: dict[tuple[str, str], Operation] = {
    ("get", "/health"): Operation("Check that the process is alive", ref("Alive"), keyed=False, refusals=()),
    ("get", "/healthz"): Operation("Check that the process is alive", ref("Alive"), keyed=False, refusals=()),
    ("get", "/readyz"): Operation("Check that requests can be answered", ref("Readiness"), keyed=False, refusals=()),
    ("get", "/v1/models"): Operation("List the models that this key may call", ref("Models")),
    ("get", "/v1/models/{model}"): Operation("Describe one model", ref("Model")),
    ("delete", "/v1/conversations"): Operation(
        "Delete the conversation that X-Session-ID names",
        ref("DeletedConversation"),
        refusals=(400, 401, 404, 500),
        reads=(headers.REQUEST_ID, headers.SESSION),
    ),
    ("post", "/v1/files"): Operation(
        "Upload the input of a batch",
        ref("File"),
        body=_FILE,
        body_media="multipart/form-data",
        refusals=(*_STORE_REFUSALS, 408, 413),
    ),
    ("get", "/v1/files"): Operation("List files", ref("Files"), refusals=_STORE_REFUSALS),
    ("get", "/v1/files/{file_id}"): Operation("Describe a file", ref("File"), refusals=_STORE_REFUSALS),
    ("get", "/v1/files/{file_id}/content"): Operation(
        "Read a file", {"type": "string", "format": "binary"}, "application/octet-stream", refusals=_STORE_REFUSALS
    ),
    ("delete", "/v1/files/{file_id}"): Operation("Delete a file", ref("DeletedFile"), refusals=(*_STORE_REFUSALS, 409)),
    ("post", "/v1/batches"): Operation(
        "Create a batch", ref("Batch"), body=_BATCH, refusals=(*_STORE_REFUSALS, 408, 413, 415)
    ),
    ("get", "/v1/batches"): Operation("List batches", ref("Batches"), refusals=_STORE_REFUSALS),
    ("get", "/v1/batches/{batch_id}"): Operation("Describe a batch", ref("Batch"), refusals=_STORE_REFUSALS),
    ("post", "/v1/batches/{batch_id}/cancel"): Operation(
        "Cancel a batch", ref("Batch"), refusals=(*_STORE_REFUSALS, 409)
    ),
}


# Operations that are forwarded to the registry (`functions.gateway.registry_routes`), whose own document has the
# details.
_FORWARDED = {
    ("get", "/v1/models/{tenant}/{name}/versions"): "List a model's versions",
    ("put", "/v1/models/{tenant}/{name}/versions/{version}"): "Register a version",
    ("delete", "/v1/models/{tenant}/{name}/versions/{version}"): "Delete a version",
    ("post", "/v1/models/{tenant}/{name}/channels/{channel}"): "Move a channel, by a rollout where its policy has one",
    ("delete", "/v1/models/{tenant}/{name}/channels/{channel}"): "Delete a channel",
    ("delete", "/v1/models/{tenant}/{name}"): "Delete a model",
    ("post", "/v1/artifacts"): "Upload an adapter's files",
    ("get", "/v1/artifacts/{digest}"): "Describe an artifact",
    ("get", "/v1/usage"): "Sum up the tenant's usage and its cost, by model, version, pool, class, day or hour",
    ("get", "/v1/rollouts"): "List rollouts",
    ("get", "/v1/rollouts/{rollout}"): "Describe a rollout, both groups with their figures",
    ("post", "/v1/rollouts/{rollout}/{verb}"): "Pause, resume, promote or roll back a rollout",
}
_BODIES: dict[tuple[str, str], tuple[Schema, str]] = {
    ("put", "/v1/models/{tenant}/{name}/versions/{version}"): (
        object_schema("base_model", base_model=STRING, adapter_type=STRING, digest=STRING, artifact_uri=STRING,
              promote_to=STRING, rollout=STRING),
        _JSON,
    ),
    ("post", "/v1/models/{tenant}/{name}/channels/{channel}"): (object_schema("version", version=STRING), _JSON),
    ("post", "/v1/artifacts"): (
        object_schema("file", file={"type": "array", "items": _FILE["properties"]["file"]}, base_model=STRING),
        "multipart/form-data",
    ),
}  # fmt: skip

_STATUSES = {
    ("put", "/v1/models/{tenant}/{name}/versions/{version}"): (200, 201),
    ("post", "/v1/models/{tenant}/{name}/channels/{channel}"): (200, 202),
    ("post", "/v1/artifacts"): (200, 201),
}


def _forwarded(method: str, path: str) -> Operation:
    body, media = _BODIES.get((method, path), (None, _JSON))
    more = (408, 412, 413, 415, 422) if method in ("put", "post") else (412,) if method == "delete" else ()
    return Operation(
        _FORWARDED[method, path],
        {"type": "object"},
        body=body,
        body_media=media,
        refusals=(*_REGISTRY_REFUSALS, *more),
        statuses=_STATUSES.get((method, path), (204,) if method == "delete" else (200,)),
    )


def document(app: FastAPI, limits: Limits) -> Schema:
    """Return the OpenAPI 3.1 document of the application's routes; raises KeyError for an undescribed route."""
    known = get_openapi(title="shoal gateway", version="1", routes=app.routes)["paths"]
    operations = {("post", route.path): _engine_operation(route, limits) for route in ROUTES}
    for path, methods in known.items():
        operations |= {(method, path): _OTHERS.get((method, path)) or _forwarded(method, path) for method in methods}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in operations.items():
        parameters = known.get(path, {}).get(method, {}).get("parameters", [])
        paths.setdefault(path, {})[method] = _operation_object(method, path, operation, parameters)
    return {
        "openapi": "3.1.0",
        "info": {"title": "shoal gateway", "version": "1", "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": replies.SCHEMAS,
            "headers": {header.component: _header(header) for header in headers.RESPONSE},
            "parameters": {header.component: _parameter(header) for header in headers.BESIDE_THE_KEY},
            "responses": {str(status): _refusal(status) for status in _MEANINGS},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": headers.KEYS[0].meaning},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"key": []}, {"apiKey": []}],
    }


def _engine_operation(route: Route, limits: Limits) -> Operation:
    summary, answer, event = _ENGINE[route.path]
    return Operation(
        summary,
        ref(answer),
        event=ref(event) if event is not None else None,
        body=body_schema(route, limits),
        refusals=_ENGINE_REFUSALS,
        reads=headers.BESIDE_THE_KEY,
        is_served=True,
    )


def _operation_object(method: str, path: str, operation: Operation, parameters: list[Schema]) -> Schema:
    content = {operation.media: {"schema": operation.answer}}
    if operation.event is not None:
        content[_EVENTS] = {"schema": operation.event}
    named = (*headers.ALWAYS, *(headers.SERVED + headers.QUOTA if operation.is_served else ()))
    named += headers.FILE_CONTENT if path.endswith("/content") else ()
    answered = {"description": "Successful answer", "headers": _refs(named)}
    answers: Schema = {
        str(status): answered | ({} if status == 204 else {"content": content}) for status in operation.statuses
    }
    answers |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in operation.refusals}
    if path == "/readyz":
        answers["503"] = {"description": "Not ready; `reason` says why", "content": content}
    written: Schema = {"operationId": _operation_id(method, path), "summary": operation.summary, "responses": answers}
    written["parameters"] = [
        *(_plain(parameter) for parameter in parameters or _parts(path)),
        *({"$ref": f"#/components/parameters/{header.component}"} for header in operation.reads),
    ]
    if operation.body is not None:
        written["requestBody"] = {"required": True, "content": {operation.body_media: {"schema": operation.body}}}
    if not operation.keyed:
        written["security"] = []
    return written


def _operation_id(method: str, path: str) -> str:
    words = path.removeprefix("/v1").replace("{", "").replace("}", "").strip("/").replace("/", "_")
    return f"{method}_{words}"


def _parts(path: str) -> list[Schema]:
    """Return the string parameters that stand in the path, for a handler that does not name them."""
    return [{"name": name, "in": "path", "required": True, "schema": STRING} for name in _PART.findall(path)]


def _plain(parameter: Schema) -> Schema:
    """Return the parameter without its schema's title, which FastAPI generates."""
    schema = {name: value for name, value in parameter["schema"].items() if name != "title"}
    return parameter | {"schema": schema}


def _refs(named: Iterable[HttpHeader]) -> Schema:
    return {header.name: {"$ref": f"#/components/headers/{header.component}"} for header in named}


def _header(header: HttpHeader) -> Schema:
    return {"description": header.meaning, "schema": header.schema}


def _parameter(header: HttpHeader) -> Schema:
    return {"name": header.name, "in": "header", "description": header.meaning, "schema": header.schema}


def _refusal(status: int) -> Schema:
    schema = {"anyOf": [ref("Error"), ref("AnthropicError")]}
    named = (*headers.ALWAYS, *headers.QUOTA, *(headers.REFUSED if status in (401, 429, 503) else ()))
    return {"description": _MEANINGS[status], "headers": _refs(named), "content": {_JSON: {"schema": schema}}}
