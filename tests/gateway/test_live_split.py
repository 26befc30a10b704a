"""Prefill and decode split, live: a gateway in front of two engines, of which one computes prompts for the other.

The real engines need NIXL, which `make soak` installs: on CPU it transfers blocks over TCP.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import PoolEntry
from functions.gateway.limits import Limits
from tests.contract.servers import Engine, model_dir, running
from tests.gateway.live import LiveGateway
from tests.gateway.rig import ACME_KEY, POOL, catalogue, routing
from tests.ports import free_port

PREFILL = PoolName("smollm2-prefill")
FACTS = " ".join(f"Fact {number}: item {number} is kept in room {number * 7 % 31}." for number in range(25))
CALL_S = 180.0


def transfers(policy: str) -> tuple[str, str]:
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": policy}
    return "--kv-transfer-config", json.dumps(config)


@contextlib.contextmanager
def engine(kind: str, log: Path, name: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free_port()))
    with running(kind, log, "--served-model-name", name, *transfers(policy)) as started:
        yield started


@contextlib.contextmanager
def beating(live: LiveGateway, reads: Engine, decodes: Engine) -> Iterator[None]:
    """Publish heartbeats of both every few seconds: a real engine on a busy CPU takes longer than the silence limit."""
    over = threading.Event()

    def beat() -> None:
        while True:
            live.beat("d0", decodes.port, running=30, prefill_ms_per_token=5.0)
            live.beat("p0", reads.port, pool=PREFILL, prefill_ms_per_token=1.0)
            if over.wait(3.0):
                return

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        yield
    finally:
        over.set()
        heart.join()


@contextlib.contextmanager
def apart(
    kind: str, folder: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, policy: str = "recompute"
) -> Iterator[tuple[LiveGateway, Engine, Engine]]:
    entry = PoolEntry(
        PREFILL, 1024, model=POOL, role="prefill", kv_bytes_per_token=46_080, kv_transfer_bytes_per_s=12.5e9
    )
    pools = (PoolEntry(POOL, context_window_tokens=1024), entry)
    policies = (routing(prefill_min_prompt_tokens=200, prefill_give_up_after_s=120.0, retry_max_attempts=1),)
    first = catalogue(pools=pools, routing=policies)
    with (
        engine(kind, folder / "prefill.log", PREFILL, policy, monkeypatch) as reads,
        engine(kind, folder / "decode.log", POOL, policy, monkeypatch) as decodes,
        LiveGateway(Limits(), certificate, first=first) as live,
        beating(live, reads, decodes),
    ):
        yield live, reads, decodes


def send_chat(live: LiveGateway, text: str, **fields: Any) -> httpx.Response:
    body = {
        "model": POOL,
        "messages": [{"role": "user", "content": f"{text} What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    url = f"http://127.0.0.1:{live.plain_port}/v1/chat/completions"
    auth = {"authorization": f"Bearer {ACME_KEY}"}
    return httpx.post(url, json=body | fields, headers=auth, timeout=CALL_S)


def figure(engine: Engine, name: str, label: str = "") -> float:
    page = httpx.get(f"{engine.base_url}/metrics", timeout=CALL_S).text
    lines = [line for line in page.splitlines() if line.startswith(f"vllm:{name}{{") and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def check(live: LiveGateway, reads: Engine, decodes: Engine) -> None:
    """Check that both paths give the same answer and that the decoding engine computes next to nothing in the split
    one."""
    split = send_chat(live, FACTS)
    assert split.headers["x-shoal-prefill"] == "path=split;replica=p0" and split.headers["x-shoal-replica"] == "d0"
    taken = figure(decodes, "prompt_tokens_by_source_total", 'source="external_kv_transfer"')
    prompt_tokens = split.json()["usage"]["prompt_tokens"]
    assert taken >= prompt_tokens - 1 > 200
    assert figure(decodes, "external_prefix_cache_hits_total") == taken
    assert figure(reads, "prompt_tokens_by_source_total", 'source="local_compute"') >= prompt_tokens
    assert split.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # it was computed for this request
    one = send_chat(live, FACTS)  # the gateway now knows that the decoding replica has it cached
    assert one.headers["x-shoal-prefill"] == "path=one;why=cached" and said(one) == said(split)


@pytest.mark.servers
def test_simulated_engines_transfer_blocks(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with apart("sim", tmp_path, certificate, monkeypatch) as (live, reads, decodes):
        check(live, reads, decodes)


@pytest.mark.servers
def test_lost_blocks_do_not_lose_a_request(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With vLLM's own policy, an engine answers 500 if it cannot read the other engine's blocks."""
    with apart("sim", tmp_path, certificate, monkeypatch, policy="fail") as (live, reads, _):
        httpx.post(f"{reads.base_url}/sim/faults", json={"lose_kv_blocks": True}, timeout=CALL_S).raise_for_status()
        failed = send_chat(live, FACTS)
        assert said(failed) and failed.headers["x-shoal-prefill"] == "path=one;why=transfer_failed"


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    not (model_dir() and os.environ.get("SHOAL_ENGINE_PYTHON") and os.environ.get("SHOAL_NIXL_DIR")),
    reason="needs the real engine and NIXL, which `make soak` prepares; or SHOAL_NIXL_DIR=DIR after "
    "`.venv-engine/bin/pip install --no-deps --target DIR -r functions/controller/local/prepare/nixl.lock.txt`",
)
def test_vllm_engines_transfer_blocks(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with apart("vllm", tmp_path, certificate, monkeypatch) as (live, reads, decodes):
        check(live, reads, decodes)
        assert figure(decodes, "nixl_bytes_transferred_sum") > 1_000_000
