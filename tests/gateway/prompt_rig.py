"""A model directory with a tokenizer trained in the test: byte-level BPE and ChatML, like the models here."""

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from functions.api.ids import EngineName, PoolName, TenantId
from functions.decisions.prefix.block_names import BLOCK_BYTES, seed_of, text_blocks
from functions.gateway.intake.routes import CHAT, Route
from functions.gateway.prefix.prompt_learner import PromptJob
from functions.gateway.prefix.prompt_text import prompt_text

POOL = PoolName("smollm2-135m")
TENANT = TenantId("acme")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = Path(__file__).parent.parent.parent / "README.md"


@lru_cache(1)
def trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    return str(tokenizer.to_str())


def _lines() -> Iterator[str]:
    yield from _CORPUS.read_text().splitlines(keepends=True)


def model_dir(root: Path) -> Path:
    """Write the files of a model to `root`/POOL."""
    directory = root / POOL
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(trained())
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return root


def real_model_dir() -> Path:
    """Return the base model's own directory, or skip the test if it was not prepared."""
    directory = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
    if not directory:
        pytest.skip("SHOAL_BASE_MODEL_DIR is not set: `make test` prepares the base model, and sets it")
    return Path(directory)


def lesson_of(
    body: dict[str, Any], models: Path, *, route: Route = CHAT, adapter: str = "", block_tokens: int = 16
) -> PromptJob:
    """Return the prompt job that the gateway would make from this body; `models` is the result of `model_dir`."""
    name = EngineName(adapter or POOL)
    blocks = text_blocks(prompt_text(body, route.output).text, seed_of(body.get("cache_salt", ""), name), BLOCK_BYTES)
    assert route.output is not None
    return PromptJob(
        *(TENANT, POOL, name, bool(adapter), route.output, orjson.dumps(body), blocks, BLOCK_BYTES, block_tokens),
        model_dir=models / POOL,
    )


TEXTS = st.text(
    st.sampled_from(" \n\t") | st.characters(codec="utf-8", exclude_categories=["Cs"]) | st.sampled_from("ab1'é<|>"),
    max_size=80,
) | st.lists(
    st.sampled_from(["word", " the", "\n\n", "  ", "don't", " 1234", "<|im_end|>", "é", "🙂"]), max_size=12
).map("".join)
CONVERSATIONS = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system"]),
        TEXTS,
    ),
    min_size=1,
    max_size=5,
)
