"""Warm-up of a new engine: it compiles code for each kind of request before tenants' requests arrive.

vLLM compiles parts of its sampler at first use, and its step loop stops meanwhile. On two CPU cores the first request
with log probabilities delayed all others by 4 to 38 s, which looks like a hung engine. The replica is therefore
`starting` until one request of each kind was answered, and stalls meanwhile do not count as hanging
(`Evidence.warming`). After `timeout_s` in all it serves anyway. An engine that has served before (only its agent
restarted) is skipped.

Neighbours: `monitor` decides when to start it.
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
# Fields of a completion by what the engine must compile. Log probabilities of one row and of several are two kinds.
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
    """Warm-up requests to the engine. Owned by the agent's loop; one run at a time."""

    def __init__(self, engine: EngineClient, model: str, status: AgentStatus, timeout_s: float) -> None:
        """`timeout_s` 0 disables the warm-up."""
        self._engine, self._model, self._status = engine, model, status
        self._timeout_s = timeout_s

    def mark_warming(self) -> bool:
        """Mark the replica as warming up unless the warm-up is disabled. Return True if it was marked. Call before
        `run` is scheduled."""
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
            _log.warning("the engine took over %.0f s to warm up; it serves anyway", self._timeout_s)
        except EngineError as error:
            _log.warning("the engine cannot be warmed up: %s", error)
        else:
            _log.info("warmed up with %d kinds of request in %.1f s", len(kinds), clock() - started_s)
        finally:
            self._status.warming = False
            self._status.rates = EngineRates()  # slower than any tenant's request, so routers must not use it

    async def _answered(self, fields: Mapping[str, Any]) -> None:
        started_s = self._status.clock()
        try:
            await self._engine.complete(self._model, fields, self._timeout_s)
        except EngineRefused as error:  # the engine does not offer this kind, so no request waits for it
            _log.info("no warm-up with %s: %s", ", ".join(fields), error)
        took_s = self._status.clock() - started_s
        if took_s > 1.0:
            _log.info("the first request with %s took %.1f s", ", ".join(fields), took_s)
