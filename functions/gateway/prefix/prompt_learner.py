"""Tokenize prompts on a thread beside the event loop: render, tokenize, name the blocks, align.

No request waits for it. A request with a new prompt is routed by what is known: a former turn, or the gateway's own
record. The prompt is learned meanwhile, so that the next turn finds it. Waiting for the tokenizer would delay each
first turn (40 ms for 20 KB) for almost no gain: no replica holds what no replica has seen. It would help only with a
prompt that another gateway has sent, which is found one request later anyway.

The queue is short and fair (`tokenize_queue`), and prompts that do not fit are skipped. Rendering holds the
interpreter's lock, tokenizing does not. Only the first MAX_LEARNT_CHARS of a very long prompt are learned. Replicas
differ there, and the steps that hold the lock (reading 100,000 token ids from the library: 10 ms) stay short.
Measured with a prompt of 4 MB: the event loop is blocked for 26 ms at a time for English, for 80 ms for random
letters (test_tokenising_releases_the_gil; without these measures 10 s).

A prompt is learned only if its text blocks are those with which the request was admitted. This detects bodies that
were changed since or are read differently here.

The tokenizer and chat template of a pool's base model are read at first use from the directory that a job names
(`tokenizer_source` provides it): tokenizer.json, tokenizer_config.json and chat_template.jinja if present. For a
simulated engine, config.json names the engine's own tokenizer. An unreadable directory is tried again after RETRY_S,
because models may arrive later.
"""

import json
import logging
import math
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import orjson

from functions.api.ids import EngineName, PoolName, TenantId
from functions.decisions.prefix.block_names import chain, scope_seed, seed_of, text_blocks
from functions.engines.sim.templates import CHATML
from functions.engines.sim.tokenizer import BuiltinTokenizer
from functions.gateway.intake.lengths import OutputFields
from functions.gateway.prefix.prompt_alignment import settled_tokens, spans
from functions.gateway.prefix.prompt_chains import Learnt
from functions.gateway.prefix.prompt_template import PromptTemplate, TemplateFailed, conversation, load_template
from functions.gateway.prefix.prompt_text import prompt_text
from functions.gateway.prefix.prompt_tokenizer import ModelPromptTokenizer, PromptTokenizer, Tokens
from functions.gateway.prefix.tokenize_queue import TokenizeQueue

BUILTIN = "builtin"
BUILTIN_KEY = "shoal_tokenizer"
RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class PromptModel:
    tokenizer: PromptTokenizer
    template: PromptTemplate | None  # None means that the model has no chat template


class SimulatedTokenizer:
    """The simulated engine's tokenizer, with the ends of its tokens."""

    def __init__(self) -> None:
        self._tokenizer = BuiltinTokenizer()

    def tokens(self, text: str, *, add_special_tokens: bool) -> Tokens:
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        tokens = Tokens()
        tokens.ids.extend(ids)
        tokens.ends.extend(accumulate(map(len, self._tokenizer.names(ids))))
        return tokens


class PromptModels:
    """Tokenizer and template of each pool, from the last requested directory. Owned by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: dict[PoolName, tuple[Path, PromptModel]] = {}
        self._missing: dict[PoolName, tuple[Path, float]] = {}  # the missing directory and the time of the last try

    def model_for(self, pool: PoolName, directory: Path) -> PromptModel | None:
        at, model = self._models.get(pool, (None, None))
        if at == directory:
            return model
        missing_at, looked_s = self._missing.get(pool, (None, -math.inf))
        if missing_at == directory and self._clock() < looked_s + RETRY_S:
            return None
        self._models.pop(pool, None)
        try:
            model = load_model(directory)
        except (OSError, ValueError) as error:
            if missing_at != directory:
                _log.warning("prefixes of pool %s are estimated by text: no tokenizer: %s", pool, error)
            self._missing[pool] = directory, self._clock()
            return None
        self._models[pool] = directory, model
        return model


def load_model(directory: Path) -> PromptModel:
    """Load a model's tokenizer and chat template. Raise OSError or ValueError if there is no valid tokenizer."""
    config_file = directory / "config.json"
    if config_file.is_file() and json.loads(config_file.read_text()).get(BUILTIN_KEY) == BUILTIN:
        return PromptModel(SimulatedTokenizer(), PromptTemplate(CHATML, {}))
    return PromptModel(ModelPromptTokenizer.load(directory), load_template(directory))


_log = logging.getLogger(__name__)
MAX_LEARNT_CHARS = 256 * 1024  # length of a rendered prompt; 64,000 tokens of English
_JOIN_S = 5.0


class PromptJob(msgspec.Struct, frozen=True, gc=False):
    """The part of a request that is needed to learn its prompt."""

    tenant: TenantId
    pool: PoolName
    engine_name: EngineName
    is_adapter: bool
    output: OutputFields  # fields of the route: where the prompt is
    body: bytes
    text_blocks: tuple[int, ...]
    text_block_bytes: int
    block_tokens: int
    model_dir: Path  # directory with the pool's tokenizer


class PromptLearner:
    """Learner of prompts. `learn` is pure except for its caches; `start` and `close` run it on a thread."""

    def __init__(self) -> None:
        self._models = PromptModels()
        self._queue: TokenizeQueue[PromptJob] = TokenizeQueue()
        self._thread: threading.Thread | None = None
        self.left_out_total = 0  # prompts skipped because the queue was full

    def start(self, tell: Callable[[PromptJob, Learnt], object]) -> None:
        """Start the thread that learns prompts. It calls `tell` with each learned one."""
        self._thread = threading.Thread(target=self._run, args=(tell,), name="prompts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._queue.close()
            self._thread.join(_JOIN_S)

    def request(self, job: PromptJob) -> bool:
        """Enqueue a prompt to learn. Return False, and count it as left out, if there is no room."""
        put = self._queue.put(job)
        self.left_out_total += not put
        return put

    def learn(self, job: PromptJob) -> Learnt | None:
        """Learn a prompt. Return None if the tokenizer is missing or the body differs from the admitted one.

        A prompt that cannot be known exactly is learned as one that settles nothing, so that it is not tried again.
        """
        model = self._models.model_for(job.pool, job.model_dir)
        if model is None:
            return None
        body: dict[str, Any] = orjson.loads(job.body)
        salt = body.get("cache_salt") or ""
        text = prompt_text(body, job.output).text
        if text_blocks(text, seed_of(salt, job.engine_name), job.text_block_bytes) != job.text_blocks:
            return None
        ids, settled = _tokens(body, text, model, job)
        seed = scope_seed(job.engine_name if job.is_adapter else "", salt)
        names = chain(seed, ids, job.block_tokens)
        most = len(names)
        blocks = tuple(min(most, tokens // job.block_tokens) for tokens in settled)
        return Learnt(job.text_blocks, job.block_tokens, names[: max(blocks, default=0)], blocks)

    def _run(self, tell: Callable[[PromptJob, Learnt], object]) -> None:
        while True:
            job = self._queue.next_job()
            if job is None:
                return
            try:
                learnt = self.learn(job)
            except Exception:  # an error in one body or template must not stop the thread
                _log.exception("a prompt of %s could not be tokenized", job.engine_name)
                continue
            if learnt is not None:
                tell(job, learnt)


def _tokens(body: dict[str, Any], text: bytes, model: PromptModel, job: PromptJob) -> tuple["array[int]", list[int]]:
    """Return the prompt's token ids, and how many of them each text block settles."""
    boundaries = range(job.text_block_bytes, len(text) + 1, job.text_block_bytes)
    nothing = array("q"), [0] * len(boundaries)
    if job.output.prompt == "messages":
        messages = conversation(body)
        if messages is None or model.template is None:
            return nothing
        try:
            prompt = model.template.render(messages)
        except TemplateFailed as error:
            _log.info("the chat template of pool %s failed: %s", job.pool, error)
            return nothing
        tokens = model.tokenizer.tokens(prompt[:MAX_LEARNT_CHARS], add_special_tokens=False)
        contents = [message["content"] for message in messages]
    elif isinstance(body.get("prompt"), str) and body.get("add_special_tokens") is not False:
        prompt = body["prompt"]
        tokens = model.tokenizer.tokens(prompt[:MAX_LEARNT_CHARS], add_special_tokens=True)
        contents = [prompt]
    else:
        return nothing
    where = spans(contents, text, prompt)
    return tokens.ids, settled_tokens(boundaries, where, prompt[:MAX_LEARNT_CHARS], tokens)
