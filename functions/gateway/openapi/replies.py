"""Schemas of answers, as the gateway or an engine's contract defines them. Engines add fields of their own.

`tests/gateway/test_openapi_live.py` compares them with real answers.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_OBJECT: Schema = {"type": "object"}


def thing(required: str, **properties: Schema) -> Schema:
    """Return an object schema with these and other properties; `required` lists names separated by spaces."""
    return {"type": "object", "required": required.split(), "properties": properties}


def many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _page(of: Schema) -> Schema:
    ends = {"first_id": maybe(STRING), "last_id": maybe(STRING)}
    return thing("object data has_more", object={"const": "list"}, data=many(of), has_more={"type": "boolean"}, **ends)


def _pooled(of: Schema) -> Schema:
    return thing("object data model", object={"const": "list"}, data=many(of), model=STRING, usage=ref("Usage"))


_MESSAGE = thing("role", role=STRING, content=maybe(STRING), tool_calls=maybe(many(_OBJECT)))
_CHOICE = thing("index finish_reason", index=COUNT, finish_reason=maybe(STRING), logprobs=maybe(_OBJECT))
_BATCH_STATUSES = [
    *("validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"),
]


def _choices(**more: Schema) -> Schema:
    return many({**_CHOICE, "required": [*_CHOICE["required"], *more], "properties": _CHOICE["properties"] | more})


SCHEMAS: dict[str, Schema] = {
    "Error": thing(
        "error",
        error=thing("message type param code", message=STRING, type=STRING, param=maybe(STRING), code=maybe(STRING)),
    ),
    "AnthropicError": thing(
        "type error request_id",
        type={"const": "error"},
        error=thing("type message", type=STRING, message=STRING),
        request_id=STRING,
    ),
    "Usage": thing(
        "prompt_tokens",
        prompt_tokens=COUNT,
        completion_tokens=maybe(COUNT),
        total_tokens=COUNT,
        prompt_tokens_details=maybe(thing("", cached_tokens=maybe(COUNT))),
    ),
    "ChatCompletion": thing(
        "id object created model choices usage",
        id=STRING,
        object={"const": "chat.completion"},
        created=COUNT,
        model=STRING,
        choices=_choices(message=_MESSAGE),
        usage=ref("Usage"),
    ),
    "ChatCompletionChunk": thing(
        "id object created model choices",
        id=STRING,
        object={"const": "chat.completion.chunk"},
        created=COUNT,
        model=STRING,
        choices=many(thing("index delta", index=COUNT, delta=_OBJECT, finish_reason=maybe(STRING))),
        usage=maybe(ref("Usage")),
    ),
    "Completion": thing(
        "id object created model choices",
        id=STRING,
        object={"const": "text_completion"},
        created=COUNT,
        model=STRING,
        choices=_choices(text=STRING),
        usage=maybe(ref("Usage")),
    ),
    "Response": thing(
        "id object status output", id=STRING, object={"const": "response"}, status=STRING, output=many(_OBJECT)
    ),
    "NamedEvent": thing("type", type=STRING),
    "Message": thing(
        "id type role content model",
        id=STRING,
        type={"const": "message"},
        role=STRING,
        content=many(_OBJECT),
        model=STRING,
        stop_reason=maybe(STRING),
        usage=thing("input_tokens output_tokens", input_tokens=COUNT, output_tokens=COUNT),
    ),
    "TokenCount": thing("input_tokens", input_tokens=COUNT),
    "Embeddings": _pooled(
        thing("index embedding", index=COUNT, embedding={"anyOf": [many(_NUMBER), STRING]}, object=STRING)
    ),
    "Classification": _pooled(
        thing("index label probs", index=COUNT, label=maybe(STRING), probs=many(_NUMBER), num_classes=COUNT)
    ),
    "Scores": _pooled(thing("index score", index=COUNT, score=_NUMBER)),
    "Ranking": thing(
        "model results",
        model=STRING,
        results=many(thing("index relevance_score", index=COUNT, relevance_score=_NUMBER)),
    ),
    "Tokens": thing("count tokens", count=COUNT, max_model_len=COUNT, tokens=many(COUNT)),
    "Text": thing("prompt", prompt=STRING),
    "Model": thing(
        "id object type display_name created created_at owned_by channels task context_window tier capacity",
        id=STRING,
        object={"const": "model"},
        type={"const": "model"},
        display_name=STRING,
        created=COUNT,
        created_at={"type": "string", "format": "date-time"},
        owned_by=STRING,
        parent=maybe(STRING),
        task={"enum": ["generate", "embed", "classify", "score"]},
        context_window=COUNT,
        channels={
            "type": "object",
            "additionalProperties": thing("version digest", version=STRING, digest=STRING, rollout=_OBJECT),
        },
        tier=maybe(thing("name limits", name=STRING, limits=_OBJECT)),
        capacity=_OBJECT,
    ),
    "Models": thing(
        "object data has_more", object={"const": "list"}, data=many(ref("Model")), has_more={"type": "boolean"}
    ),
    "DeletedConversation": thing(
        "id object deleted", id=STRING, object={"const": "conversation.deleted"}, deleted={"type": "boolean"}
    ),
    "File": thing(
        "id object bytes created_at expires_at filename purpose status",
        id=STRING,
        object={"const": "file"},
        bytes=COUNT,
        created_at=COUNT,
        expires_at=COUNT,
        filename=STRING,
        purpose=STRING,
        status=STRING,
    ),
    "Files": _page(ref("File")),
    "DeletedFile": thing("id object deleted", id=STRING, object={"const": "file"}, deleted={"const": True}),
    "Batch": thing(
        "id object endpoint input_file_id completion_window status created_at expires_at request_counts",
        id=STRING,
        object={"const": "batch"},
        endpoint=STRING,
        input_file_id=STRING,
        completion_window=STRING,
        status={"enum": _BATCH_STATUSES},
        errors=maybe(_OBJECT),
        output_file_id=maybe(STRING),
        error_file_id=maybe(STRING),
        created_at=COUNT,
        expires_at=COUNT,
        request_counts=thing("total completed failed", total=COUNT, completed=COUNT, failed=COUNT),
        metadata=maybe(_OBJECT),
    ),
    "Batches": _page(ref("Batch")),
    "Alive": thing("status", status={"const": "ok"}),
    "Readiness": thing("status", status=STRING, reason=STRING, snapshot_epoch=COUNT, revision=STRING),
}
