"""Examples of property tests: the same in every run or new ones, a third of them or all.

    pytest --all-examples tests/api          (`make soak` does it everywhere)
    pytest --fresh-examples 20 tests/api     (`make fuzz`)

With new examples in each run, some runs would fail for reasons unrelated to the change under test. `make test`
therefore derives each test's examples from its name and uses the first third of the test's number. Searching for more
is a separate command. See docs/decisions/0021.
"""

from unittest import TestCase

import hypothesis
import pytest

# No deadline per example and no health check of their generation: on a shared machine a pause is no fault of the code.
_PART, _LEAST = 3, 20
_CALM = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "run only property tests, with new examples and TIMES their number"
    parser.addoption("--fresh-examples", type=int, default=0, metavar="TIMES", help=about)
    parser.addoption(
        "--all-examples", action="store_true", help="run only property tests, with their full number of examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the profile before any test module is imported, because the tests' own settings build on it."""
    same = not config.getoption("--fresh-examples")
    hypothesis.settings.register_profile("shoal", _CALM, derandomize=same)
    hypothesis.settings.load_profile("shoal")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set each property test's number of examples. With all or new examples, deselect all other tests."""
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
    """Return the object and the attribute with a property test's settings, or None for any other test."""
    if not isinstance(item, pytest.Function):
        return None, ""
    if item.cls is not None and issubclass(item.cls, TestCase) and hasattr(item.cls, "settings"):
        return item.cls, "settings"  # a state machine's
    function = getattr(item.obj, "__func__", item.obj)
    if hasattr(function, "hypothesis"):
        return function, "_hypothesis_internal_use_settings"
    return None, ""
