"""Engine routes that the gateway offers: fields, engine path, model tasks and dialect of each.

A row here and a field table define a route; admission, routing and relaying are the same for all. Only the hot routes
have the fast lane.

Neighbours: `field_tables` has the tables, `dialects` the formats of answers; `intake` admits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from functions.api.snapshot import Task
from functions.gateway.intake import field_tables
from functions.gateway.intake.fields import FieldTable
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import OutputFields
from functions.gateway.limits import Limits
from functions.gateway.request.dialects import ANTHROPIC, OPENAI, POOLING, RESPONSES, Dialect

_GENERATE: frozenset[Task] = frozenset({"generate"})
_EMBED: frozenset[Task] = frozenset({"embed"})
_CLASSIFY: frozenset[Task] = frozenset({"classify"})
_SCORE: frozenset[Task] = frozenset({"score", "embed"})  # for two embeddings, engines return the cosine
_ANY: frozenset[Task] = frozenset({"generate", "embed", "classify", "score"})


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    upstream_path: bytes
    table: Callable[[Limits], FieldTable]
    required: tuple[tuple[str, ...], ...]  # one field of each group is required
    streams: bool
    output: OutputFields | None  # None means that nothing is generated
    tasks: frozenset[Task] = _GENERATE  # tasks of models that answer it
    dialect: Dialect = OPENAI
    stream_options: bool = True  # usage of a stream must be requested
    prepare: Callable[[JsonObject], None] | None = None  # last changes to a checked body
    is_read: bool = True  # a model reads the request and uses tokens; False: only a tokenizer does


CHAT_OUTPUT = OutputFields("messages", ("max_completion_tokens", "max_tokens"), has_choices=True)
CHAT = Route(
    "/v1/chat/completions",
    b"/v1/chat/completions",
    field_tables.chat_table,
    (("messages",),),
    streams=True,
    output=CHAT_OUTPUT,
)
COMPLETIONS = Route(
    "/v1/completions",
    b"/v1/completions",
    field_tables.completion_table,
    (("prompt",),),
    streams=True,
    output=OutputFields("prompt", ("max_tokens",), default_tokens=16, has_choices=True),
)
RESPONSES_ROUTE = Route(
    "/v1/responses",
    b"/v1/responses",
    field_tables.responses_table,
    (("input",),),
    streams=True,
    output=OutputFields("input", ("max_output_tokens",)),
    dialect=RESPONSES,
    stream_options=False,
    prepare=field_tables.disable_storing,
)
MESSAGES = Route(
    "/v1/messages",
    b"/v1/messages",
    field_tables.messages_table,
    (("messages",), ("max_tokens",)),
    streams=True,
    output=OutputFields("messages", ("max_tokens",)),
    dialect=ANTHROPIC,
    stream_options=False,
)
COUNT_TOKENS = Route(
    "/v1/messages/count_tokens",
    b"/v1/messages/count_tokens",
    field_tables.messages_table,
    (("messages",),),
    streams=False,
    output=None,
    dialect=ANTHROPIC,
    is_read=False,
)
EMBEDDINGS = Route(
    "/v1/embeddings",
    b"/v1/embeddings",
    field_tables.embeddings_table,
    (("input", "messages"),),
    streams=False,
    output=None,
    tasks=_EMBED,
    dialect=POOLING,
)
CLASSIFY = Route(
    "/v1/classify",
    b"/classify",
    field_tables.classify_table,
    (("input", "messages"),),
    streams=False,
    output=None,
    tasks=_CLASSIFY,
    dialect=POOLING,
)
SCORE = Route(
    "/v1/score",
    b"/score",
    field_tables.score_table,
    (("queries", "text_1", "data_1"), ("documents", "items", "text_2", "data_2")),
    streams=False,
    output=None,
    tasks=_SCORE,
    dialect=POOLING,
)
RERANK = Route(
    "/v1/rerank",
    b"/rerank",
    field_tables.rerank_table,
    (("query",), ("documents",)),
    streams=False,
    output=None,
    tasks=_SCORE,
    dialect=POOLING,
)
TOKENIZE = Route(
    "/v1/tokenize",
    b"/tokenize",
    field_tables.tokenize_table,
    (("messages", "prompt"),),
    streams=False,
    output=None,
    tasks=_ANY,
    is_read=False,
)
DETOKENIZE = Route(
    "/v1/detokenize",
    b"/detokenize",
    field_tables.detokenize_table,
    (("tokens",),),
    streams=False,
    output=None,
    tasks=_ANY,
    is_read=False,
)
ROUTES = (
    CHAT,
    COMPLETIONS,
    RESPONSES_ROUTE,
    MESSAGES,
    COUNT_TOKENS,
    EMBEDDINGS,
    CLASSIFY,
    SCORE,
    RERANK,
    TOKENIZE,
    DETOKENIZE,
)
HOT_ROUTES = {route.path: route for route in (CHAT, COMPLETIONS)}
_DIALECTS = {route.path: route.dialect for route in ROUTES}


def dialect_of(path: str) -> Dialect:
    """Return the dialect of errors at a path; OpenAI's if there is no route."""
    return _DIALECTS.get(path, OPENAI)


def routes_for(task: Task) -> tuple[str, ...]:
    """Return the paths that models of this task answer, for error messages, without those that all models answer."""
    return tuple(route.path for route in ROUTES if task in route.tasks and route.tasks != _ANY)
