"""Long prompts: documents of a third to four fifths of the context window with short answers, half of them streamed.

Each document is sent in two requests, so that the second can find its prefix in a cache.
"""

from locust import task

from loadtests.locust.conversation import TOKENS_PER_WORD, words
from loadtests.locust.user import TenantUser

_PARTS = (0.33, 0.8)  # shares of the context window, by the upper bound of tokens
_TOKENS = 24


class DocumentUser(TenantUser):
    @task
    def document(self) -> None:
        model = self.rng.choice(self.models)
        text = words(self.rng, int(model.window_tokens * self.rng.uniform(*_PARTS) / TOKENS_PER_WORD))
        stream = self.rng.random() < 0.5
        for _ in range(2):
            content = f"{text}\n\n{words(self.rng, 12)}"
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": _TOKENS}
            self.chat("long-prompts", model.id, body, {}, stream=stream)
            self.think(0.5, 2.0)
