"""docs/explanation/kinds.md: its examples form one valid configuration, and its tables list every metric."""

import re

import pytest

from functions.api.expressions import parse_halt, parse_scale_rule
from functions.api.expressions.parse import HALT_METRICS, SCALE_METRICS
from functions.api.kinds.catalogue import KINDS
from functions.api.loader import load_texts
from tests.api.sources import ROOT

PAGE = (ROOT / "docs" / "explanation" / "kinds.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def lines(language: str) -> list[str]:
    return [line for block in blocks(language) for line in block.splitlines()]


def test_all_examples_together_are_one_sound_configuration() -> None:
    loaded = load_texts((f"block-{number}.yaml", block.encode()) for number, block in enumerate(blocks("yaml")))
    assert {declared.value.kind for declared in loaded.objects} == {name for _, name in KINDS}
    assert loaded.ignored == ()


@pytest.mark.parametrize("text", lines("halt"))
def test_conditions_of_the_page_mean_something(text: str) -> None:
    assert parse_halt(text).text == text


@pytest.mark.parametrize("text", lines("scale"))
def test_rules_of_the_page_mean_something(text: str) -> None:
    assert parse_scale_rule(parse_scale_rule(text).text) == parse_scale_rule(text)


def test_every_metric_has_an_example_and_a_place_in_a_table() -> None:
    for metrics, examples in ((HALT_METRICS, lines("halt")), (SCALE_METRICS, lines("scale"))):
        for metric in metrics:
            assert f"`{metric.name}`" in PAGE
        shown = {example.split()[0] for example in examples}
        assert {metric.name for metric in metrics} - shown <= {"p50_latency"}


def test_every_kind_has_a_chapter() -> None:
    for _, name in KINDS:
        assert f"\n## {name}\n" in PAGE
