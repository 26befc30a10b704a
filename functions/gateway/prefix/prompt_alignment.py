"""Alignment of text and tokens: how many of a prompt's tokens are settled by a given part of its text.

A gateway compares prompts by blocks of text (`functions.decisions.prefix.block_names`), and an engine shares KV by
blocks of tokens. In between are the chat template (`prompt_text` is its input, the rendered prompt its output) and
the tokenizer, which looks a little ahead. For each boundary of text blocks there are two steps:

    1. Which character of the rendered prompt does it reach?   Each message is searched in the prompt, in order.
    2. Which tokens end before that, for any continuation?     Two words back: tokenizers look ahead at most one.

Both err towards fewer tokens. Worked example (test_worked_example_of_the_prologue): the text is `user`, a separator
and 600 characters of content, in blocks of 512 bytes. The first boundary is 507 characters into the content, at its
position in the rendered prompt. The tokens that end before the second word before it are settled.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from functions.gateway.prefix.prompt_tokenizer import Tokens

FARTHEST_CHARS = 1000  # token merges do not reach across a run of this many characters without spaces


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a message's content in the text (bytes) and in the rendered prompt (characters)."""

    content: bytes
    in_text: int
    in_prompt: int


def spans(contents: Iterable[str], text: bytes, prompt: str) -> list[Span]:
    """Return where the non-empty contents are in text and prompt, up to the first not found in order in both.

    A template may change them.
    """
    found: list[Span] = []
    text_at = prompt_at = 0
    for content in contents:
        encoded = content.encode("utf-8", "surrogatepass")
        in_text, in_prompt = text.find(encoded, text_at), prompt.find(content, prompt_at)
        if in_text < 0 or in_prompt < 0:
            break
        if encoded:
            found.append(Span(encoded, in_text, in_prompt))
        text_at, prompt_at = in_text + len(encoded), in_prompt + len(content)
    return found


def settled_tokens(boundaries: Iterable[int], where: list[Span], prompt: str, tokens: Tokens) -> list[int]:
    """Return for each boundary (bytes of the text, ascending) how many tokens later text cannot change.

    `prompt` may be cut. A boundary beyond the cut settles as much as one at the cut.
    """
    settled: list[int] = []
    at = reached = 0
    for boundary in boundaries:
        if settled and reached == len(prompt):
            settled.append(settled[-1])
            continue
        while at < len(where) and where[at].in_text <= boundary:
            at += 1
        reached = min(_reached(boundary, where[at - 1]), len(prompt)) if at else 0
        settled.append(bisect_right(tokens.ends, two_words_back(prompt, reached)))
    return settled


def two_words_back(prompt: str, end: int) -> int:
    """Return where the space before the second word before `end` begins. A word has at most FARTHEST_CHARS."""
    least = max(0, end - FARTHEST_CHARS)
    for _ in range(2):
        while end > least and prompt[end - 1].isspace():
            end -= 1
        while end > least and not prompt[end - 1].isspace():
            end -= 1
    while end > least and prompt[end - 1].isspace():
        end -= 1
    return end


def _reached(boundary: int, span: Span) -> int:
    """Return the characters of the prompt before a boundary in or after this content and before the next one."""
    inside = span.content[: boundary - span.in_text]
    return span.in_prompt + len(inside.decode("utf-8", "ignore"))
