"""A parked process forks engines that equal a fresh start, or refuses to fork."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from functions import engines
from functions.controller.local.children import start_time

WAITING = Path(engines.__file__).parent / "parked" / "waiting.py"
PATIENCE_S = 60.0
pytestmark = pytest.mark.servers

# An engine: it records its import, prints its environment, starts a process and ends.
ENGINE = """
import json, multiprocessing, os, sys, time
with open(os.environ["NOTES"], "a") as notes:
    notes.write(f"imported by {os.getpid()}\\n")

def child(queue):
    queue.put((os.getpid(), os.getppid(), os.environ.get("LATER"), os.environ.get("SHOAL_PROCESS")))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    os.environ["LATER"] = "said"
    os.environ.update(json.loads(os.environ.get("SHOAL_SPEC_HASH") or "{}"))
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    told = queue.get()
    process.join()
    told = {"pid": os.getpid(), "sid": os.getsid(0), "argv": sys.argv[1:], "cwd": os.getcwd(), "child": told,
            "env": os.environ.get("SHOAL_PROCESS"), "exitcode": process.exitcode}
    print(json.dumps(told), flush=True)
    sys.exit(3)
"""


class Parked:
    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ, self.door, self.log = folder, environ, folder / "door", folder / "engine.log"
        self.argv = [sys.executable, "-m", "tiny_engine", "--port", "1"]

    def request(self, **changed: Any) -> dict[str, Any]:
        return {"argv": self.argv, "env": self.environ, "cwd": str(self.folder), **changed}

    def send_request(self, request: object, *, go: bytes = b"go\n", with_log: bool = True) -> dict[str, Any]:
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        with socket.socket(socket.AF_UNIX) as connection, self.log.open("ab") as log:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(self.door))
            socket.send_fds(connection, [line], [log.fileno()] * with_log)
            answer: dict[str, Any] = json.loads(connection.makefile("rb").readline() or b'{"refused": "nothing"}')
            if "pid" in answer and go:
                connection.sendall(go)
        return answer

    def said(self) -> dict[str, Any]:
        told: dict[str, Any] = {}

        def there() -> bool:
            lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
            told.update(json.loads(lines[-1]) if lines else {})
            return bool(lines)

        until(there)
        return told


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.05)  # real time, since another process works


@contextmanager
def parked(folder: Path, text: str = ENGINE) -> Iterator[tuple[Parked, "subprocess.Popen[bytes]"]]:
    (folder / "tiny_engine.py").write_text(text)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "NOTES": str(folder / "notes")}
    made = Parked(folder, environ)
    with (folder / "parked.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(WAITING), str(made.door), "tiny_engine", "no_such_module"],
            env={**environ, "SHOAL_PROCESS": "parked"}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        until(lambda: made.door.exists() or process.poll() is not None)
        yield made, process
    finally:
        process.kill()
        process.wait()


def test_fork_equals_a_fresh_python_process_without_imports(tmp_path: Path) -> None:
    """The fork has its own session, arguments, directory, environment and log; processes it spawns need no import."""
    with parked(tmp_path) as (made, process):
        request = made.request(env={**made.environ, "SHOAL_PROCESS": "engine-a-0"})
        pid = made.send_request(request)["pid"]
        said = made.said()
        assert (said["pid"], said["sid"], said["argv"]) == (pid, pid, ["--port", "1"])
        assert (said["cwd"], said["env"], said["exitcode"]) == (str(tmp_path), "engine-a-0", 0)
        _, _, later, name = said["child"]
        assert (later, name) == ("said", "engine-a-0"), "a spawned process has its starter's environment of that moment"
        notes = (tmp_path / "notes").read_text().splitlines()
        assert notes == [f"imported by {process.pid}", f"imported by {pid}", f"imported by {said['child'][0]}"], (
            "python -m runs the module itself once more; the spawned one has it as __mp_main__"
        )
        until(lambda: f"process {pid} ended: exit status 3" in (tmp_path / "parked.log").read_text())
        until(lambda: not [each for each in psutil.pids() if session_of(each) == pid])  # its fork server ends with it


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def test_spawn_with_another_thread_count_imports_again(tmp_path: Path) -> None:
    """An imported library has already read the thread count."""
    with parked(tmp_path) as (made, _):
        env = {**made.environ, "SHOAL_SPEC_HASH": json.dumps({"OMP_NUM_THREADS": "7"})}
        pid = made.send_request(made.request(env=env))["pid"]
        child, parent, *_ = made.said()["child"]
        assert parent == pid, "an interpreter of its own, by its starter"
        assert child != pid


def test_spawn_with_vllms_thread_count_is_forked_with_it(tmp_path: Path) -> None:
    """vLLM sets the thread count for each process on accelerators, after torch has read another one."""
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_initialized = staticmethod(lambda: False)\n"
        "def set_num_threads(count):\n    import os\n    os.environ['LATER'] = f'{count} threads'\n"
    )
    with parked(tmp_path, "import torch\n" + ENGINE) as (made, _):
        chosen = {"OMP_NUM_THREADS": "7", "VLLM_OMP_NUM_THREADS_SET_BY_VLLM": "1"}
        pid = made.send_request(made.request(env={**made.environ, "SHOAL_SPEC_HASH": json.dumps(chosen)}))["pid"]
        _, parent, later, _ = made.said()["child"]
        assert parent != pid, "forked, by the fork server"
        assert later == "7 threads"


def test_one_serves_several_starts(tmp_path: Path) -> None:
    with parked(tmp_path) as (made, process):
        pids = {made.send_request(made.request())["pid"] for _ in range(3)}
        assert len(pids) == 3
        assert process.poll() is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"argv": ["/usr/bin/python3", "-m", "tiny_engine"]}, "not the parked engine"),
        ({"argv": [sys.executable, "-m", "json.tool"]}, "not the parked engine"),
        ({"argv": [sys.executable, "tiny_engine", "-m"]}, "not the parked engine"),
        ({"env": {"OMP_NUM_THREADS": "2"}}, "the environment differs: NOTES, OMP_NUM_THREADS"),
        ({"argv": [sys.executable]}, "no command line"),
        ({"argv": "python -m x"}, "no command line"),
        ({"env": {"A": 1}}, "not text"),
        ({"cwd": "a\0b"}, "not text"),
        ({"cwd": "/no/such/place"}, "No such file"),
    ],
)
def test_refuses_a_start_that_differs_from_the_parked_process(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    with parked(tmp_path) as (made, process):
        assert why in made.send_request(made.request(**changed))["refused"]
        assert "pid" in made.send_request(made.request()), "and goes on waiting"
        assert process.poll() is None


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b"{\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"argv": ["' + b"x" * 300_000]
)
def test_bytes_that_are_no_request_are_refused(tmp_path: Path, line: bytes) -> None:
    with parked(tmp_path) as (made, _):
        try:
            assert "refused" in made.send_request(line)
        except OSError:  # the rest of a request that is too long is not read
            assert len(line) > 200_000
        assert "pid" in made.send_request(made.request())


def test_a_request_without_a_log_is_refused(tmp_path: Path) -> None:
    with parked(tmp_path) as (made, _):
        assert "refused" in made.send_request(made.request(), with_log=False)


def test_refuses_after_an_imported_file_changed(tmp_path: Path) -> None:
    """This happens when the engine is upgraded while the process is parked."""
    with parked(tmp_path) as (made, _):
        (tmp_path / "tiny_engine.py").write_text(ENGINE + "\n# 0.33\n")
        assert "1 files have changed" in made.send_request(made.request())["refused"]


def test_abandoned_start_leaves_no_second_engine(tmp_path: Path) -> None:
    with parked(tmp_path) as (made, _):
        pid = made.send_request(made.request(), go=b"")["pid"]
        until(lambda: start_time(pid) is None)
        assert "{" not in made.log.read_text()


def test_an_import_that_leaves_a_thread_ends_it(tmp_path: Path) -> None:
    text = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='poller', daemon=True).start()\n"
    )
    with parked(tmp_path, text) as (made, process):
        assert process.wait(PATIENCE_S) != 0
        assert "left threads running (poller)" in (tmp_path / "parked.log").read_text()
        assert not made.door.exists()


def test_an_import_that_opens_an_accelerator_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waiting = loaded(WAITING)
    monkeypatch.setattr(waiting, "_DEVICES", (str(tmp_path),))
    monkeypatch.setattr(waiting.threading, "enumerate", list)
    waiting.exit_unless_forkable()
    with (tmp_path / "nvidia0").open("wb"), pytest.raises(SystemExit, match="nvidia0"):
        waiting.exit_unless_forkable()


def test_an_import_that_initialises_cuda_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        class cuda:  # noqa: N801
            is_initialized = staticmethod(lambda: True)

    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match=r"torch\.cuda"):
        loaded(WAITING).exit_unless_forkable()


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("waiting", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
