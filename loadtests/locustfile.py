"""Chat traffic of several tenants and adapters, streaming and not, against the fleet that `shoal env` names.

    eval "$(shoal env)"
    locust -f loadtests/locustfile.py                                      # with its page, http://localhost:8089
    locust -f loadtests/locustfile.py --headless -u 20 -r 5 -t 60s         # without

A stream's row in the table is the whole answer; its time to first token and its gaps between tokens are rows of their
own (types TTFT and ITL). An answer that ends without `[DONE]`, or whose `model` is not the one asked for, is a failure.
Spread over processes or machines with Locust's own --processes and --master/--worker.
"""

import json
import logging
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
from locust import User, between, events, task
from locust.env import Environment

from loadtests import fleet

_QUESTIONS = (
    "What is the capital of France?",
    "How do I reset my password?",
    "Tell me about the sea.",
    "Write one sentence about rain.",
    "What should I cook tonight?",
)
_MAX_TOKENS = 48
_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
_state: dict[str, list[fleet.Tenant]] = {"tenants": []}


@events.init.add_listener
def _find_fleet(environment: Environment, **_: Any) -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request would bury the table
    environment.host = environment.host or fleet.base_url()
    _state["tenants"] = fleet.discover()


class ChatUser(User):
    """One person of one tenant, who asks, reads, and thinks for a moment."""

    wait_time = between(0.5, 2.0)

    def on_start(self) -> None:
        self._tenant = random.choice(_state["tenants"])
        headers = {"authorization": f"Bearer {self._tenant.api_key}"}
        self._client = httpx.Client(base_url=self.host or "", headers=headers, timeout=_TIMEOUT)

    def on_stop(self) -> None:
        self._client.close()

    @task(3)
    def chat_streaming(self) -> None:
        model = random.choice(self._tenant.models)
        started_s = time.perf_counter()
        arrivals_s: list[float] = []
        error: Exception | None = None
        try:
            arrivals_s.extend(time.perf_counter() for _ in self._events(model))
        except (httpx.HTTPError, WrongAnswer) as problem:
            error = problem
        self._report("stream", model, started_s, error, len(arrivals_s))
        if error is None and arrivals_s:
            self._fire("TTFT", model, arrivals_s[0] - started_s)
            for earlier_s, later_s in pairwise(arrivals_s):
                self._fire("ITL", model, later_s - earlier_s)

    @task(1)
    def chat_whole(self) -> None:
        model = random.choice(self._tenant.models)
        started_s = time.perf_counter()
        error: Exception | None = None
        size = 0
        try:
            answer = self._client.post("/chat/completions", json=self._request(model, stream=False))
            answer.raise_for_status()
            size = len(answer.content)
            _check_model(answer.json(), model)
        except (httpx.HTTPError, WrongAnswer) as problem:
            error = problem
        self._report("whole", model, started_s, error, size)

    def _events(self, model: str) -> Iterator[dict[str, Any]]:
        """The stream's events with text; raises WrongAnswer where it is not whole, or not ours."""
        finished = False
        with self._client.stream("POST", "/chat/completions", json=self._request(model, stream=True)) as answer:
            if answer.status_code != 200:
                answer.read()
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    finished = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    _check_model(event, model)
                    yield event
        if not finished:
            raise WrongAnswer("the stream ended without [DONE]")

    def _request(self, model: str, *, stream: bool) -> dict[str, Any]:
        question = {"role": "user", "content": random.choice(_QUESTIONS)}
        return {"model": model, "messages": [question], "max_tokens": _MAX_TOKENS, "stream": stream}

    def _report(self, kind: str, model: str, started_s: float, error: Exception | None, size: int) -> None:
        self._fire(kind, model, time.perf_counter() - started_s, error, size)

    def _fire(self, kind: str, model: str, seconds: float, error: Exception | None = None, size: int = 0) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=model,
            response_time=seconds * 1000,
            response_length=size,
            exception=error,
            context={},
        )


class WrongAnswer(Exception):
    """A 200 that is not the answer to what was asked."""


def _check_model(answer: dict[str, Any], model: str) -> None:
    if "error" in answer:
        raise WrongAnswer(f"an error in the stream: {answer['error'].get('code')}")
    if answer.get("model") != model:
        raise WrongAnswer(f"asked {model}, answered by {answer.get('model')}")
