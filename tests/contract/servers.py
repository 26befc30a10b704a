"""Start and stop the two kinds of engine with the same arguments."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from functions import engines
from tests.ports import free_port

MODEL = "smollm2-135m"
MAX_MODEL_LEN = 1024
MAX_QUEUED_REQS = 8
_ARGUMENTS = (
    *("--served-model-name", MODEL, "--dtype", "float32"),
    *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "16", "--block-size", "128"),
    *("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "4", "--max-lora-rank", "16"),
    *("--enable-prompt-tokens-details", "--enable-request-id-headers"),
    *("--max-num-queued-reqs", str(MAX_QUEUED_REQS)),
)
_ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# The fleet and the engine's image use these patches too.
_PATCHES = str(Path(engines.__file__).parent / "vllm_patches")
_START_S = {"sim": 90.0, "vllm": 300.0}
_STOP_S = 40.0


@dataclass(frozen=True)
class Engine:
    kind: str
    base_url: str
    model_dir: str
    """The value of --model: a directory, or a bare name for a simulator without model files."""
    process: "subprocess.Popen[bytes] | None"  # None for recorded answers

    @property
    def port(self) -> int:
        return int(self.base_url.rpartition(":")[2])


def model_dir() -> str | None:
    return os.environ.get("SHOAL_BASE_MODEL_DIR")


@contextmanager
def running(kind: str, log: Path, *extra: str) -> Iterator[Engine]:
    program, model = _program(kind)
    with _started(kind, [*program, "--model", model, *_ARGUMENTS, *extra], model, log) as engine:
        yield engine


@contextmanager
def serving_model(model: str, log: Path, *arguments: str) -> Iterator[Engine]:
    """Run the real engine with another model than the contract's and with only these arguments."""
    program, _ = _program("vllm", model)
    arguments = ("--model", model, "--served-model-name", MODEL, "--dtype", "float32", *arguments)
    with _started("vllm", [*program, *arguments], model, log) as engine:
        yield engine


@contextmanager
def _started(kind: str, command: list[str], model: str, log: Path) -> Iterator[Engine]:
    port = free_port()
    beside = [_PATCHES, *filter(None, [os.environ.get("SHOAL_NIXL_DIR")])]
    patched = {"PYTHONPATH": os.pathsep.join(beside)} if kind == "vllm" else {}
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | _ENVIRONMENT | patched,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        engine = Engine(kind, f"http://127.0.0.1:{port}", model, process)
        _wait_until_ready(engine, log)
        yield engine
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM, and after a timeout SIGKILL to the whole group, because vLLM is three processes."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _program(kind: str, model: str | None = None) -> tuple[list[str], str]:
    if kind == "sim":
        return [sys.executable, "-m", "functions.engines.sim"], model_dir() or MODEL
    program = [os.environ["SHOAL_ENGINE_PYTHON"], "-m", "vllm.entrypoints.openai.api_server"]
    return program, model or os.environ["SHOAL_BASE_MODEL_DIR"]


def _wait_until_ready(engine: Engine, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S[engine.kind]
    while time.monotonic() < deadline_s:
        if engine.process.poll() is not None:
            break
        try:
            if httpx.get(f"{engine.base_url}/health", timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"{engine.kind} did not start:\n{log.read_text(errors='replace')[-4000:]}")
