"""Several pools of one model on simulated engine processes: which engine answers, counted by the engines themselves,
and which rule chose it: class, tier, prompt length or predicted time."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import PlacementEntry
from functions.decisions.catalogue import Catalogue
from functions.gateway.limits import Limits
from tests.contract.servers import Engine, running
from tests.gateway.live import CALL_S, LiveGateway
from tests.gateway.rig import GLOBEX_KEY, key_entry, mint
from tests.pools_rig import ACME, ACMES, GLOBEX, LLAMA, SPOT, base, pool, snapshot

pytestmark = pytest.mark.servers
ACME_KEY = mint("acme-ci", b"a")
EACH = 4  # as many as an engine runs at once
LONG, FAST, SPARE = PoolName("llama-long"), PoolName("llama-fast"), PoolName("llama-spare")
PLACED = (LLAMA, FAST, LONG, SPARE, SPOT)
RULES = (
    PlacementEntry(SPOT, classes=("batch",)),
    PlacementEntry(FAST, tiers=("gold",)),
    PlacementEntry(LONG, min_prompt_tokens=200),
    PlacementEntry(SPARE, min_predicted_ttft_ms=2000),
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    folder = tmp_path_factory.mktemp("pools")
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                running("sim", folder / f"{name}.log", "--served-model-name", name, "--sim-step-ms", "5")
            )
            for name in (LLAMA, ACMES, SPOT, LONG, FAST, SPARE)
        }


@pytest.fixture(scope="module")
def gateway(certificate: tuple[Path, Path], engines: dict[str, Engine]) -> Iterator[LiveGateway]:
    keys = (key_entry(ACME_KEY, ACME), key_entry(GLOBEX_KEY, GLOBEX))
    first = Catalogue(snapshot(keys=keys, pools=(pool(LLAMA), pool(ACMES, ACME)), models=(base(LLAMA),)), "test")
    with LiveGateway(Limits(), certificate, first=first) as live:
        for name in (LLAMA, ACMES):
            live.beat(f"{name}-0", engines[name].port, pool=name, adapters=())
        yield live


@pytest.fixture(scope="module")
def placing(certificate: tuple[Path, Path], engines: dict[str, Engine]) -> Iterator[LiveGateway]:
    """acme's tier is gold here and globex's free; both share all five pools."""
    keys = (key_entry(ACME_KEY, ACME), key_entry(GLOBEX_KEY, GLOBEX))
    pools = tuple(pool(name, window_tokens=1024) for name in PLACED)
    first = Catalogue(snapshot(*RULES, keys=keys, pools=pools, models=(base(LLAMA),)), "test")
    with LiveGateway(Limits(), certificate, first=first) as live:
        for name in PLACED:
            live.beat(f"{name}-0", engines[name].port, pool=name, adapters=())
        yield live


async def send_chat(client: httpx.AsyncClient, key: str, text: str = "hi", **headers: str) -> httpx.Response:
    body = {"model": LLAMA, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"} | headers)


def answered(engine: Engine) -> int:
    """Return the engine's own count of successful requests."""
    lines = httpx.get(f"{engine.base_url}/metrics", timeout=CALL_S).text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{")))


async def test_each_engine_answers_its_own_tenants(gateway: LiveGateway, engines: dict[str, Engine]) -> None:
    before = {name: answered(engine) for name, engine in engines.items()}
    url = f"http://127.0.0.1:{gateway.plain_port}"
    async with httpx.AsyncClient(base_url=url, timeout=CALL_S) as client:
        keys = [ACME_KEY, GLOBEX_KEY] * EACH
        answers = await asyncio.gather(*(send_chat(client, key) for key in keys))
        for key, answer in zip(keys, answers, strict=True):
            assert answer.status_code == 200, answer.text
            if key == GLOBEX_KEY:
                assert answer.headers["x-shoal-replica"] == f"{LLAMA}-0"
        own = sum(answer.headers["x-shoal-replica"] == f"{ACMES}-0" for answer in answers)
        assert own > 0
        after = {name: answered(engine) for name, engine in engines.items()}
        assert after[ACMES] - before[ACMES] == own, "what the gateway tells is what the engine saw"

        gateway.beat(f"{LLAMA}-0", engines[LLAMA].port, pool=LLAMA, adapters=(), phase="dead")
        refused = await asyncio.gather(*(send_chat(client, GLOBEX_KEY) for _ in range(EACH)))
        assert {answer.status_code for answer in refused} == {503}, "the only engine that is left is acme's"
        assert answered(engines[ACMES]) == after[ACMES]
        assert (await send_chat(client, ACME_KEY)).headers["x-shoal-replica"] == f"{ACMES}-0"


BATCH = {"x-shoal-class": "batch"}
LATE = 200  # requests that wait at the engine already: more than two seconds of work
CASES: dict[str, tuple[str, str, dict[str, str], int, PoolName]] = {
    "no rule holds": (GLOBEX_KEY, "hi", {}, 0, LLAMA),
    "class": (GLOBEX_KEY, "hi", BATCH, 0, SPOT),
    "class before tier": (ACME_KEY, "hi", BATCH, 0, SPOT),
    "tier": (ACME_KEY, "hi", {}, 0, FAST),
    "tier before length": (ACME_KEY, "word " * 300, {}, 0, FAST),
    "length": (GLOBEX_KEY, "word " * 300, {}, 0, LONG),
    "predicted time": (GLOBEX_KEY, "hi", {}, LATE, SPARE),
    "length before predicted time": (GLOBEX_KEY, "word " * 300, {}, LATE, LONG),
}


@pytest.mark.parametrize(("key", "text", "headers", "waiting", "expected"), CASES.values(), ids=CASES)
async def test_first_matching_rule_chooses_the_engine(
    placing: LiveGateway,
    engines: dict[str, Engine],
    key: str,
    text: str,
    headers: dict[str, str],
    waiting: int,
    expected: PoolName,
) -> None:
    placing.beat(f"{LLAMA}-0", engines[LLAMA].port, pool=LLAMA, adapters=(), waiting=waiting)
    before = {name: answered(engines[name]) for name in PLACED}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{placing.plain_port}", timeout=CALL_S) as client:
        answer = await send_chat(client, key, text, **headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-shoal-replica"] == f"{expected}-0"
    after = {name: answered(engines[name]) - before[name] for name in PLACED}
    assert after == {name: int(name == expected) for name in PLACED}, "by the engines' own count"
