"""Request bodies of the pooling routes, as far as the simulator cares; unknown fields are ignored, as in vLLM."""

from typing import Annotated, Any, Literal

from pydantic import Field

from functions.engines.sim.protocol import Body, Message

TokenIds = list[Annotated[int, Field(ge=0)]]
Scored = str | dict[str, Any]


class PoolingBody(Body):
    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    cache_salt: str | None = None
    priority: int = 0


class InputBody(PoolingBody):
    """Texts, token ids, or one conversation."""

    input: TokenIds | list[TokenIds] | str | list[str] | None = None
    messages: list[Message] | None = None


class EmbeddingsBody(InputBody):
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class ScoreBody(PoolingBody):
    """Each side goes by several names."""

    queries: Scored | list[Scored] | None = None
    text_1: Scored | list[Scored] | None = None
    data_1: Scored | list[Scored] | None = None
    documents: Scored | list[Scored] | None = None
    items: Scored | list[Scored] | None = None
    text_2: Scored | list[Scored] | None = None
    data_2: Scored | list[Scored] | None = None


class RerankBody(PoolingBody):
    query: Scored
    documents: Scored | list[Scored]
    top_n: Annotated[int, Field(ge=0)] = 0
