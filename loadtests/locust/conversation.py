"""Prompts: random words of a small vocabulary, and conversations whose prefix grows with each turn.

A conversation begins with a system prompt, which all of a tenant's conversations may share. Each turn appends the
question and the answer, so turn n's prompt begins with all of turn n-1's. It ends after its turns, or when the next
question and its answer might not fit the context window. A word counts as 1.5 tokens, more than any tokenizer of these
words needs.
"""

import random
from dataclasses import dataclass, field

_TEXT = (
    "the a of and in to with for on by river stone light paper window garden seven yellow quiet engine letter morning "
    "road winter answer water city table green open story music under summer number people house small early bright "
    "long night market ship tree cloud school friend bread silver north glass hand clear wind sleep carry write find "
    "begin follow remember build listen travel question moment picture island simple second between around mountain"
)
_WORDS = _TEXT.split()
TOKENS_PER_WORD = 1.5
_TOKENS_PER_MESSAGE = 12  # role and marks of the chat template
Message = dict[str, str]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def tokens_at_most(text: str) -> int:
    """Return an upper bound of the tokens of `text`."""
    return int(max(len(text.split()) * TOKENS_PER_WORD, len(text) / 3)) + _TOKENS_PER_MESSAGE


@dataclass(slots=True)
class Conversation:
    name: str  # session id
    system: str
    turns_left: int
    window_tokens: int
    messages: list[Message] = field(default_factory=list)
    _tokens: int = 0

    def __post_init__(self) -> None:
        self._append("system", self.system)

    def next_turn(self, question: str, answer_tokens: int) -> list[Message] | None:
        """Return the next turn's messages, or None if the conversation is over."""
        needed = self._tokens + tokens_at_most(question) + answer_tokens
        if self.turns_left <= 0 or needed > self.window_tokens:
            return None
        self.turns_left -= 1
        self._append("user", question)
        return list(self.messages)

    def add_answer(self, text: str) -> None:
        self._append("assistant", text or ".")

    def _append(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})
        self._tokens += tokens_at_most(content)


def turns(rng: random.Random, least: int = 2, most: int = 8) -> int:
    """Draw a number of turns, geometric with a mean of about `least` + 2: many short conversations, few long ones."""
    count = least
    while count < most and rng.random() < 0.67:
        count += 1
    return count
