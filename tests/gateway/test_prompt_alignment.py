"""Tokens that a part of the text settles stay the same whatever follows it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from functions.gateway.intake.routes import CHAT
from functions.gateway.prefix.prompt_alignment import settled_tokens, spans, two_words_back
from functions.gateway.prefix.prompt_template import PromptTemplate
from functions.gateway.prefix.prompt_text import prompt_text
from functions.gateway.prefix.prompt_tokenizer import Tokens
from tests.gateway.prompt_rig import CONVERSATIONS, TEMPLATE, TEXTS, trained

TOKENIZER = Tokenizer.from_str(trained())
CHATML = PromptTemplate(TEMPLATE, {})
Messages = list[dict[str, str]]


def tokens_of(prompt: str) -> Tokens:
    encoding, tokens = TOKENIZER.encode(prompt, add_special_tokens=False), Tokens()
    tokens.ids.extend(encoding.ids)
    tokens.ends.extend([end for _, end in encoding.offsets])
    return tokens


def settled(messages: Messages, boundaries: list[int]) -> tuple[Tokens, list[int], bytes]:
    text, prompt = prompt_text({"messages": messages}, CHAT.output).text, CHATML.render(messages)
    tokens = tokens_of(prompt)
    where = spans([message["content"] for message in messages], text, prompt)
    return tokens, settled_tokens(boundaries, where, prompt, tokens), text


def test_worked_example_of_the_prologue() -> None:
    content = "word " * 120
    tokens, (first,), text = settled([{"role": "user", "content": content}], [512])
    assert text.startswith(b"user\x1eword")
    prompt = CHATML.render([{"role": "user", "content": content}])
    reached = prompt.index(content) + 507
    assert prompt[two_words_back(prompt, reached) :].startswith(" word")
    assert 0 < first < len(tokens.ids)
    assert reached - 12 <= tokens.ends[first - 1] <= reached - 7


def test_settled_tokens_grow_with_the_text() -> None:
    messages = [{"role": "user", "content": "one two three four five six " * 50}]
    _, by_boundary, _ = settled(messages, list(range(64, 1200, 64)))
    assert by_boundary == sorted(by_boundary)
    assert by_boundary[-1] > 200


def test_message_changed_by_the_template_settles_nothing() -> None:
    assert spans(["  padded  ", "next"], b"user\x1e  padded  \x1euser\x1enext", "user: padded\nuser: next") == []


@settings(max_examples=200)
@given(CONVERSATIONS, CONVERSATIONS, TEXTS, st.floats(0, 1))
def test_prompts_with_common_text_share_its_settled_tokens(
    messages: Messages, other: Messages, tail: str, share: float
) -> None:
    """The text is cut somewhere inside and continued with other text and other messages."""
    tokens, _, text = settled(messages, [])
    boundary = int(len(text) * share)
    (known,) = settled(messages, [boundary])[1]
    changed = cut(messages, boundary, tail)
    theirs, _, their_text = settled([*changed, *other], [])
    if their_text[:boundary] == text[:boundary]:
        assert theirs.ids[:known] == tokens.ids[:known]


def cut(messages: Messages, boundary: int, tail: str) -> Messages:
    """Return the conversation with the same text up to the boundary and `tail` after it."""
    kept: Messages = []
    for message in messages:
        content = message["content"].encode()
        at = len(prompt_text({"messages": [*kept, message]}, CHAT.output).text) - len(content)
        if boundary < at + len(content):
            inside = content[: max(0, boundary - at)].decode("utf-8", "ignore")
            return [*kept, {"role": message["role"], "content": inside + tail}]
        kept.append(message)
    return [*kept[:-1], {"role": kept[-1]["role"], "content": kept[-1]["content"] + tail}]
