"""The field tables against the request models of the installed vLLM: each of its fields is in a table.

If this test fails, an engine reads a field that is unknown here. Find out what the field does and give it a rule in
`functions.gateway.intake.field_tables`. Check whether it is an id, becomes part of the prompt, or is counted in tokens.
Models are read from their source, because importing them imports torch.
"""

import ast
import os
from functools import cache
from pathlib import Path

import pytest

from functions.gateway.intake.routes import ROUTES, Route
from functions.gateway.limits import Limits

ROOT = Path(__file__).parents[2]
MODELS = {
    "/v1/chat/completions": ("ChatCompletionRequest",),
    "/v1/completions": ("CompletionRequest",),
    "/v1/responses": ("ResponsesRequest",),
    "/v1/messages": ("AnthropicMessagesRequest",),
    "/v1/messages/count_tokens": ("AnthropicCountTokensRequest",),
    "/v1/embeddings": ("EmbeddingCompletionRequest", "EmbeddingChatRequest"),
    "/v1/classify": ("ClassificationCompletionRequest", "ClassificationChatRequest"),
    "/v1/score": ("ScoreDataRequest", "ScoreQueriesDocumentsRequest", "ScoreQueriesItemsRequest", "ScoreTextRequest"),
    "/v1/rerank": ("RerankRequest",),
    "/v1/tokenize": ("TokenizeCompletionRequest", "TokenizeChatRequest"),
    "/v1/detokenize": ("DetokenizeRequest",),
}


def _entrypoints() -> Path | None:
    python = Path(os.environ.get("SHOAL_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
    return next(python.parents[1].glob("lib/python3*/site-packages/vllm/entrypoints"), None)


@cache
def _classes() -> dict[str, ast.ClassDef]:
    entrypoints = _entrypoints()
    if entrypoints is None:
        pytest.skip("vLLM is not installed: .venv-engine is made by `make up`")
    trees = (ast.parse(path.read_text()) for path in sorted(entrypoints.glob("**/protocol.py")))
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(name: str) -> set[str]:
    """Return the fields of a model and its bases, with the aliases that are used on the wire."""
    model = _classes().get(name)
    if model is None:
        return set()
    found = set[str]()
    for item in model.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_on_the_wire(item):
            found |= {item.target.id, *_aliases(item)}
    return found.union(*(_fields(base.id) for base in model.bases if isinstance(base, ast.Name)))


def _is_on_the_wire(item: ast.AnnAssign) -> bool:
    assert isinstance(item.target, ast.Name)
    return not item.target.id.startswith("_") and "ClassVar" not in ast.unparse(item.annotation)


def _aliases(item: ast.AnnAssign) -> set[str]:
    calls = [node for node in ast.walk(item) if isinstance(node, ast.Call)]
    words = [keyword for call in calls for keyword in call.keywords if keyword.arg in ("alias", "validation_alias")]
    return {word.value.value for word in words if isinstance(word.value, ast.Constant)}  # type: ignore[misc]


def test_every_route_is_compared() -> None:
    assert {route.path for route in ROUTES} == MODELS.keys()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_field_of_the_installed_engine_has_a_rule(route: Route) -> None:
    for name in MODELS[route.path]:
        fields = _fields(name)
        assert "model" in fields, f"{name} is not where it was: look for the model of {route.path}"
        known = route.table(Limits()).rules.keys() | {"model"}
        assert fields - known == set(), f"{name} of the installed vLLM has fields that no table knows"
