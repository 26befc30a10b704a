"""Agents: bursts of short calls with tools on several concurrent lines of work, then a pause.

Each line of work is a growing transcript: a call, a tool's result, the next call. Results are appended as user
messages, so the prompt is the same for models that call tools and for models that do not.
"""

import random

from gevent.pool import Group
from locust import task

from loadtests.locust.conversation import Conversation, words
from loadtests.locust.user import CHAT, TenantUser, sleep

_LINES, _STEPS = (2, 4), (2, 5)
_TOKENS = 24
_HEADERS = {"x-shoal-class": "near-real-time"}


def _tool(name: str, argument: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"{name} by {argument}", "parameters": parameters},
    }


_TOOLS = [_tool("search", "query"), _tool("read_file", "path"), _tool("run_test", "name")]


class AgentUser(TenantUser):
    at_once = _LINES[1]

    @task
    def burst(self) -> None:
        model = self.rng.choice(self.models)
        lines = Group()
        try:
            for number in range(self.rng.randint(*_LINES)):
                rng = random.Random(self.rng.getrandbits(64))
                talk = Conversation(
                    f"agent-{self.number}-{number}", words(rng, 120), rng.randint(*_STEPS), model.window_tokens
                )
                lines.spawn(self._work, talk, model.id, rng)
            lines.join()
        finally:
            lines.kill()
        self.think(2.0, 6.0)

    def _work(self, talk: Conversation, model: str, rng: random.Random) -> None:
        while (messages := talk.next_turn(words(rng, 25), _TOKENS)) is not None:
            stream = rng.random() < 0.5
            body = {"model": model, "messages": messages, "max_tokens": _TOKENS, "tools": _TOOLS, "stream": stream}
            headers = {**_HEADERS, "x-session-id": talk.name}
            if (
                self.send_request(
                    "stream" if stream else "whole", "agents", CHAT, body, headers, self.count_tokens, sleep
                )
                is None
            ):
                return
            talk.add_answer(words(rng, 12))
            sleep(rng.uniform(0.02, 0.2))
