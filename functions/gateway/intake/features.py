"""Features of a request, computed at admission, and what its answer teaches about lengths.

Nothing here tokenises: the tokens of a text prompt are estimated from its bytes by what was learnt of this tenant and
base model (`length_model`); token ids are counted. Only complete answers teach (status 200 with the engine's usage),
and only about their own tenant, so that one tenant cannot distort another's estimates.

A model that scores texts against each other reads a query once for each of its documents, and its usage counts the
query as often. A model that embeds reads every text once:

    prompt = documents x query + all documents           for one query; if there are several, each is read once

Worked example (test_worked_example_of_the_prologue): a query of 12 bytes over three documents is read three times, so
24 bytes are added to the request's text.

Neighbours: `intake` calls this at admission; `prompt_text` extracts the prompt of a request; `ended` is one of the
listeners of a request's `Ended`.
"""

from functools import lru_cache
from typing import Any

import msgspec

from functions.api.ids import TenantId
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.prefix.block_names import block_bytes_for, seed_of, text_blocks
from functions.decisions.request.features import RequestFeatures
from functions.decisions.request.length_model import MAX_ENTRIES, LengthModel
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.lengths import OutputFields, text_bytes
from functions.gateway.intake.routes import Route
from functions.gateway.prefix.prompt_text import MEDIA_TOKENS, prompt_text
from functions.gateway.request.answers import Usage
from functions.gateway.request.request import Admitted, Ended

_QUERIES = ("query", "queries", "text_1", "data_1")
_DOCUMENTS = ("documents", "items", "text_2", "data_2")


def read_again_bytes(parsed: JsonObject) -> int:
    """Return the bytes that a scoring model reads beside a checked request's text: one query is read per document.

    0 for several queries.
    """
    queries, documents = _first(parsed, _QUERIES), _first(parsed, _DOCUMENTS)
    if _how_many(queries) != 1:
        return 0
    return (_how_many(documents) - 1) * (text_bytes(queries) + text_bytes(parsed.get("instruction")))


def _first(parsed: JsonObject, names: tuple[str, ...]) -> Any:
    return next((parsed[name] for name in names if parsed.get(name) is not None), "")


def _how_many(value: Any) -> int:
    """Return the number of texts: a list's length (in an object, that under `content`), else 1; at least 1."""
    content = value.get("content") if type(value) is dict else value
    return max(1, len(content)) if type(content) is list else 1


_MAX_SEEDS = 20_000  # (tenant's salt, engine's name): 5 MB


class Features:
    """Features of requests, from learnt lengths. Owned by one event loop."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self.lengths = LengthModel(max_entries)
        self._seed_of = lru_cache(_MAX_SEEDS)(seed_of)

    def build(
        self,
        parsed: JsonObject,
        route: Route,
        model: ResolvedModel,
        tenant: TenantId,
        salt: str | None,
        *,
        length_field: str,
        requested_tokens: int = 0,
    ) -> RequestFeatures:
        """Return the features of a request whose fields and caps were checked.

        `salt` is its prefix cache's; None: shared. `length_field`: the field in force that limits the answer's
        length. `requested_tokens`: the length that the caller requested, before caps.
        """
        output = route.output
        text, ids, media = prompt_text(parsed, output)
        # an embedding model reads each text once, and so does a tokenizer
        scores_pairs = model.task == "score" and route.is_read
        prompt_bytes = len(text) + (read_again_bytes(parsed) if scores_pairs else 0)
        if ids is not None:
            prompt_tokens = ids
        else:
            prompt_tokens = self.lengths.prompt_tokens(model.pool, tenant, prompt_bytes) + MEDIA_TOKENS * media
        choices, most, expected = 1, 0, 0
        if output is not None:
            choices = _choices(parsed, output)
            wanted: int | None = parsed.get(length_field)
            longest = wanted if wanted is not None else output.default_tokens or model.context_window_tokens
            most = choices * min(longest, model.context_window_tokens)
            expected = min(most, choices * self.lengths.output_tokens(model.id, tenant))
        block_bytes = block_bytes_for(prompt_bytes)
        return RequestFeatures(
            prompt_bytes,
            prompt_tokens,
            ids is not None,
            most,
            expected,
            text_blocks(text, self._seed_of(salt or "", model.engine_name), block_bytes),
            block_bytes,
            choices,
            ids is None and not media,
            choices * min(requested_tokens, model.context_window_tokens),
        )

    def ended(self, ended: Ended) -> None:
        """Learn the lengths of prompt and answer from a complete answer whose tokens the engine has counted."""
        if ended.status == 200 and ended.prediction is not None and ended.usage is not None:
            self.learn(ended.admitted, ended.usage)

    def learn(self, admitted: Admitted, usage: Usage) -> None:
        """Learn the lengths of prompt and answer from the engine's usage of a request that was answered completely."""
        features, model, tenant = admitted.features, admitted.model, admitted.caller.tenant
        if features.learnable:
            self.lengths.learn_prompt(model.pool, tenant, features.prompt_bytes, usage.prompt_tokens)
        if features.max_output_tokens > 0 and usage.completion_tokens > 0:
            cut = usage.completion_tokens >= features.max_output_tokens
            self.lengths.learn_answer(model.id, tenant, usage.completion_tokens // features.choices, cut)


def for_other_model(
    features: RequestFeatures, upstream: JsonObject, output: OutputFields | None, engine_name: str
) -> RequestFeatures:
    """Return a request's features for another model with this engine name: only the text blocks' hashes change."""
    text = prompt_text(upstream, output).text
    salt = upstream.get("cache_salt") or ""  # the tenant's salt, which admission has put there
    blocks = text_blocks(text, seed_of(salt, engine_name), features.text_block_bytes)
    return msgspec.structs.replace(features, text_blocks=blocks)


def _choices(parsed: JsonObject, output: OutputFields) -> int:
    """Return the number of generated answers: `n` (or `best_of` if larger) for each prompt; 1 on other routes."""
    if not output.has_choices:
        return 1
    choices: int = parsed.get("n") or 1
    if output.prompt == "prompt":
        choices = max(choices, parsed.get("best_of") or 1)
        prompt = parsed["prompt"]
        if type(prompt) is list and type(prompt[0]) is not int:
            choices *= len(prompt)
    return choices
