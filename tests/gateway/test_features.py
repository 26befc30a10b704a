"""Features: what a request will need, estimated before it runs, and what its answer taught."""

import json
import time
from typing import Any

import msgspec
import pytest

from functions.api.snapshot import PoolEntry, Task
from functions.decisions.request.length_model import UNKNOWN_OUTPUT_TOKENS
from functions.gateway.intake.features import for_other_model
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.routes import CHAT, COMPLETIONS, MESSAGES, RERANK, RESPONSES_ROUTE, TOKENIZE, Route
from functions.gateway.request.answers import Usage
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, BOT_V1, BOT_V2, GLOBEX_KEY, NOW_UNIX_S, PEPPER, POOL

LONG = "All work and no play. " * 100  # 2,200 bytes


@pytest.fixture
def intake() -> Intake:
    return Intake(PEPPER, rig.limits(), Splits(time.monotonic))


def admit(
    intake: Intake, key: str = ACME_KEY, route: Route = CHAT, quota: dict[str, Any] | None = None, **fields: Any
) -> Admitted:
    body = {"model": "acme/bot" if key == ACME_KEY else "globex/bot", **fields}
    if route is CHAT:
        body.setdefault("messages", [{"role": "user", "content": LONG}])
    catalogue = rig.catalogue(quotas=(rig.quota(**quota),)) if quota else rig.catalogue()
    raw = RawRequest("r", rig.headers(key), json.dumps(body).encode())
    return intake.admit(catalogue, route, raw, intake.recognise(catalogue, raw, NOW_UNIX_S))


def test_prompt_size_counts_text_not_body(intake: Intake) -> None:
    plain = admit(intake).features
    escaped = admit(intake, messages=[{"role": "user", "content": LONG, "name": None}], metadata={"a": "b" * 500})
    assert plain.prompt_bytes == len("user") + 1 + len(LONG)
    assert plain.prompt_tokens == 607  # 1.1 x 2,205 / 4, rounded up
    assert not plain.prompt_exact
    assert escaped.features.prompt_bytes == plain.prompt_bytes


def test_token_ids_are_exact(intake: Intake) -> None:
    features = admit(intake, route=COMPLETIONS, prompt=list(range(300))).features
    assert (features.prompt_tokens, features.prompt_exact) == (300, True)
    assert len(features.text_blocks) == 300 * 8 // 512


@pytest.mark.parametrize(
    ("route", "fields", "most"),
    [
        (CHAT, {}, 2048),  # to the end of the window
        (CHAT, {"max_tokens": 100}, 100),
        (CHAT, {"max_tokens": 100, "max_completion_tokens": 50}, 50),  # the one that the engine prefers
        (CHAT, {"max_tokens": 2**31 - 1}, 2048),
        (CHAT, {"max_tokens": 100, "n": 4}, 400),
        (COMPLETIONS, {"prompt": "x"}, 16),
        (COMPLETIONS, {"prompt": ["x", "y", "z"], "max_tokens": 10, "n": 2}, 60),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 10, "n": 2, "best_of": 5}, 50),
        (COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 10}, 10),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 0),
        (TOKENIZE, {"prompt": "x"}, 0),
    ],
)
def test_maximum_output_tokens_per_request(intake: Intake, route: Route, fields: dict[str, Any], most: int) -> None:
    features = admit(intake, route=route, **fields).features
    assert features.max_output_tokens == most
    assert features.expected_output_tokens <= most


@pytest.mark.parametrize(("task", "reads"), [("score", 300), ("embed", 100)])
def test_scoring_model_counts_the_query_for_each_document(intake: Intake, task: Task, reads: int) -> None:
    catalogue = rig.catalogue(pools=(PoolEntry(POOL, 2048, task=task),))
    body = {"model": POOL, "query": "q" * 100, "documents": ["a", "b", "c"]}
    raw = RawRequest("r", rig.headers(), json.dumps(body).encode())
    features = intake.admit(catalogue, RERANK, raw, intake.recognise(catalogue, raw, NOW_UNIX_S)).features
    assert 0 < features.prompt_bytes - reads < 20, "and the documents once"


@pytest.mark.parametrize("strange", [[], "x", {}, [[]], -1, 10**30, True, [None]])
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES_ROUTE, MESSAGES])
def test_fields_unknown_to_a_route_are_not_counted(intake: Intake, route: Route, strange: Any) -> None:
    """Such fields pass to the engine unchecked."""
    unknown = {
        CHAT: ("prompt", "best_of", "input", "system"),
        COMPLETIONS: ("messages", "input", "tools", "system"),
        RESPONSES_ROUTE: ("n", "best_of", "messages", "max_tokens"),
        MESSAGES: ("n", "best_of", "max_completion_tokens"),
    }[route]
    needed: dict[str, Any] = {
        CHAT: {},
        COMPLETIONS: {"prompt": "x", "max_tokens": 9},
        RESPONSES_ROUTE: {"input": "x", "max_output_tokens": 9},
        MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
    }[route]
    features = admit(intake, route=route, **needed, **dict.fromkeys(unknown, strange)).features
    assert features.choices == 1
    assert features.max_output_tokens == (2048 if route is CHAT else 9)


def test_tier_cap_limits_output_tokens(intake: Intake) -> None:
    assert admit(intake, quota={"max_output_tokens": 30}, n=2).features.max_output_tokens == 60


def test_answer_length_is_learnt_per_tenant(intake: Intake) -> None:
    assert admit(intake).features.expected_output_tokens == UNKNOWN_OUTPUT_TOKENS
    for _ in range(20):
        intake.features.learn(admit(intake), Usage(prompt_tokens=700, completion_tokens=90))
    learnt = admit(intake).features
    assert 90 <= learnt.expected_output_tokens <= 95
    assert admit(intake, n=3).features.expected_output_tokens == 3 * learnt.expected_output_tokens
    assert admit(intake, max_tokens=20).features.expected_output_tokens == 20
    assert admit(intake, GLOBEX_KEY).features.expected_output_tokens == UNKNOWN_OUTPUT_TOKENS, "another tenant's"


def test_answer_length_is_learnt_per_choice(intake: Intake) -> None:
    for _ in range(20):
        intake.features.learn(admit(intake, n=4), Usage(prompt_tokens=700, completion_tokens=400))
    assert 100 <= admit(intake).features.expected_output_tokens <= 105


def test_token_length_is_learnt_from_prompts(intake: Intake) -> None:
    for _ in range(100):
        intake.features.learn(admit(intake), Usage(prompt_tokens=2205 // 3, completion_tokens=9))
    assert admit(intake).features.prompt_tokens == pytest.approx(1.1 * 2205 / 3, rel=0.01)
    assert admit(intake, GLOBEX_KEY).features.prompt_tokens == 607


def test_token_length_ignores_pictures_and_token_ids(intake: Intake) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    seen = admit(intake, messages=[{"role": "user", "content": [{"type": "text", "text": LONG}, picture]}])
    assert seen.features.prompt_tokens > 1024
    for _ in range(100):
        intake.features.learn(seen, Usage(prompt_tokens=5000, completion_tokens=9))
        intake.features.learn(admit(intake, route=COMPLETIONS, prompt=[1] * 50), Usage(50, 9))
    assert admit(intake).features.prompt_tokens == 607


def test_equal_prompts_share_blocks_only_within_a_tenant_and_a_version(intake: Intake) -> None:
    mine = admit(intake).features.text_blocks
    assert len(mine) == 4
    assert admit(intake, temperature=0.5).features.text_blocks == mine
    assert set(mine).isdisjoint(admit(intake, GLOBEX_KEY).features.text_blocks)
    assert set(mine).isdisjoint(admit(intake, model="acme/bot:canary").features.text_blocks)
    assert set(mine).isdisjoint(admit(intake, model=POOL).features.text_blocks)


def test_request_for_another_model_gets_its_blocks(intake: Intake) -> None:
    for_v1, for_v2 = admit(intake), admit(intake, model="acme/bot@v2")
    upstream = json.loads(for_v1.upstream_body)
    assert for_other_model(for_v1.features, upstream, CHAT.output, BOT_V2) == for_v2.features
    assert for_other_model(for_v1.features, upstream, CHAT.output, BOT_V1) == for_v1.features


def test_a_very_long_prompt_is_covered_to_its_end_by_few_blocks(intake: Intake) -> None:
    long = "x" * 1_000_000
    one = admit(intake, messages=[{"role": "user", "content": long + "a" * 8192}]).features
    other = admit(intake, messages=[{"role": "user", "content": long + "b" * 8192}]).features
    assert len(one.text_blocks) <= 512
    assert one.text_block_bytes == 2048
    same = sum(a == b for a, b in zip(one.text_blocks, other.text_blocks, strict=True))
    assert 0 < same < len(one.text_blocks)


def test_features_are_not_tracked_by_the_collector(intake: Intake) -> None:
    assert admit(intake).features.__struct_config__.gc is False
    assert msgspec.structs.replace(admit(intake).features, prompt_tokens=1).kv_tokens == 1 + UNKNOWN_OUTPUT_TOKENS
