"""Output of a simulated pooling model: deterministic vectors, classes and scores with some meaning.

Every token has its own direction (bits of its hash as +1 and -1). A text is the normalised sum of its tokens'
directions. The cosine of two texts therefore grows with the tokens that they share
(test_shared_words_bring_vectors_together), and a rerank orders by real overlap. An adapter bends every vector towards
its own mark.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from functions.engines.sim.protocol import Body, Message

LABELS = ("LABEL_0", "LABEL_1")
_MARK_WEIGHT = 0.5


def embed(ids: Sequence[int], *, dimensions: int, mark: str | None = None) -> list[float]:
    """Return the tokens' embedding: `dimensions` values, of Euclidean length 1. A `mark` gives it a direction of its
    own."""
    sums = [0.0] * dimensions
    for token, count in Counter(ids).items():
        _add(sums, _direction(str(token), dimensions), count)
    if mark is not None:
        _add(sums, _direction(mark, dimensions), _MARK_WEIGHT * max(1, len(ids)))
    return normalised(sums)


def normalised(vector: Iterable[float]) -> list[float]:
    values = list(vector)
    length = math.sqrt(sum(value * value for value in values))
    if length == 0.0:  # the directions cancelled out
        return [1.0, *values[1:]]
    return [value / length for value in values]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def overlap(query: Sequence[int], document: Sequence[int]) -> float:
    """Return a cross encoder's score, 0 to 1: twice the distinct tokens in common, divided by the distinct tokens of
    both."""
    one, other = set(query), set(document)
    return 2 * len(one & other) / max(1, len(one) + len(other))


def classify(ids: Sequence[int], *, mark: str | None = None) -> list[float]:
    """Return made-up probabilities of two labels, fixed by the tokens and the mark."""
    text = f"{mark}:{','.join(map(str, ids))}"
    share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
    return [share, 1.0 - share]


def _direction(name: str, dimensions: int) -> list[float]:
    bits = int.from_bytes(hashlib.shake_128(name.encode()).digest((dimensions + 7) // 8), "big")
    return [1.0 if bits >> index & 1 else -1.0 for index in range(dimensions)]


def _add(sums: list[float], direction: list[float], weight: float) -> None:
    for index, value in enumerate(direction):
        sums[index] += weight * value


# Request bodies of the pooling routes with the fields that the simulator uses; unknown fields are ignored, as in
# vLLM.


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
    """Two sides to score; the API has several names for each."""

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
