"""Replies planned in advance: lengths, stop strings, and the text that a stream may already send."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.engines.sim.reply import Ending, ReplyPlan, plan_reply
from functions.engines.sim.tokenizer import BuiltinTokenizer

TOKENIZER = BuiltinTokenizer()
TEXT = "The capital of France is Paris."


def plan(text: str = TEXT, max_tokens: int = 50, **ending: object) -> ReplyPlan:
    return plan_reply(text, TOKENIZER, Ending(max_tokens=max_tokens, **ending))  # type: ignore[arg-type]


def test_a_reply_ends_with_a_token_that_counts_and_says_nothing() -> None:
    reply = plan()
    assert (reply.text, reply.finish_reason, reply.deltas[-1]) == (TEXT, "stop", "")
    assert reply.ids[-1] == TOKENIZER.eos_id


def test_a_reply_cut_short_says_length() -> None:
    reply = plan(max_tokens=3)
    assert (len(reply.ids), reply.finish_reason) == (3, "length")
    assert TEXT.startswith(reply.text)


def test_the_length_that_just_fits_the_end_token_is_a_stop() -> None:
    whole = len(plan().ids)
    assert plan(max_tokens=whole).finish_reason == "stop"
    assert plan(max_tokens=whole - 1).finish_reason == "length"


def test_ignoring_the_end_goes_on_to_the_length() -> None:
    reply = plan(max_tokens=40, ignore_eos=True)
    assert (len(reply.ids), reply.finish_reason) == (40, "length")
    assert TOKENIZER.eos_id not in reply.ids


def test_minimum_length_delays_the_end() -> None:
    assert len(plan("Hi", min_tokens=9).ids) >= 9


def test_a_stop_token_ends_it_and_is_named() -> None:
    (comma,) = TOKENIZER.encode(",", add_special_tokens=False)
    reply = plan("one, two", stop_token_ids=frozenset({comma}))
    assert (reply.text, reply.finish_reason, reply.stop_reason) == ("one", "stop", comma)


@pytest.mark.parametrize(("include", "text"), [(False, "The capital "), (True, "The capital of")])
def test_a_stop_string_is_cut_off_unless_asked_for(include: bool, text: str) -> None:
    reply = plan(stop=("of",), include_stop=include)
    assert (reply.text, reply.finish_reason, reply.stop_reason) == (text, "stop", "of")


def test_a_stop_string_that_never_comes_loses_nothing() -> None:
    assert plan(stop=("never",)).text == TEXT


@settings(deadline=None)
@given(st.text(alphabet="ab .", min_size=1, max_size=30), st.text(alphabet="ab ", min_size=1, max_size=4))
def test_a_stream_never_sends_a_beginning_of_a_stop_string_that_comes(text: str, stop: str) -> None:
    reply = plan(text, stop=(stop,))
    whole = TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False))
    assert reply.text == whole.partition(stop)[0]
    assert (reply.finish_reason == "stop") and (reply.stop_reason == stop) == (stop in whole)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_the_builtin_tokenizer_is_reversible(text: str) -> None:
    printable = text.encode("utf-8", "replace").decode()
    for special in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        printable = printable.replace(special, "")
    ids = TOKENIZER.encode(printable, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == printable
    assert "".join(TOKENIZER.pieces(ids)) == printable
    assert all(0 <= number < TOKENIZER.vocab_tokens for number in ids)
