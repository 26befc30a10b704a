"""Warm-up of an engine that has just come up: what it compiles at a first request of its kind, it compiles before
anybody waits for it.

vLLM compiles some of its sampler when it is first needed, and its step loop stands still meanwhile: measured on two
cores of a CPU, the first request with log probabilities held all others up for 4 to 38 s, which to a watch over tokens
looks like an engine that hangs. So until one request of each kind was answered the replica is `starting`, and nothing
of what the engine does then counts as hanging (`Evidence.warming`). Bounded: after `timeout_s` in all it serves as it
is. An engine that has served before (its agent alone was started again) is left alone.

Neighbours: `monitor` begins it and says when it is due.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from functions.api.snapshot import Task
from functions.decisions.health.engine_rates import EngineRates
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError, EngineRefused
from functions.replica.status import AgentStatus

_log = logging.getLogger(__name__)

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_SAMPLED = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "seed": 1}
_WEIGHED = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"5": 1.0}}
# Fields of a completion, by what the engine has to compile for it. Of log probabilities, one row and several are two.
KINDS: Mapping[Task, Sequence[Mapping[str, Any]]] = {
    "generate": (
        {"logprobs": 1},
        {"logprobs": 1, "n": 2, "temperature": 1.0},
        {"logprobs": 1, "echo": True},
        _SAMPLED,
        {**_WEIGHED, "min_tokens": 1, "bad_words": ["no"]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "warm", "schema": _SCHEMA}}},
    ),
    "embed": (),
    "classify": (),
    "score": (),
}


class WarmUp:
    """Owned by the agent's loop; one run at a time."""

    def __init__(self, engine: EngineClient, model: str, status: AgentStatus, timeout_s: float) -> None:
        """0: none is made."""
        self._engine, self._model, self._status = engine, model, status
        self._timeout_s = timeout_s

    def begin(self) -> bool:
        """Before `run` is scheduled: from now on the replica warms up. Whether it does."""
        self._status.warming = self._timeout_s > 0
        return self._status.warming

    async def run(self, task: Task) -> None:
        clock = self._status.clock
        started_s, kinds = clock(), KINDS[task]
        try:
            async with asyncio.timeout(self._timeout_s):
                for fields in kinds:
                    await self._answered(fields)
        except TimeoutError:
            _log.warning("the engine took over %.0f s to warm up; it serves as it is", self._timeout_s)
        except EngineError as error:
            _log.warning("the engine cannot be warmed up: %s", error)
        else:
            _log.info("warmed up with %d kinds of request in %.1f s", len(kinds), clock() - started_s)
        finally:
            self._status.warming = False
            self._status.rates = EngineRates()  # no tenant's request is that slow; routers would go by it

    async def _answered(self, fields: Mapping[str, Any]) -> None:
        started_s = self._status.clock()
        try:
            await self._engine.complete(self._model, fields, self._timeout_s)
        except EngineRefused as error:  # a kind that it does not offer: nobody waits for that either
            _log.info("no warm-up with %s: %s", ", ".join(fields), error)
        took_s = self._status.clock() - started_s
        if took_s > 1.0:
            _log.info("the first request with %s took %.1f s", ", ".join(fields), took_s)
