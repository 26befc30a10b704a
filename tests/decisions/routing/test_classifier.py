"""Classifier: which pool suits a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import PoolName
from functions.api.snapshot import ClassifierEntry, RuleEntry
from functions.decisions.routing.classifier import Sketch, choose, script_of

P1, P8, P70 = PoolName("1b"), PoolName("8b"), PoolName("70b")


def chosen(entry: ClassifierEntry, tokens: int = 50, *, tools: bool = False, text: str = "hi") -> PoolName | None:
    return choose(entry, Sketch(tokens, tools, text), lambda pool: True)


def only(rule: RuleEntry) -> ClassifierEntry:
    return ClassifierEntry("auto", P8, (rule,))


def test_worked_example_of_the_prologue() -> None:
    entry = ClassifierEntry("auto", P8, (RuleEntry(P70, tools=True), RuleEntry(P1, max_prompt_tokens=200)))
    assert chosen(entry, 50) == P1
    assert chosen(entry, 50, tools=True) == P70
    assert chosen(entry, 900) == P8


def test_all_conditions_of_a_rule_must_hold() -> None:
    entry = only(RuleEntry(P70, min_prompt_tokens=100, keywords=("prove", "theorem")))
    assert chosen(entry, 100, text="Prove it") == P70
    assert chosen(entry, 99, text="Prove it") == P8
    assert chosen(entry, 100, text="something else") == P8


def test_code_is_detected_by_its_fence() -> None:
    assert chosen(only(RuleEntry(P70, code=True)), text="why?\n```py\nx\n```") == P70
    assert chosen(only(RuleEntry(P70, code=False)), text="why?") == P70
    assert chosen(only(RuleEntry(P70, code=False)), text="```") == P8


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("What is this?", "latin"),
        ("Что это такое? ok", "cyrillic"),
        ("これは何ですか、日本語の文章", "kana"),
        ("这是什么？", "han"),
        ("이것은 무엇입니까", "hangul"),
        ("ما هذا؟", "arabic"),
        ("12 + 30 = ?", None),
        ("", None),
    ],
)
def test_scripts(text: str, script: str | None) -> None:
    assert script_of(text) == script


def test_a_rule_without_conditions_always_holds() -> None:
    assert chosen(only(RuleEntry(P70))) == P70


def test_pools_that_may_not_be_called_are_passed_over() -> None:
    entry = ClassifierEntry("auto", P8, (RuleEntry(P70), RuleEntry(P1)))
    sketch = Sketch(1, False, "")
    assert choose(entry, sketch, lambda pool: pool != P70) == P1
    assert choose(entry, sketch, lambda pool: pool == P8) == P8
    assert choose(entry, sketch, lambda pool: False) is None


@given(st.text(max_size=300), st.integers(0, 10_000), st.booleans())
def test_every_request_gets_a_pool_of_the_entry(text: str, tokens: int, tools: bool) -> None:
    entry = ClassifierEntry("auto", P8, (RuleEntry(P70, script="latin", code=True), RuleEntry(P1, keywords=("a",))))
    assert chosen(entry, tokens, tools=tools, text=text) in (P1, P8, P70)
