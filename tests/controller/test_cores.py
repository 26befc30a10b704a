"""Cores available to this process: affinity and every kind of quota; an unreadable file sets no limit."""

import os
from pathlib import Path

import pytest

from functions.controller.local.slots import usable_cores

ALL = len(os.sched_getaffinity(0))


def grouped(folder: Path, membership: str, files: dict[str, str]) -> int:
    for name, content in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (folder / "membership").write_text(membership)
    return usable_cores(folder / "membership", folder / "cgroup")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("200000 100000", min(ALL, 2)),
        ("150000 100000", 1),
        ("10000 100000", 1),
        ("max 100000", ALL),
    ],
)
def test_worked_example_of_a_quota(tmp_path: Path, quota: str, cores: int) -> None:
    assert grouped(tmp_path, "0::/\n", {"cpu.max": f"{quota}\n"}) == cores


def test_parent_group_limits_apply(tmp_path: Path) -> None:
    files = {"pods/cpu.max": "100000 100000\n", "pods/one/cpu.max": "max 100000\n"}
    assert grouped(tmp_path, "0::/pods/one\n", files) == 1


def test_cgroup_v1_limits_are_read(tmp_path: Path) -> None:
    files = {"cpu/docker/x/cpu.cfs_quota_us": "100000\n", "cpu/docker/x/cpu.cfs_period_us": "100000\n"}
    assert grouped(tmp_path, "3:memory:/\n2:cpu,cpuacct:/docker/x\n", files) == 1
    none = {"cpu/docker/x/cpu.cfs_quota_us": "-1\n"}
    assert grouped(tmp_path, "2:cpu,cpuacct:/docker/x\n", none) == ALL


@pytest.mark.parametrize("membership", ["", "\x00", "0::", "nonsense", "0::/../../..", "2:cpu"])
def test_unreadable_limits_are_ignored(tmp_path: Path, membership: str) -> None:
    assert grouped(tmp_path, membership, {"cpu.max": "a b c" if membership else "1 0"}) == ALL
    assert usable_cores(tmp_path / "gone", tmp_path / "gone") == ALL


def test_affinity_limits() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
