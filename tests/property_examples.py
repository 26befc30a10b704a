"""Which examples property tests see: the same ones in every run, or new ones; a third of them, or all.

    pytest --all-examples tests/api          (`make soak` does it everywhere)
    pytest --fresh-examples 20 tests/api     (`make fuzz`)

What a change is judged by must be the change: with examples drawn anew, one run in so many refuses a change that it
has nothing to do with. So `make test` draws each test's examples from its name, the first third of as many as the test
says, and looking for more is its own command. See docs/decisions/0021.
"""

from unittest import TestCase

import hypothesis
import pytest

# No deadline per example, and no judgement of how fast they are made: on a shared machine a pause says nothing about
# the code.
_PART, _LEAST = 3, 20
_CALM = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "property tests alone, with new examples and TIMES as many as they say"
    parser.addoption("--fresh-examples", type=int, default=0, metavar="TIMES", help=about)
    parser.addoption(
        "--all-examples", action="store_true", help="property tests alone, with as many examples as they say"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: the tests' own settings build on this profile."""
    same = not config.getoption("--fresh-examples")
    hypothesis.settings.register_profile("shoal", _CALM, derandomize=same)
    hypothesis.settings.load_profile("shoal")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With all examples or new ones, property tests alone."""
    times, whole = config.getoption("--fresh-examples"), config.getoption("--all-examples")
    seen: set[object] = set()  # a parametrized test is several items, and one function
    kept, others = [], []
    for item in items:
        owner, name = _settings_of(item)
        (others if owner is None else kept).append(item)
        if owner is not None and owner not in seen:
            seen.add(owner)
            said = getattr(owner, name)
            setattr(owner, name, hypothesis.settings(said, max_examples=_examples(said.max_examples, times, whole)))
    if times or whole:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def _examples(said: int, times: int, whole: bool) -> int:
    if times or whole:
        return said * max(1, times)
    return min(said, max(_LEAST, said // _PART))


def _settings_of(item: pytest.Item) -> tuple[object | None, str]:
    """Where a property test keeps its settings; None for any other test."""
    if not isinstance(item, pytest.Function):
        return None, ""
    if item.cls is not None and issubclass(item.cls, TestCase) and hasattr(item.cls, "settings"):
        return item.cls, "settings"  # a state machine's
    function = getattr(item.obj, "__func__", item.obj)
    if hasattr(function, "hypothesis"):
        return function, "_hypothesis_internal_use_settings"
    return None, ""
