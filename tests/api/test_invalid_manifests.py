"""Every manifest of the table is rejected at the right character with an actionable message."""

import pytest

from functions.api.problems import Problem
from tests.api.invalid_manifests import INVALID, Invalid
from tests.api.sources import demo_files, problems_of

DEMO = demo_files()


@pytest.mark.parametrize("case", INVALID, ids=[case.name for case in INVALID])
def test_it_is_refused_at_its_place_and_in_words(case: Invalid) -> None:
    found = problems_of({**DEMO, case.path: case.content})
    told = "\n".join(map(str, found))
    assert len(found) == case.problems, told
    assert any(_fits(problem, case) for problem in found), told


def _fits(problem: Problem, case: Invalid) -> bool:
    place = problem.place
    return (place.file, place.line, place.column) == (case.path, case.line, case.column) and all(
        part in problem.message for part in case.says
    )


def test_the_table_is_large_and_its_names_differ() -> None:
    names = [case.name for case in INVALID]
    assert len(names) == len(set(names)) >= 60
