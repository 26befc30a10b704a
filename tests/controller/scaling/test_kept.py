"""Requested sizes survive a controller restart; an invalid file counts as empty."""

from pathlib import Path

import pytest

from functions.controller.autoscaling.allocation import Allocation
from functions.controller.autoscaling.kept import KeptSpeeds, read_sizes, write_sizes


def test_what_is_written_is_read(tmp_path: Path) -> None:
    allocations = {"a": Allocation(3, frozenset({2})), "b": Allocation(0)}
    write_sizes(tmp_path / "controller" / "scaling.json", allocations)
    assert read_sizes(tmp_path / "controller" / "scaling.json") == allocations


def test_speeds_and_allocations_are_stored_side_by_side(tmp_path: Path) -> None:
    path, allocations = tmp_path / "scaling.json", {"a": Allocation(3, frozenset({2}))}
    speeds = KeptSpeeds(path)
    assert speeds.known == {}
    speeds.save_speeds({"a": 100.0})
    write_sizes(path, allocations)
    assert KeptSpeeds(path).known == {"a": 100.0}
    speeds.save_speeds({"a": 104.0})
    assert KeptSpeeds(path).known == {"a": 100.0}, "not for every heartbeat"
    speeds.save_speeds({"a": 120.0, "b": 7.0})
    assert KeptSpeeds(path).known == {"a": 120.0, "b": 7.0}
    assert read_sizes(path) == allocations


def test_a_file_of_an_earlier_controller_knows_no_speed(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_bytes(b'{"pools": {"a": {"count": 2}}}')
    assert KeptSpeeds(tmp_path / "scaling.json").known == {}
    assert read_sizes(tmp_path / "scaling.json") == {"a": Allocation(2)}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b'{"pools": {"a": {"count": -1}}}', b'{"pools": {"a": {"count": 1, "standby": [1]}}}'],
)
def test_invalid_sizes_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scaling.json").write_bytes(content)
    assert read_sizes(tmp_path / "scaling.json") == {}
    assert read_sizes(tmp_path / "missing.json") == {}
