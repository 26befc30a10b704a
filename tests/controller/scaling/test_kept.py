"""What was asked for outlives a controller; a file that is none counts as empty."""

from pathlib import Path

import pytest

from functions.controller.scaling import kept
from functions.controller.scaling.roster import Roster


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rosters = {"a": Roster(3, frozenset({2})), "b": Roster(0)}
    kept.write(tmp_path / "controller" / "scaling.json", rosters)
    assert kept.read(tmp_path / "controller" / "scaling.json") == rosters


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b'{"pools": {"a": {"count": -1}}}', b'{"pools": {"a": {"count": 1, "standby": [1]}}}'],
)
def test_what_is_none_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scaling.json").write_bytes(content)
    assert kept.read(tmp_path / "scaling.json") == {}
    assert kept.read(tmp_path / "missing.json") == {}
