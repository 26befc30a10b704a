"""Schemas of answers, as the gateway or an engine's contract defines them. Engines add fields of their own.

`tests/gateway/test_openapi_live.py` compares them with real answers.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_OBJECT: Schema = {"type": "object"}


def object_schema(required: str, **properties: Schema) -> Schema:
    """Return an object schema with these properties (others are allowed); `required`: names separated by spaces."""
    return {"type": "object", "required": required.split(), "properties": properties}


def array_schema(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _page(of: Schema) -> Schema:
    ends = {"first_id": nullable(STRING), "last_id": nullable(STRING)}
    return object_schema(
        "object data has_more", object={"const": "list"}, data=array_schema(of), has_more={"type": "boolean"}, **ends
    )


def _pooled(of: Schema) -> Schema:
    return object_schema(
        "object data model", object={"const": "list"}, data=array_schema(of), model=STRING, usage=ref("Usage")
    )


_MESSAGE = object_schema("role", role=STRING, content=nullable(STRING), tool_calls=nullable(array_schema(_OBJECT)))
_CHOICE = object_schema("index finish_reason", index=COUNT, finish_reason=nullable(STRING), logprobs=nullable(_OBJECT))
_BATCH_STATUSES = [
    *("validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"),
]


def _choices(**more: Schema) -> Schema:
    return array_schema(
        {**_CHOICE, "required": [*_CHOICE["required"], *more], "properties": _CHOICE["properties"] | more}
    )


SCHEMAS: dict[str, Schema] = {
    "Error": object_schema(
        "error",
        error=object_schema(
            "message type param code", message=STRING, type=STRING, param=nullable(STRING), code=nullable(STRING)
        ),
    ),
    "AnthropicError": object_schema(
        "type error request_id",
        type={"const": "error"},
        error=object_schema("type message", type=STRING, message=STRING),
        request_id=STRING,
    ),
    "Usage": object_schema(
        "prompt_tokens",
        prompt_tokens=COUNT,
        completion_tokens=nullable(COUNT),
        total_tokens=COUNT,
        prompt_tokens_details=nullable(object_schema("", cached_tokens=nullable(COUNT))),
    ),
    "ChatCompletion": object_schema(
        "id object created model choices usage",
        id=STRING,
        object={"const": "chat.completion"},
        created=COUNT,
        model=STRING,
        choices=_choices(message=_MESSAGE),
        usage=ref("Usage"),
    ),
    "ChatCompletionChunk": object_schema(
        "id object created model choices",
        id=STRING,
        object={"const": "chat.completion.chunk"},
        created=COUNT,
        model=STRING,
        choices=array_schema(object_schema("index delta", index=COUNT, delta=_OBJECT, finish_reason=nullable(STRING))),
        usage=nullable(ref("Usage")),
    ),
    "Completion": object_schema(
        "id object created model choices",
        id=STRING,
        object={"const": "text_completion"},
        created=COUNT,
        model=STRING,
        choices=_choices(text=STRING),
        usage=nullable(ref("Usage")),
    ),
    "Response": object_schema(
        "id object status output", id=STRING, object={"const": "response"}, status=STRING, output=array_schema(_OBJECT)
    ),
    "NamedEvent": object_schema("type", type=STRING),
    "Message": object_schema(
        "id type role content model",
        id=STRING,
        type={"const": "message"},
        role=STRING,
        content=array_schema(_OBJECT),
        model=STRING,
        stop_reason=nullable(STRING),
        usage=object_schema("input_tokens output_tokens", input_tokens=COUNT, output_tokens=COUNT),
    ),
    "TokenCount": object_schema("input_tokens", input_tokens=COUNT),
    "Embeddings": _pooled(
        object_schema(
            "index embedding", index=COUNT, embedding={"anyOf": [array_schema(_NUMBER), STRING]}, object=STRING
        )
    ),
    "Classification": _pooled(
        object_schema(
            "index label probs", index=COUNT, label=nullable(STRING), probs=array_schema(_NUMBER), num_classes=COUNT
        )
    ),
    "Scores": _pooled(object_schema("index score", index=COUNT, score=_NUMBER)),
    "Ranking": object_schema(
        "model results",
        model=STRING,
        results=array_schema(object_schema("index relevance_score", index=COUNT, relevance_score=_NUMBER)),
    ),
    "Tokens": object_schema("count tokens", count=COUNT, max_model_len=COUNT, tokens=array_schema(COUNT)),
    "Text": object_schema("prompt", prompt=STRING),
    "Model": object_schema(
        "id object type display_name created created_at owned_by channels task context_window tier capacity",
        id=STRING,
        object={"const": "model"},
        type={"const": "model"},
        display_name=STRING,
        created=COUNT,
        created_at={"type": "string", "format": "date-time"},
        owned_by=STRING,
        parent=nullable(STRING),
        task={"enum": ["generate", "embed", "classify", "score"]},
        context_window=COUNT,
        channels={
            "type": "object",
            "additionalProperties": object_schema("version digest", version=STRING, digest=STRING, rollout=_OBJECT),
        },
        tier=nullable(object_schema("name limits", name=STRING, limits=_OBJECT)),
        capacity=_OBJECT,
    ),
    "Models": object_schema(
        "object data has_more", object={"const": "list"}, data=array_schema(ref("Model")), has_more={"type": "boolean"}
    ),
    "DeletedConversation": object_schema(
        "id object deleted", id=STRING, object={"const": "conversation.deleted"}, deleted={"type": "boolean"}
    ),
    "File": object_schema(
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
    "DeletedFile": object_schema("id object deleted", id=STRING, object={"const": "file"}, deleted={"const": True}),
    "Batch": object_schema(
        "id object endpoint input_file_id completion_window status created_at expires_at request_counts",
        id=STRING,
        object={"const": "batch"},
        endpoint=STRING,
        input_file_id=STRING,
        completion_window=STRING,
        status={"enum": _BATCH_STATUSES},
        errors=nullable(_OBJECT),
        output_file_id=nullable(STRING),
        error_file_id=nullable(STRING),
        created_at=COUNT,
        expires_at=COUNT,
        request_counts=object_schema("total completed failed", total=COUNT, completed=COUNT, failed=COUNT),
        metadata=nullable(_OBJECT),
    ),
    "Batches": _page(ref("Batch")),
    "Alive": object_schema("status", status={"const": "ok"}),
    "Readiness": object_schema("status", status=STRING, reason=STRING, snapshot_epoch=COUNT, revision=STRING),
}
