"""Embeddings: 1 to 16 texts a request, mostly one. Answers are not streamed, because each is one forward pass."""

import json
from typing import Any

from locust import task

from loadtests.locust.answers import WrongAnswer, whole
from loadtests.locust.client import Reply
from loadtests.locust.conversation import words
from loadtests.locust.user import EMBEDDINGS, TenantUser

_SIZES = (1, 1, 1, 2, 4, 8, 16)


class EmbeddingUser(TenantUser):
    model_task = "embed"

    @task
    def texts(self) -> None:
        size = self.rng.choice(_SIZES)
        body = {
            "model": self.rng.choice(self.models).id,
            "input": [words(self.rng, self.rng.randint(5, 60)) for _ in range(size)],
        }
        self.send_request("embed", "embeddings", EMBEDDINGS, body, {}, _vectors)
        self.think(0.05, 0.5)


def _vectors(reply: Reply, body: dict[str, Any]) -> int:
    """Check that the answer has one vector of numbers for each text, in order. Return 0: there are no answer tokens."""
    answer = whole(reply.body, reply.answering(body["model"]))
    found = answer.get("data")
    if not isinstance(found, list) or [item.get("index") for item in found] != list(range(len(body["input"]))):
        raise WrongAnswer("not one vector for each text")
    if not all(item.get("embedding") for item in found):
        raise WrongAnswer("an empty vector")
    json.dumps(found[0]["embedding"][:8], allow_nan=False)
    return 0
