"""Kernel statistics on processes that wait for a processor."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from functions.controller.local.instances import Starvation, processor_wait_s

pytestmark = pytest.mark.skipif(processor_wait_s(os.getpid()) is None, reason="this kernel keeps no schedstat")
_BUSY = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); print(flush=True)\nwhile True: pass"
_IDLE = "import time; print(flush=True); time.sleep(60)"


@contextmanager
def _running(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_processor_wait_grows_for_competing_processes_only() -> None:
    with _running(_BUSY) as busy, _running(_BUSY), _running(_IDLE) as idle:
        of_busy, of_idle = Starvation(), Starvation()
        assert of_busy.since_last_s(busy) == of_idle.since_last_s(idle) == 0.0
        deadline_s = time.monotonic() + 20
        waited_s = 0.0
        while waited_s < 0.2 and time.monotonic() < deadline_s:
            time.sleep(0.05)  # real time, which is measured here
            waited_s += of_busy.since_last_s(busy)
        assert waited_s >= 0.2
        assert of_idle.since_last_s(idle) < 0.2


def test_processor_wait_is_per_process_and_zero_for_a_dead_one(tmp_path: Path) -> None:
    for pid, waited_ns in ((7, 5_000_000_000), (8, 9_000_000_000)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "schedstat").write_text(f"1 {waited_ns} 3\n")
    assert processor_wait_s(7, tmp_path) == 5.0
    assert processor_wait_s(9, tmp_path) is None
    (tmp_path / "8" / "schedstat").write_text("nothing of the kind")
    assert processor_wait_s(8, tmp_path) is None
    starvation = Starvation()
    with _running(_IDLE) as one, _running(_IDLE) as other:
        starvation.since_last_s(one)
        assert starvation.since_last_s(other) == 0.0
