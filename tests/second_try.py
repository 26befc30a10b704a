"""Run pytest, then run a few failed tests once more alone.

    python -m tests.second_try -n 4 -m "servers and not engine and not drill"

Tests with servers, four at a time on two cores, wait for each other's processes. If one of two thousand fails with
others and passes alone, something is slow or happens in an unexpected order. That is worth finding, so its name is
printed last, but it is no reason to refuse an unrelated change. A test that fails twice fails the run. So do more than
`MOST` failures, because an intermittent fault of the product hits several tests. See docs/decisions/0020.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MOST = 3
ONCE = "--names-into"


class Failed:
    """A plugin that records the names of failed tests in order; with xdist also those of the workers."""

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
    """Run pytest and write the names of failed tests to the file."""
    failed = Failed()
    code = pytest.main(arguments, plugins=[failed])
    Path(file).write_text("\n".join(failed.names))
    return int(code)


def _say(what: str, names: list[str], code: int) -> int:
    print("\n".join((f"\n{what}:", *(f"  {name}" for name in names))), flush=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(once(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == [ONCE] else main(sys.argv[1:]))
