"""Alignment of text and tokens: how many of a prompt's tokens are settled by how much of its text.

A gateway sees that two prompts begin alike by the blocks of their text (`functions.decisions.prefix.block_names`); an
engine shares KV by blocks of tokens. Between the two stand the chat template (`prompt_text` is what went into it, the
rendered prompt what came out) and the tokenizer, which looks a little ahead. So for each boundary of text blocks:

    1. which character of the rendered prompt does it reach?   messages are found again in it, one after the other
    2. which tokens end before that, whatever follows?         two words back: tokenizers do not look further than one

Both err on the side of fewer tokens. Worked example (test_worked_example_of_the_prologue): the text `user`, a separator
and 600 characters of content, in blocks of 512 bytes. The first boundary lies 507 characters into the content, wherever
that is in the rendered prompt; tokens that end before the second word before it are settled.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from functions.gateway.prefix.prompt_tokenizer import Tokens

FARTHEST_CHARS = 1000  # a run of text without spaces: merges of tokens do not reach through that


@dataclass(frozen=True, slots=True)
class Span:
    """A message's content: where it is in the text (bytes) and in the rendered prompt (characters)."""

    content: bytes
    in_text: int
    in_prompt: int


def spans(contents: Iterable[str], text: bytes, prompt: str) -> list[Span]:
    """Where the contents are, as far as all are found in order; a template may change what it is given."""
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
    """For each boundary (bytes of the text, ascending), how many tokens it settles.

    `prompt` may be cut: what reaches beyond settles what a boundary at the cut would.
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
    """Where the space before the second word before `end` begins; a word is at most FARTHEST_CHARS long."""
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
    """The characters of the prompt before a boundary that lies in or after this content, and before the next."""
    inside = span.content[: boundary - span.in_text]
    return span.in_prompt + len(inside.decode("utf-8", "ignore"))
