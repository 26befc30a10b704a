"""Coverage-guided fuzzing of every target for twenty seconds, in `make soak`.

The seed is the date, so that two runs of one day try the same inputs and the next day others. A finding prints its
input; add it as a test with the input written out.
"""

import datetime
import importlib.util
import re
import subprocess
import sys

import pytest

from tests.fuzz.corpora import target_names

_SECONDS = 20
_ROUNDS = 40
_LEFT_TAKEN_KB = 8 * 1024  # for 900 inputs; the lane's clock is frozen, so 4 KB of each still count as recent

pytestmark = pytest.mark.soak


@pytest.mark.timeout(_SECONDS + 180)
@pytest.mark.parametrize("target", target_names())
def test_fuzzing_finds_no_failure(target: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(
            "atheris has wheels for x86-64 and CPython up to 3.14 only; the kept inputs are replayed all the same"
        )
    seed = datetime.datetime.now(datetime.UTC).date().toordinal()
    argv = [sys.executable, "-m", "tests.fuzz.run", target, "--seconds", str(_SECONDS), "--seed", str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS + 120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    figures = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
    assert int(figures["number_of_executed_units"]) > 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", target_names())
def test_repeated_inputs_do_not_leak_memory(target: str) -> None:
    """The test finds maps that grow with values chosen by clients."""
    argv = [sys.executable, "-m", "tests.fuzz.run", target, "--rounds", str(_ROUNDS)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=True)
    assert int(done.stdout.split()[-1]) < _LEFT_TAKEN_KB
