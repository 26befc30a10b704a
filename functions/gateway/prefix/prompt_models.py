"""Tokenizer and chat template of each pool's base model, read when they are first asked for.

They lie at `<directory>/<pool>/`: tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja. A
pool without them is not known exactly. The simulated engine's stand-in for a model names the engine's own tokenizer in
its config.json. A directory that could not be read is looked at again after RETRY_S: models may come later.
"""

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from functions.api.ids import PoolName
from functions.engines.sim.templates import CHATML
from functions.engines.sim.tokenizer import BuiltinTokenizer
from functions.gateway.prefix.prompt_template import PromptTemplate, load_template
from functions.gateway.prefix.prompt_tokenizer import ModelTokenizer, PromptTokenizer, Tokens

BUILTIN = "builtin"
BUILTIN_KEY = "shoal_tokenizer"
RETRY_S = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PromptModel:
    tokenizer: PromptTokenizer
    template: PromptTemplate | None  # None: a model without chats


class SimulatedTokenizer:
    """The simulated engine's own, with the ends of its tokens."""

    def __init__(self) -> None:
        self._tokenizer = BuiltinTokenizer()

    def tokens(self, text: str, *, add_special_tokens: bool) -> Tokens:
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        tokens = Tokens()
        tokens.ids.extend(ids)
        tokens.ends.extend(accumulate(map(len, self._tokenizer.names(ids))))
        return tokens


class PromptModels:
    """Owned by one thread. Bounded by the pools of a snapshot, whose names alone are asked for."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._models: dict[PoolName, PromptModel] = {}
        self._missing: dict[PoolName, float] = {}  # when it was last looked for

    def of(self, pool: PoolName) -> PromptModel | None:
        model = self._models.get(pool)
        if model is not None or self._clock() < self._missing.get(pool, -math.inf) + RETRY_S:
            return model
        try:
            model = self._models[pool] = load_model(self._directory / pool)
        except (OSError, ValueError) as error:
            if pool not in self._missing:
                _log.warning("prompts of %s are not known exactly: %s", pool, error)
            self._missing[pool] = self._clock()
            return None
        return model


def load_model(directory: Path) -> PromptModel:
    """Raises OSError or ValueError where what is there is no tokenizer, or none is there."""
    config_file = directory / "config.json"
    if config_file.is_file() and json.loads(config_file.read_text()).get(BUILTIN_KEY) == BUILTIN:
        return PromptModel(SimulatedTokenizer(), PromptTemplate(CHATML, {}))
    return PromptModel(ModelTokenizer.load(directory), load_template(directory))
