"""What users say: words of a small vocabulary by a seed, and conversations whose prefix grows with each turn.

A conversation begins with a system prompt, which all of a tenant's conversations may share, and each turn appends the
question and what was answered, so that turn n's prompt begins with all of turn n-1's. It ends when its turns are over,
or when the next question and its answer might not fit the context window: words are counted for 1.5 tokens each, more
than any tokenizer of these words needs.
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
_TOKENS_PER_MESSAGE = 12  # role, marks of the template
Message = dict[str, str]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def tokens_at_most(text: str) -> int:
    """More than `text` takes, so that what is reckoned with it fits."""
    return int(max(len(text.split()) * TOKENS_PER_WORD, len(text) / 3)) + _TOKENS_PER_MESSAGE


@dataclass(slots=True)
class Conversation:
    name: str  # the session's id
    system: str
    turns_left: int
    window_tokens: int
    messages: list[Message] = field(default_factory=list)
    _tokens: int = 0

    def __post_init__(self) -> None:
        self._append("system", self.system)

    def ask(self, question: str, answer_tokens: int) -> list[Message] | None:
        """The next turn's messages; None where the conversation is over."""
        needed = self._tokens + tokens_at_most(question) + answer_tokens
        if self.turns_left <= 0 or needed > self.window_tokens:
            return None
        self.turns_left -= 1
        self._append("user", question)
        return list(self.messages)

    def answered(self, text: str) -> None:
        self._append("assistant", text or ".")

    def _append(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})
        self._tokens += tokens_at_most(content)


def turns(rng: random.Random, least: int = 2, most: int = 8) -> int:
    """Geometric with a mean of `least` + 2 or so: many short conversations, few long ones."""
    count = least
    while count < most and rng.random() < 0.67:
        count += 1
    return count
