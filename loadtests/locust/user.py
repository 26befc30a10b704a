"""A user of one tenant: sends requests, obeys retry-after, reads answers and records times. Profiles define requests.

Random draws depend only on the seed, the worker and the user's number there: equal runs start equal conversations.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import gevent
from locust import User

from loadtests.fleet import Model, Tenant
from loadtests.locust import hooks, measured
from loadtests.locust.answers import WrongAnswer, text_of_whole, tokens_of, whole
from loadtests.locust.client import Client, Reply, Unreachable
from loadtests.locust.refusals import next_step

_numbers = itertools.count()
CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"


class TenantUser(User):
    """Abstract base of the profiles' users, which add tasks. `at_once` is the maximum of concurrent requests."""

    abstract = True
    at_once: ClassVar[int] = 1
    model_task: ClassVar[str] = "generate"  # task of the models that the user calls

    def on_start(self) -> None:
        hooks.wait_ready(self.environment)
        options = self.environment.parsed_options
        worker = getattr(self.environment.runner, "worker_index", 0)
        self.number = f"{options.seed}-{worker}-{next(_numbers)}"
        self.rng = random.Random(f"{type(self).__name__} {self.number}")
        self.tenant: Tenant = self.rng.choice(hooks.tenants(self.environment, self.model_task))
        self.models: tuple[Model, ...] = self.tenant.models
        self._think_s = 0.0
        self.tries, self._address = options.tries, self.rng.choice(hooks.addresses(self.environment))
        self.client = self.connected(options.answer_timeout)

    def on_stop(self) -> None:
        self.client.close()

    def wait_time(self) -> float:  # type: ignore[override]
        return self._think_s

    def think(self, least_s: float, most_s: float) -> None:
        """Pause; Locust may stop the user during it."""
        self._pause(self.rng.uniform(least_s, most_s))

    def chat(self, name: str, model: str, body: dict[str, Any], headers: dict[str, str], *, stream: bool) -> str | None:
        """Send a chat request and return the assistant's text, or None after a recorded failure."""
        asked = {"model": model, **body, "stream": stream}
        if stream:
            asked["stream_options"] = {"include_usage": True}
        reply = self.send_request("stream" if stream else "whole", name, CHAT, asked, headers, self.count_tokens)
        if reply is None:
            return None
        return "".join(reply.stream.text) if reply.stream is not None else text_of_whole(whole(reply.body, None))

    def send_request(
        self,
        kind: str,
        name: str,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
        check: Callable[[Reply, dict[str, Any]], int],
        pause: Callable[[float], None] | None = None,
    ) -> Reply | None:
        """Send one request, at most `tries` times if refused; `check` returns tokens or raises WrongAnswer."""
        waited_s = 0.0
        for tries in range(1, self.tries + 1):
            began_s = time.perf_counter()
            try:
                reply = self.client.post_json(path, body, headers)
                step = next_step(reply.status, reply.headers.get("retry-after"), reply.code, tries, self.tries)
                tokens = check(reply, body) if step.what == "answered" else 0
            except (WrongAnswer, Unreachable) as error:
                self.record_end(kind, name, time.perf_counter() - began_s, error)
                return None
            if step.what in ("wait", "give_up"):
                self.record_refusal(name, reply)
            if step.what == "wait":
                (pause or self._pause)(step.wait_s)
                waited_s += step.wait_s
                continue
            if waited_s:
                self._beside("waited", name, waited_s)  # also if the request was given up
            return self._ended(kind, name, reply, step.what, step.why, tokens)
        return None

    def _ended(self, kind: str, name: str, reply: Reply, what: str, why: str, tokens: int) -> Reply | None:
        if what == "give_up":
            self._beside(measured.GAVE_UP, name, None)
            return None
        if what == "fail":
            self.record_end(kind, name, reply.took_s, Unreachable(why))
            return None
        self.record_end(kind, name, reply.took_s, None, len(reply.body))
        if tokens:
            self._beside(measured.TOKENS, name, None, tokens)
        if reply.degraded:
            self._beside(measured.DEGRADED, name, None)
        if reply.stream is not None:
            self._beside("ttft", name, reply.stream.first_token_s)
            for gap_s in reply.stream.gaps_s:
                self._beside("gap", name, gap_s)
        return reply

    def count_tokens(self, reply: Reply, body: dict[str, Any]) -> int:
        return (
            reply.stream.tokens
            if reply.stream is not None
            else tokens_of(whole(reply.body, reply.answering(body["model"])))
        )

    def record_end(self, kind: str, name: str, seconds: float, error: Exception | None, size: int = 0) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=seconds * 1000,
            response_length=size,
            exception=error,
            context={},
        )

    def record_refusal(self, name: str, reply: Reply) -> None:
        self._beside(measured.REFUSED, f"{name} {reply.status} {reply.code}", reply.took_s)

    def _beside(self, kind: str, name: str, seconds: float | None, size: int = 0) -> None:
        measured.beside_total(self.environment.stats, kind, name, seconds, size)

    def _pause(self, seconds: float) -> None:
        self._think_s = seconds
        try:
            self.wait()
        finally:
            self._think_s = 0.0

    def connected(self, answer_s: float) -> Client:
        context = hooks.tls() if self._address.startswith("https") else None
        return Client(self._address, self.tenant.api_key, context, self.at_once, answer_s)


def sleep(seconds: float) -> None:
    """Pause a greenlet that is not the user's own."""
    gevent.sleep(seconds)
