"""`make test` and `make soak` together run every test, and no test runs in both."""

import re
from itertools import chain, combinations
from pathlib import Path

from _pytest.mark.expression import Expression

MAKEFILE = Path(__file__).parents[1] / "Makefile"
TARGETS = ("unit", "processes", "soak-processes", "soak-beside", "soak")
DECIDING = ("servers", "engine", "drill", "soak")


def expressions(target: str) -> list[str]:
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE.read_text(), re.MULTILINE)
    assert recipe is not None
    return re.findall(r'-m "([^"]+)"', recipe[1])


def test_each_combination_of_markers_is_run_by_exactly_one_command() -> None:
    commands = [(target, each) for target in TARGETS for each in expressions(target)]
    assert len(commands) == 6, "the sixth is of property tests, with all of their examples"
    for marked in chain.from_iterable(combinations(DECIDING, size) for size in range(len(DECIDING) + 1)):
        found = [
            target
            for target, each in commands
            if Expression.compile(each).evaluate(lambda name, marked=marked, **_: name in marked)  # type: ignore[misc]
        ]
        assert len(found) == 1, f"a test marked {marked} is run by {found}"
        assert found[0].startswith("soak") == ("soak" in marked)
