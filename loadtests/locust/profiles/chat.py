"""Chat: conversations of several turns with a growing prefix; three in four answers are streamed.

All conversations of a tenant begin with the same system prompt. Two of three name their session; the gateway can
recognise the others only by their prompts.
"""

import random

from locust import task

from loadtests.locust import hooks
from loadtests.locust.conversation import Conversation, turns, words
from loadtests.locust.user import TenantUser

_SYSTEM_WORDS, _MOST_QUESTION_WORDS = 80, 40
_ANSWER_TOKENS = (16, 96)


class ChatUser(TenantUser):
    entry = "chat"
    think_s = (0.5, 3.0)

    @task
    def conversation(self) -> None:
        """Hold a conversation to its end, or to the first turn that fails."""
        talk = self._begun()
        stream, named = self.rng.random() < 0.75, self.rng.random() < 0.67
        headers = {"x-session-id": talk.name} if named else {}
        model = self.rng.choice(self.models).id
        while True:
            answer_tokens = self.rng.randint(*_ANSWER_TOKENS)
            question = words(self.rng, self.rng.randint(4, _MOST_QUESTION_WORDS))
            messages = talk.next_turn(question, answer_tokens)
            if messages is None:
                break
            body = {"messages": messages, "max_tokens": answer_tokens}
            text = self.chat(self.name_of_entry(), model, body, headers, stream=stream)
            self.think(*self.think_s)
            if text is None:
                break
            talk.add_answer(text)

    def name_of_entry(self) -> str:
        return self.entry

    def _begun(self) -> Conversation:
        system = words(
            random.Random(f"system {self.tenant.api_key[:12]} {hooks.seed(self.environment)}"), _SYSTEM_WORDS
        )
        window_tokens = min(model.window_tokens for model in self.models)
        name = f"talk-{self.number}-{self.rng.getrandbits(32):08x}"
        return Conversation(name, system, turns(self.rng), window_tokens)
