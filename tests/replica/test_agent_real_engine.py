"""The agent beside the real vLLM, which must behave as the simulated engine does."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from tests.replica.conftest import BusProbe
from tests.replica.processes import POOL, AgentProcess, Engine, http, process
from tests.replica.snapshots import SUPPORT_BOT, keep, make_snapshot, name_of

_PYTHON = os.environ.get("SHOAL_ENGINE_PYTHON", "")
_MODEL = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
_ADAPTER = Path(__file__).parents[2] / "registry" / "adapters" / "acme" / "support-bot" / "v1"
_START_TIMEOUT_S = 240.0  # 20-35 s on a quiet machine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.own_engines,
    pytest.mark.soak,
    pytest.mark.servers,
    pytest.mark.timeout(500),
    pytest.mark.skipif(
        not (_PYTHON and _MODEL),
        reason="needs vLLM: `make up` (or `make test`) prepares it; set SHOAL_ENGINE_PYTHON to the python of its "
        "environment and SHOAL_BASE_MODEL_DIR to the base model's folder",
    ),
]


@dataclass
class RealEngine(Engine):
    @contextmanager
    def run(self) -> Iterator["Engine"]:
        arguments = [
            *(_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--model", _MODEL, "--served-model-name", POOL, "--max-model-len", "2048", "--dtype", "float32"),
            *("--enable-lora", "--max-loras", "2", "--max-cpu-loras", "8", "--max-lora-rank", "16"),
        ]
        env = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": "",
        }
        with process(arguments, self.directory / "vllm.log", env) as running:
            self.running = running
            try:
                yield self
            finally:
                for child in psutil.Process(running.pid).children(recursive=True):
                    child.send_signal(signal.SIGCONT)
                    child.kill()
                self.running = None

    def core(self) -> psutil.Process:
        """The engine-core process, which runs the step loop."""
        assert self.running is not None
        children = psutil.Process(self.running.pid).children(recursive=True)
        return next(child for child in children if any("EngineCore" in word for word in child.cmdline()))


def test_real_engine_is_loaded_checked_and_found_hung(store: S3Store, bus: BusProbe, tmp_path: Path) -> None:
    digest = publish_directory(store, _ADAPTER, "s3://shoal-models/acme/support-bot/v1", replace=True)
    engine = RealEngine(tmp_path)
    agent = AgentProcess(tmp_path, engine, bus.url, s3=store.settings)
    keep(agent.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": digest}}))
    with agent.run(), engine.run():
        bus.wait_for_phase("ready", timeout_s=_START_TIMEOUT_S)
        agent.wait_until_ready()
        assert engine.adapters() == [name_of(digest)]
        heartbeat = bus.wait_for_beat(
            lambda heartbeat: bool(heartbeat.adapters and heartbeat.engine_version), "the heartbeat names them"
        )
        assert heartbeat.kv_blocks_total > 0
        body = {"model": name_of(digest), "prompt": "hello", "max_tokens": 4}
        assert http("POST", f"{engine.url}/v1/completions", body, 60.0)[0] == 200
        core = engine.core()
        core.send_signal(signal.SIGSTOP)  # /health still answers 200: only the agent's probe detects the hang
        hung = bus.wait_for_phase("hung")
        assert "one-token probe" in hung.reason
        assert http("GET", f"{engine.url}/health")[0] == 200
        core.send_signal(signal.SIGCONT)
        bus.wait_for_phase("ready")
