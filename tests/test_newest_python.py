"""Selection of the newer interpreters on which unit tests also run."""

import sys
from pathlib import Path

from tests.newest_python import UNIT, _version, newer
from tests.test_soak import expressions

OLD, MIDDLE, NEW = Path("/usr/bin/python3.11"), Path("/usr/bin/python3.12"), Path("/opt/python3.13")


def test_newer_returns_newest_of_each_later_minor() -> None:
    found = [((3, 13, 0), NEW), ((3, 12, 1), OLD), ((3, 12, 9), MIDDLE), ((3, 12, 9), OLD), ((3, 11, 7), OLD)]
    assert newer(found, (3, 11, 2)) == [((3, 12, 9), MIDDLE), ((3, 13, 0), NEW)]


def test_another_patch_of_ours_is_not_newer() -> None:
    assert newer([((3, 11, 9), OLD)], (3, 11, 2)) == []
    assert newer([], (3, 11, 2)) == []


def test_version_above_the_newest_supported_is_ignored() -> None:
    assert newer([((3, 15, 0), NEW)], (3, 13, 0)) == []


def test_expression_is_that_of_make_unit() -> None:
    assert expressions("unit") == [UNIT[1]]


def test_broken_interpreter_has_no_version(tmp_path: Path) -> None:
    broken = tmp_path / "python3.14"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert _version(broken) is None
    assert _version(tmp_path / "nothing") is None
    assert _version(Path(sys.executable)) == sys.version_info[:3]
