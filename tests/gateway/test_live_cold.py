"""Cold adapters through the gateway: real agents, simulated engines, a real store and bus.

Two replicas have room for four adapters each, and there are seven adapters: those that no replica has loaded are cold.
"""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from functions.api.ids import Digest, EngineName, ModelId
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from functions.gateway.limits import Limits
from tests.artifacts.adapter_files import make_adapter
from tests.gateway.client_rig import HttpAnswer, post
from tests.gateway.live import LiveGateway, Way, client, quiet
from tests.gateway.rig import catalogue
from tests.replica.cold_rig import metric, publish_many
from tests.replica.processes import AgentProcess, Engine, wait_for
from tests.replica.snapshots import keep, make_snapshot, name_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # starts several processes and waits for each
ADAPTERS = 7
COLD_WAIT_S = 60.0  # longer than in production: a load may be slow on a shared machine


@dataclass
class Fleet:
    agents: list[AgentProcess]
    engines: list[Engine]
    digests: dict[ModelId, Digest]

    def names(self) -> dict[ModelId, EngineName]:
        return {model: name_of(digest, model) for model, digest in self.digests.items()}

    def loaded(self) -> set[str]:
        return {name for engine in self.engines if engine.running for name in engine.adapters()}

    def cold(self) -> list[ModelId]:
        loaded = self.loaded()
        return [model for model, name in self.names().items() if name not in loaded]


@contextlib.contextmanager
def a_fleet(store: S3Store, bus_url: str, folder: Path, first: int) -> Iterator[Fleet]:
    """Start two agents and wait until both are ready and have finished preloading."""
    digests = publish_many(store, folder, ADAPTERS, first=first)
    model = ModelId("acme/broken")
    broken = make_adapter(folder / "broken", use_dora=True)
    digests[model] = publish_directory(store, broken, "s3://shoal-models/acme/broken/v1", replace=True)
    made = make_snapshot({name: {"v1": digest} for name, digest in digests.items()})
    with contextlib.ExitStack() as stack:
        agents, engines = [], []
        for number in range(2):
            own = folder / f"node-{number}"
            own.mkdir()
            engines.append(stack.enter_context(Engine(own).run()))
            settings = {"MAX_ADAPTERS": "4"}
            agent = AgentProcess(
                own, engines[-1], bus_url, store.settings, settings=settings, replica_id=f"cold-{number}"
            )
            keep(agent.snapshot_cache_file, made)
            agents.append(stack.enter_context(agent.run()))
        for agent, engine in zip(agents, engines, strict=True):
            agent.wait_until_ready()
            agent.wait(lambda engine=engine: len(engine.adapters()) >= 3, "loaded ahead")  # type: ignore[misc]
        yield Fleet(agents, engines, digests)


@contextlib.contextmanager
def in_front(fleet: Fleet, bus_url: str, certificate: tuple[Path, Path]) -> Iterator[LiveGateway]:
    """Start a gateway that knows both replicas."""
    models = make_snapshot({name: {"v1": digest} for name, digest in fleet.digests.items()}).models
    wide = Limits(cold_wait_s=COLD_WAIT_S)
    first = catalogue(1, models=models)
    with LiveGateway(wide, certificate, bus_url=bus_url, token="internal-token", first=first) as live:

        def known() -> bool:
            replicas = [live.gateway.services.fleet.replica(agent.replica_id) for agent in fleet.agents]  # type: ignore[arg-type]
            return all(it is not None and it.phase == "ready" and it.peer_port and it.adapters for it in replicas)

        wait_for(lambda: live.call(known), "both replicas' heartbeats")
        yield live


async def send_chat(live: LiveGateway, way: Way, trust: ssl.SSLContext, model: str, stream: bool = False) -> HttpAnswer:
    content = [{"role": "user", "content": "hello"}]
    async with client(live, way, trust) as one:
        await one.send(post(orjson.dumps({"model": model, "stream": stream, "messages": content, "max_tokens": 40})))
        return await one.answer(COLD_WAIT_S + 30)


def cold_calls(agents: Sequence[AgentProcess]) -> float:
    return sum(metric(agent, 'shoal_adapter_cold_loads_total{answer="loaded"}') for agent in agents)


async def test_fifty_clients_of_one_cold_adapter_cause_one_load(
    store: S3Store, valkey_url: str, certificate: tuple[Path, Path], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    with a_fleet(store, valkey_url, tmp_path, 100) as fleet, in_front(fleet, valkey_url, certificate) as live:
        model = next(model for model in fleet.cold() if model != "acme/broken")
        ways = [Way("fast", tls=False), Way("plain", tls=False), Way("fast", tls=True)]
        answers = await asyncio.gather(
            *(send_chat(live, ways[n % 3], trust, model, stream=n % 2 == 0) for n in range(50))
        )
        assert {answer.status for answer in answers} == {200}
        assert {answer.headers["x-shoal-model"] for answer in answers} == {f"{model}@v1"}
        assert all(fleet.names()[model].encode() in answer.body for answer in answers if b'"usage"' in answer.body)
        waited = [answer for answer in answers if "load;dur=" in answer.headers["server-timing"]]
        assert waited, "somebody waited"
        assert cold_calls(fleet.agents) == 1, "one call for all of them"
        read = live.gateway.services.metrics.registry.get_sample_value
        assert read("shoal_cold_load_seconds_count", {"outcome": "loaded"}) == 1
        assert await quiet(live)


@pytest.mark.soak
async def test_an_agent_that_dies_during_the_load_is_replaced_by_another(
    store: S3Store, valkey_url: str, certificate: tuple[Path, Path], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    """Both engines are stopped while the agent is killed, so that no load can have ended before."""
    with a_fleet(store, valkey_url, tmp_path, 200) as fleet, in_front(fleet, valkey_url, certificate) as live:
        model = next(model for model in fleet.cold() if model != "acme/broken")
        for engine in fleet.engines:
            engine.signal(signal.SIGSTOP)
        asking = asyncio.ensure_future(send_chat(live, Way("fast", tls=False), trust, model))
        asked = None
        while asked is None:
            await asyncio.sleep(0.005)
            asked = live.call(
                lambda: next((load.asked for load in live.gateway.services.adapter_loads._loads.values()), None)
            )  # type: ignore[union-attr]
        victim = next(agent for agent in fleet.agents if agent.replica_id == asked)
        assert victim.running is not None
        victim.running.send_signal(signal.SIGKILL)
        for engine in fleet.engines:
            engine.signal(signal.SIGCONT)
        answer = await asking
        assert (answer.status, answer.headers["x-shoal-model"]) == (200, f"{model}@v1")
        assert answer.headers["x-shoal-replica"] != asked
        assert await quiet(live)


async def test_unloadable_artifact_is_explained(
    store: S3Store, valkey_url: str, certificate: tuple[Path, Path], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    with a_fleet(store, valkey_url, tmp_path, 300) as fleet, in_front(fleet, valkey_url, certificate) as live:
        answer = await send_chat(live, Way("fast", tls=False), trust, "acme/broken")
        assert (answer.status, answer.code) == (503, "model_unavailable")
        assert "DoRA" in answer.error["message"] and "acme/broken@v1" in answer.error["message"]
        assert "retry-after" not in answer.headers
        assert await quiet(live)


async def test_every_adapter_answers_with_fewer_slots_than_adapters(
    store: S3Store, valkey_url: str, certificate: tuple[Path, Path], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    """There are more adapters than slots: each request reaches its adapter, whose name is in the answer."""
    with a_fleet(store, valkey_url, tmp_path, 400) as fleet, in_front(fleet, valkey_url, certificate) as live:
        models = [model for model in fleet.digests if model != "acme/broken"] * 3
        gate = asyncio.Semaphore(3)

        async def one(model: ModelId) -> tuple[ModelId, HttpAnswer]:
            async with gate:
                return model, await send_chat(live, Way("fast", tls=False), trust, model)

        for model, answer in await asyncio.gather(*map(one, models)):
            assert answer.status == 200, answer.body
            text = orjson.loads(answer.body)["choices"][0]["message"]["content"]
            assert text.startswith(f"[{fleet.names()[model]}#"), "the simulated engine says who speaks"
        assert await quiet(live)
