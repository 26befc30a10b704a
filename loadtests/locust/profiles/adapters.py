"""Adapters: single questions to all models of a tenant by Zipf's law, so that few are hot and many are nearly cold."""

import random

from locust import task

from loadtests.locust import hooks
from loadtests.locust.conversation import words
from loadtests.locust.user import TenantUser
from loadtests.popularity import Popularity

_EXPONENT = 1.1
_TOKENS = (8, 32)


class AdapterUser(TenantUser):
    def on_start(self) -> None:
        super().on_start()
        order = random.Random(f"popularity {hooks.seed(self.environment)}")  # the same for all users
        self._popularity = Popularity(len(self.models), _EXPONENT, order)

    @task
    def question(self) -> None:
        model = self.models[self._popularity.draw(self.rng)].id
        body = {
            "messages": [{"role": "user", "content": words(self.rng, self.rng.randint(5, 30))}],
            "max_tokens": self.rng.randint(*_TOKENS),
        }
        self.chat("adapters", model, body, {}, stream=self.rng.random() < 0.75)
        self.think(0.2, 1.5)
