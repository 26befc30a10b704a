"""A learnt prompt is the block chain that an engine would make of it, as far as its text goes."""

import json
import queue
import random
import time
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from functions.api.ids import PoolName
from functions.decisions.prefix.block_names import chain, scope_seed
from functions.engines.sim.model import SimulatedModel
from functions.engines.sim.templates import ChatMessage
from functions.gateway.intake.routes import CHAT, COMPLETIONS, Route
from functions.gateway.prefix import prompt_learner
from functions.gateway.prefix.prompt_chains import Learnt
from functions.gateway.prefix.prompt_learner import RETRY_S, PromptLearner, PromptModels, load_model
from functions.gateway.prefix.prompt_template import PromptTemplate
from tests.gateway.prompt_rig import POOL, TEMPLATE, lesson_of, model_dir, trained

CONTENT = "The quick brown fox jumps over the lazy dog. " * 60
BODY: dict[str, Any] = {"model": POOL, "messages": [{"role": "user", "content": CONTENT}], "cache_salt": "s3cret"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_dir(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def learner() -> PromptLearner:
    return PromptLearner()


def engines_chain(messages: list[dict[str, str]], adapter: str = "", salt: str = "") -> list[int]:
    prompt = PromptTemplate(TEMPLATE, {}).render(messages)
    ids = Tokenizer.from_str(trained()).encode(prompt, add_special_tokens=False).ids
    return list(chain(scope_seed(adapter, salt), array("q", ids), 16))


@pytest.mark.parametrize("adapter", ["", "acme/bot@sha256:0123456789abcdef"])
def test_learnt_names_match_the_engines_blocks(learner: PromptLearner, models: Path, adapter: str) -> None:
    learnt = learner.learn(lesson_of(BODY, models, adapter=adapter))
    assert learnt is not None
    whole = engines_chain(BODY["messages"], adapter, "s3cret")
    assert list(learnt.names) == whole[: len(learnt.names)]
    assert len(learnt.names) == learnt.settled[-1] >= len(whole) * 0.7, "all but the text after its last whole block"
    assert len(learnt.settled) == len(learnt.text_blocks) == len(CONTENT) // 512


def test_the_next_turn_has_the_same_beginning(learner: PromptLearner, models: Path) -> None:
    more = [{"role": "assistant", "content": "Indeed. " * 40}, {"role": "user", "content": "And then? " * 80}]
    first = learner.learn(lesson_of(BODY, models))
    second = learner.learn(lesson_of(BODY | {"messages": [*BODY["messages"], *more]}, models))
    assert first is not None and second is not None
    assert second.names[: len(first.names)] == first.names
    assert len(second.names) > len(first.names) + 20


def test_a_completion_is_learnt_too(learner: PromptLearner, models: Path) -> None:
    learnt = learner.learn(lesson_of({"model": POOL, "prompt": CONTENT}, models, route=COMPLETIONS))
    ids = Tokenizer.from_str(trained()).encode(CONTENT).ids
    assert learnt is not None and len(learnt.names) > 20
    assert list(learnt.names) == list(chain(scope_seed("", ""), array("q", ids), 16))[: len(learnt.names)]


@pytest.mark.parametrize(
    "body",
    [
        BODY | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {
            "model": POOL,
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "x": CONTENT}, {"type": "text", "text": CONTENT}]}
            ],
        },
    ],
)
def test_inexact_prompt_is_learnt_without_names(learner: PromptLearner, models: Path, body: dict[str, Any]) -> None:
    learnt = learner.learn(lesson_of(body, models))
    assert learnt is not None and len(learnt.names) == 0 and set(learnt.settled) == {0}


def test_changed_body_is_not_learnt(learner: PromptLearner, models: Path) -> None:
    job = lesson_of(BODY, models)
    assert learner.learn(msgspec.structs.replace(job, body=json.dumps(BODY | {"cache_salt": "x"}).encode())) is None


def test_missing_tokenizer_is_retried_later(tmp_path: Path) -> None:
    now_s = [5.0]
    models = PromptModels(clock=lambda: now_s[0])
    assert models.model_for(POOL, tmp_path / POOL) is None
    model_dir(tmp_path)
    assert models.model_for(POOL, tmp_path / POOL) is None
    now_s[0] += RETRY_S
    assert models.model_for(POOL, tmp_path / POOL) is not None
    assert models.model_for(PoolName("another"), tmp_path / "another") is None


def test_changed_directory_changes_the_tokenizer_at_once(tmp_path: Path) -> None:
    models = PromptModels(clock=lambda: 0.0)
    first, second = (model_dir(tmp_path / name) / POOL for name in ("a", "b"))
    found = models.model_for(POOL, first)
    assert found is not None and models.model_for(POOL, first) is found
    assert models.model_for(POOL, second) not in (None, found)
    assert models.model_for(POOL, tmp_path) is None, "a former one is none"


def test_builtin_tokenizer_matches_the_simulated_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"shoal_tokenizer": "builtin"}))
    model, engine = load_model(tmp_path), SimulatedModel.load(str(tmp_path), ())
    messages = [{"role": "user", "content": "Größe, “quotes”\nand 1234567 words"}]
    assert model.template is not None
    prompt = model.template.render(messages)
    spoken = [ChatMessage(message["role"], message["content"]) for message in messages]
    assert prompt == engine.template.render(spoken, add_generation_prompt=True)
    tokens = model.tokenizer.tokens(prompt, add_special_tokens=False)
    assert list(tokens.ids) == engine.tokenizer.encode(prompt, add_special_tokens=False)
    assert tokens.ends[-1] == len(prompt)


def test_learner_thread_survives_an_unreadable_job(learner: PromptLearner, models: Path) -> None:
    told: queue.Queue[Learnt] = queue.Queue()
    job = lesson_of(BODY, models)
    broken = msgspec.structs.replace(job, body=b"{", text_blocks=(1,))
    learner.start(lambda job, learnt: told.put(learnt))
    for item in (broken, job):
        assert learner.request(item)
    assert told.get(timeout=60).text_blocks == job.text_blocks
    learner.close()


def test_jobs_over_the_bound_are_counted(models: Path) -> None:
    idle, job = PromptLearner(), lesson_of(BODY, models)
    wanted = [idle.request(msgspec.structs.replace(job, text_blocks=(number,))) for number in range(1000)]
    assert 0 < sum(wanted) < 1000
    assert idle.left_out_total == 1000 - sum(wanted)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_very_long_prompt_is_learnt_up_to_the_bound(
    learner: PromptLearner, models: Path, monkeypatch: pytest.MonkeyPatch, route: Route
) -> None:
    body = BODY if route is CHAT else {"model": POOL, "prompt": CONTENT, "cache_salt": "s3cret"}
    whole = learner.learn(lesson_of(body, models, route=route))
    monkeypatch.setattr(prompt_learner, "MAX_LEARNT_CHARS", 1200)
    cut = learner.learn(lesson_of(body, models, route=route))
    assert whole is not None and cut is not None
    assert 10 < len(cut.names) < len(whole.names) and cut.names == whole.names[: len(cut.names)]
    assert cut.settled[0] == whole.settled[0], "what lies before the cut is not changed by it"
    assert cut.settled[2:] == (cut.settled[2],) * len(cut.settled[2:]), "what lies after it settles no more"


def test_tokenising_releases_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the event loop would stall for as long: 2 s for these 800 KB."""
    monkeypatch.setattr(prompt_learner, "MAX_LEARNT_CHARS", 1_000_000)
    learner, models = PromptLearner(), model_dir(tmp_path)
    content = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=800_000))
    job = lesson_of({"model": POOL, "messages": [{"role": "user", "content": content}]}, models)
    told: queue.Queue[Learnt] = queue.Queue()
    learner.start(lambda job, learnt: told.put(learnt))
    began_s = last_s = time.perf_counter()
    assert learner.request(job)
    longest_s = 0.0
    while told.empty():
        time.sleep(0.001)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    took_s = last_s - began_s
    learner.close()
    assert longest_s < max(0.7, took_s / 2), f"{longest_s:.3f} s of {took_s:.3f} s"
