"""A forked role behaves as a process of `python -m`: environment, descriptors, status, signals and end."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import roles

LITTLE = "tests.little_role"


def test_role_has_own_environment_folder_input_and_normal_end(tmp_path: Path) -> None:
    done = roles.run(LITTLE, "says", env={"WORD": "a"}, cwd=tmp_path, input="hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"environ({{'WORD': 'a'}}) {tmp_path} hello\nits last thread\nat its end\n"


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [("exits", 3, ""), ("refuses", 1, "no, and why\n"), ("fails", 1, "ValueError: so it ends\n")],
)
def test_role_status_and_output_match_python(what: str, status: int, said: str) -> None:
    forked = roles.run(LITTLE, what)
    plain = subprocess.run([sys.executable, "-m", LITTLE, what], capture_output=True, text=True, check=False)
    assert (forked.returncode, plain.returncode) == (status, status)
    assert forked.stdout == plain.stdout == "at its end\n"
    assert forked.stderr.endswith(said)
    assert plain.stderr.endswith(said)


def test_role_can_be_awaited_and_killed(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        one = roles.start(LITTLE, "stays", stdout=log, start_new_session=True)
        other = roles.start(LITTLE, "stays", stdout=log)
    try:
        while (tmp_path / "log").read_text() != "here\nhere\n":
            time.sleep(0.02)
        assert os.getpgid(one.pid) == one.pid != os.getpgid(other.pid)
        assert one.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.01)
        one.kill()
        assert (one.wait(60), other.poll()) == (-signal.SIGKILL, None)
        other.terminate()
        assert other.wait(60) == -signal.SIGTERM
        one.kill()  # like Popen: it has ended, and no other process gets the signal
    finally:
        one.kill()
        other.kill()


def test_roles_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        f"from tests import roles; print(roles.start('{LITTLE}', 'stays').pid, flush=True); import os; os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=roles.ROOT)
    pid = int(re.search(r"\d+", done.stdout)[0])  # type: ignore[index]  # the role writes there as well
    deadline_s = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
