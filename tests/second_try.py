"""pytest, with one more try for the few tests that fail: alone, when the rest is done.

    python -m tests.second_try -n 4 -m "servers and not engine and not drill"

Tests with servers, four at a time on two cores, wait for each other's processes. One of two thousand that fails beside
others and passes alone says that something is slow or comes in another order than was thought: worth finding, and
named as the last thing that is printed, but no reason to refuse a change that it has nothing to do with. What fails
twice fails the run, and so does more than `MOST`: a fault of the product that strikes now and then strikes several.
See docs/decisions/0020.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MOST = 3
ONCE = "--names-into"


class Failed:
    """A plugin that keeps the names of the tests that failed, in order; with xdist it hears of the workers' too."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names[report.nodeid] = None


def main(arguments: list[str]) -> int:
    failed = Failed()
    code = pytest.main(arguments, plugins=[failed])
    names = list(failed.names)
    if code != pytest.ExitCode.TESTS_FAILED or not names:
        return code
    if len(names) > MOST:
        return _say(f"{len(names)} tests failed, more than are tried again ({MOST})", names, code)
    print(f"\n{len(names)} failed; tried once more, alone", flush=True)
    with tempfile.NamedTemporaryFile("r", suffix=".names") as file:
        command = [sys.executable, "-m", "tests.second_try", ONCE, file.name, "-q", "-m", "", *names]
        again = subprocess.run(command, check=False).returncode
        failed_again = set(file.read().splitlines())
    twice = [name for name in names if name in failed_again]
    passed = [name for name in names if name not in twice] if again else names
    if passed:
        _say("failed beside others and passed alone: each is a fault to be found, in the test or in shoal", passed, 0)
    return _say("failed again, alone", twice, again) if again else 0


def once(file: str, arguments: list[str]) -> int:
    """pytest; the names of what failed go into the file."""
    failed = Failed()
    code = pytest.main(arguments, plugins=[failed])
    Path(file).write_text("\n".join(failed.names))
    return int(code)


def _say(what: str, names: list[str], code: int) -> int:
    print("\n".join((f"\n{what}:", *(f"  {name}" for name in names))), flush=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(once(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == [ONCE] else main(sys.argv[1:]))
