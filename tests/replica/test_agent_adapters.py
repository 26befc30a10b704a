"""Load adapters from the store into the engine: by digest, verified, again after a restart, never a corrupt one."""

import signal
from datetime import datetime
from pathlib import Path

import pytest

from functions.api.ids import Digest, ModelId
from functions.artifacts import manifest as manifests
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from tests.artifacts.adapter_files import make_adapter
from tests.replica.conftest import BusProbe
from tests.replica.processes import AgentProcess, Engine, Registry, http, wait_for
from tests.replica.snapshots import SUPPORT_BOT, keep, make_snapshot, name_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start
PIRATE = ModelId("acme/pirate")


def publish(store: S3Store, tmp_path: Path, seed: int, model: ModelId = SUPPORT_BOT, version: str = "v1") -> Digest:
    source = make_adapter(tmp_path / f"source-{seed}", seed=seed)
    return publish_directory(store, source, f"s3://shoal-models/{model}/{version}", replace=True)


def agent_with(store: S3Store, tmp_path: Path, engine: Engine, bus: BusProbe, **settings: str) -> AgentProcess:
    return AgentProcess(tmp_path, engine, bus.url, s3=store.settings, settings=settings)


def said_unix_s(agent: AgentProcess, words: str) -> float:
    """Return the time of the agent's first log line that ends with `words`, or 0."""
    lines = [line for line in agent.log.read_text().splitlines() if line.endswith(words)]
    return datetime.strptime(lines[0][:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() if lines else 0.0


def test_adapters_are_loaded_advertised_and_reloaded_after_a_restart(
    store: S3Store, bus: BusProbe, tmp_path: Path
) -> None:
    digests = {SUPPORT_BOT: publish(store, tmp_path, 1), PIRATE: publish(store, tmp_path, 2, PIRATE)}
    names = sorted(name_of(digest, model) for model, digest in digests.items())
    engine = Engine(tmp_path)
    agent = agent_with(store, tmp_path, engine, bus)
    keep(agent.snapshot_cache_file, make_snapshot({model: {"v1": digest} for model, digest in digests.items()}))
    with agent.run():
        with engine.run():
            agent.wait_until_ready()
            assert engine.adapters() == names
            heartbeat = bus.wait_for_beat(
                lambda heartbeat: sorted(heartbeat.adapters) == names, "the heartbeat names them"
            )
            assert (heartbeat.phase, heartbeat.snapshot_epoch, heartbeat.reason) == ("ready", 1, "")
            page = http("GET", f"{agent.url}/metrics")[1].decode()
            assert 'shoal_adapter_loads_total{tier="s3"} 2.0' in page
            engine.signal(signal.SIGKILL)
            bus.wait_for_phase("dead")
        with engine.run():
            wait_for(lambda: engine.adapters() == names, "the successor has them too")
            agent.wait_until_ready()


def test_a_corrupt_blob_is_never_loaded_and_the_reason_is_told(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    bad, good = publish(store, tmp_path, 11), publish(store, tmp_path, 12, PIRATE)
    document = store.read_small(manifest_key(manifests.hex_of(bad)), 1_000_000)
    files = {entry.path: entry for entry in manifests.decode(document).files}
    key = chunk_key(files["adapter_model.safetensors"].sha256)
    content = store.read_small(key, 1_000_000)
    store.put(key, content[:-1] + b"\x01")
    agent = agent_with(store, tmp_path, engine, bus)
    keep(agent.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": bad}, PIRATE: {"v1": good}}))
    with agent.run():
        wait_for(lambda: (heartbeat := bus.last()) and key in heartbeat.reason, "the heartbeat names the blob")
        wait_for(lambda: engine.adapters() == [name_of(good, PIRATE)], "the good one is loaded")
        assert not (tmp_path / "cache" / "sha256" / bad.removeprefix("sha256:")).exists()
        agent.wait_until_ready()  # one tenant's broken artifact does not delay readiness
        store.put(key, content)
        wait_for(lambda: name_of(bad) in engine.adapters(), "loaded once the store is repaired")
        wait_for(lambda: (heartbeat := bus.last()) and heartbeat.reason == "", "nothing left to report")


def test_an_adapter_that_the_engine_could_not_serve_is_refused_in_words(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    source = make_adapter(tmp_path / "dora", use_dora=True)
    digest = publish_directory(store, source, "s3://shoal-models/acme/dora/v1", replace=True)
    agent = agent_with(store, tmp_path, engine, bus)
    keep(agent.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": digest}}))
    with agent.run():
        wait_for(lambda: (heartbeat := bus.last()) and "DoRA" in heartbeat.reason, "the heartbeat says why")
        assert engine.adapters() == []


def test_the_store_being_away_does_not_stop_the_base(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digest = publish(store, tmp_path, 31)
    agent = AgentProcess(tmp_path, engine, bus.url)  # its S3 endpoint refuses connections
    keep(agent.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": digest}}))
    with agent.run():
        heartbeat = wait_for(
            lambda: (heartbeat := bus.last()) and "the store failed" in heartbeat.reason and heartbeat, "the reason"
        )
        assert (heartbeat.phase, heartbeat.adapters) == ("ready", ())


def test_a_restarted_agent_adopts_what_the_engine_has(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    digest = publish(store, tmp_path, 41)
    first = agent_with(store, tmp_path, engine, bus)
    keep(first.snapshot_cache_file, make_snapshot({SUPPORT_BOT: {"v1": digest}}))
    with first.run():
        first.wait_until_ready()
        incarnation = bus.wait_for_phase("ready").incarnation
    with agent_with(store, tmp_path, engine, bus).run() as second:
        second.wait_until_ready()
        page = http("GET", f"{second.url}/metrics")[1].decode()
        assert 'shoal_adapter_loads_total{tier="s3"} 0.0' in page
        assert 'shoal_adapter_loads_total{tier="disk"} 0.0' in page
        heartbeat = bus.wait_for_beat(
            lambda heartbeat: heartbeat.incarnation != incarnation and bool(heartbeat.adapters), "advertised"
        )
        assert heartbeat.adapters == (name_of(digest),)


def test_promotion_loads_the_new_version_and_unloads_the_old_after_its_grace(
    store: S3Store, engine: Engine, bus: BusProbe, tmp_path: Path
) -> None:
    old, new = publish(store, tmp_path, 51), publish(store, tmp_path, 52, version="v2")
    registry = Registry(tmp_path, bus.url)
    with registry.run():
        registry.publish(make_snapshot({SUPPORT_BOT: {"v1": old}}))
        agent = agent_with(store, tmp_path, engine, bus, ADAPTER_GRACE_S="2")
        agent.registry_url = registry.url
        with agent.run():
            bus.wait_for_beat(lambda heartbeat: heartbeat.adapters == (name_of(old),), "the first is advertised")
            registry.publish(make_snapshot({SUPPORT_BOT: {"v2": new}}, channels={"stable": "v2"}, epoch=2))
            both = tuple(sorted([name_of(old), name_of(new)]))
            bus.wait_for_beat(lambda heartbeat: heartbeat.adapters == both, "both are advertised")
            withdrawn = bus.wait_for_beat(
                lambda heartbeat: heartbeat.adapters == (name_of(new),), "the old one is withdrawn"
            )
            wait_for(lambda: engine.adapters() == [name_of(new)], "the old one is unloaded")
            unloaded_unix_s = wait_for(lambda: said_unix_s(agent, f"adapter {name_of(old)} unloaded"), "it says so")
            assert unloaded_unix_s > withdrawn.sent_unix_s, "a request that was already routed still finds it"
            assert withdrawn.snapshot_epoch == 2
    assert agent.snapshot_cache_file.exists()
