"""The node fetcher as a process: killed, stopped, wrongly configured, and beside another one."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import httpx
import pytest
from fastapi import Depends, FastAPI

from functions.api.ids import Digest
from functions.artifacts import compiled, directories
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.locations import manifest_key
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, FileEntry, Manifest, hex_of
from functions.artifacts.publish import put_content
from functions.artifacts.s3 import S3Settings, S3Store
from functions.artifacts.swarm.protocol import encode_announcement
from functions.decisions.distribution.chunk_bits import full
from functions.decisions.distribution.tracker import Announcement
from functions.fleet.role_credentials import RoleCredentials, derived
from functions.registry import errors
from functions.registry.conventions import require_role
from functions.registry.tracker import Tracker, tracker_routes
from functions.replica.listeners import agent_server, bind
from tests.ports import free_ports

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start
MIB = 1024 * 1024
TOKEN = "node-fetch-tests"


class NodeFetcher:
    def __init__(self, folder: Path, s3: S3Settings, **settings: object) -> None:
        self.cache = folder / "cache"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(TOKEN)
        (folder / "s3.json").write_text(
            json.dumps(
                {
                    "access_key_id": s3.credentials.access_key_id,
                    "secret_access_key": s3.credentials.secret_access_key,
                }
            )
        )
        given = {
            "INTERNAL_TOKEN_FILE": folder / "token",
            "S3_ENDPOINT_URL": s3.endpoint_url,
            "S3_CREDENTIALS_FILE": folder / "s3.json",
            "CACHE_DIR": self.cache,
        } | {name.upper(): value for name, value in settings.items()}
        self._env = os.environ | {f"SHOAL_NODE_FETCH_{name}": str(value) for name, value in given.items()}

    def start(self, digest: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "functions.replica.node_fetch", digest, *arguments]
        return subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def chunks_written(self) -> int:
        return sum(path.read_bytes().count(1) for path in self.cache.glob("partial/*/progress"))


@contextmanager
def running_tracker(bases: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[str]:
    """Serve the tracker's routes and the registry's `bases` on a free port and yield the URL."""
    app = FastAPI()
    errors.install_error_handlers(app)

    agents = [Depends(require_role(RoleCredentials(TOKEN), "agent"))]

    @app.get("/internal/v1/weights/{name}/{version}", dependencies=agents)
    async def weights(name: str, version: str) -> dict[str, object]:
        return {"digest": (bases or {}).get(name, {}).get(version)}

    app.include_router(tracker_routes(Tracker(), agents))
    listener = bind("127.0.0.1", 0, "port")
    server = agent_server(app)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def listening_peer() -> Iterator[tuple[str, list[str]]]:
    """Run an untrusted server at a peer's address; yield its address and the credentials it received."""
    shown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["authorization"])
            self.send_error(404)

        def log_request(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", shown
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def digest(store: S3Store, tmp_path: Path) -> Digest:
    return publish(store, tmp_path / "source", 11)


def publish(store: S3Store, folder: Path, seed: int) -> Digest:
    """Publish 24 MiB in chunks of 1 MiB."""
    folder.mkdir()
    content = Random(seed).randbytes(24 * MIB)
    (folder / "model.safetensors").write_bytes(content)
    chunks = tuple(hashlib.sha256(content[start : start + MIB]).hexdigest() for start in range(0, len(content), MIB))
    entry = FileEntry(
        path="model.safetensors", size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), chunks=chunks
    )
    return put_content(store, folder, Manifest(chunk_bytes=MIB, files=(entry,)))


def seeds(tracker_url: str) -> int:
    """Return the number of nodes that have announced all chunks to the tracker."""
    answer = httpx.get(f"{tracker_url}/internal/v1/swarm", headers={"authorization": f"Bearer {TOKEN}"}, timeout=60)
    return sum(int(board["complete"]) for board in answer.raise_for_status().json()["data"])


def report_of(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def wait_until(condition: object, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_killed_node_fetch_is_resumed(s3_settings: S3Settings, digest: Digest, tmp_path: Path) -> None:
    slow = NodeFetcher(tmp_path / "node", s3_settings, down_bytes_per_s=MIB)
    first = slow.start(digest)
    wait_until(lambda: slow.chunks_written() >= 4)
    first.kill()
    first.communicate()
    assert not (slow.cache / "sha256").exists()
    written = slow.chunks_written()
    report = report_of(NodeFetcher(tmp_path / "node", s3_settings).start(digest))
    assert report["resumed_chunks"] >= written >= 4
    assert report["from_store_bytes"] == (24 - report["resumed_chunks"]) * MIB
    directories.verify_directory(Path(str(report["path"])), digest)


def test_the_second_node_gets_it_from_the_first(s3_settings: S3Settings, digest: Digest, tmp_path: Path) -> None:
    with running_tracker() as url:
        seed = NodeFetcher(tmp_path / "one", s3_settings, registry_url=url)
        first = seed.start(digest, "--seed-s", "120")
        assert first.stdout is not None
        assert json.loads(first.stdout.readline())["from_store_bytes"] == 24 * MIB
        wait_until(lambda: seeds(url) == 1)
        report = report_of(NodeFetcher(tmp_path / "two", s3_settings, registry_url=url).start(digest))
        assert report["from_peers_bytes"] == 24 * MIB
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=90)
        assert first.returncode == 0, err


def test_a_name_is_fetched_linked_and_seeded_like_kserve_asks_for_it(
    s3_settings: S3Settings, store: S3Store, digest: Digest, tmp_path: Path
) -> None:
    """The pointer resolves the name, since there is no registry; the port shows a kubelet when the folder is ready."""
    document = store.read_small(manifest_key(hex_of(digest)), MANIFEST_MAX_BYTES)
    store.put(f"bases/{tmp_path.name}/v1/shoal-manifest.json", document)
    (port,) = free_ports(1)
    mount = tmp_path / "mnt"
    mount.mkdir()
    node = NodeFetcher(tmp_path / "node", s3_settings, listen_port=port, seed_s="inf", down_bytes_per_s=12 * MIB)
    process = node.start(f"shoal://{tmp_path.name}@v1", str(mount))
    seen: list[int] = []

    def ready() -> bool:
        with contextlib.suppress(httpx.TransportError):
            seen.append(httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code)
        return bool(seen) and seen[-1] == 200

    wait_until(ready)
    assert seen[0] == 503  # it listens and serves chunks before the folder is ready
    assert (mount / "model.safetensors").read_bytes() == (tmp_path / "source" / "model.safetensors").read_bytes()
    assert ArtifactCache(node.cache).evict(0) == []  # held as long as the engine may read it
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert ArtifactCache(node.cache).evict(0) == [digest]


def test_registry_digest_overrides_the_pointer(
    s3_settings: S3Settings, store: S3Store, digest: Digest, tmp_path: Path
) -> None:
    """Write access to the bucket must not be enough to change a version that git pins."""
    name = tmp_path.name
    other = publish(store, tmp_path / "other", 12)
    document = store.read_small(manifest_key(hex_of(other)), MANIFEST_MAX_BYTES)
    store.put(f"bases/{name}/v1/shoal-manifest.json", document)
    with running_tracker({name: {"v1": digest}}) as url:
        report = report_of(NodeFetcher(tmp_path / "node", s3_settings, registry_url=url).start(f"shoal://{name}@v1"))
    assert report["digest"] == digest


def test_the_disk_is_bounded(s3_settings: S3Settings, store: S3Store, digest: Digest, tmp_path: Path) -> None:
    """Room for two bases of 24 MiB: the third replaces the least recently used one."""
    node = NodeFetcher(tmp_path / "node", s3_settings, cache_max_bytes=50 * MIB)
    digests = [digest, *(publish(store, tmp_path / str(seed), seed) for seed in (31, 32))]
    for each in digests:
        report_of(node.start(each))
    assert {artifact.digest for artifact in ArtifactCache(node.cache).digests()} == set(digests[1:])


@pytest.mark.soak
def test_sigterm_ends_the_fetcher_with_a_message(s3_settings: S3Settings, digest: Digest, tmp_path: Path) -> None:
    node = NodeFetcher(tmp_path / "node", s3_settings, down_bytes_per_s=MIB)
    process = node.start(digest)
    wait_until(lambda: node.chunks_written() >= 1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "stopped by a signal" in err
    assert "Traceback" not in err


@pytest.mark.soak
def test_too_slow_is_given_up_with_words(s3_settings: S3Settings, digest: Digest, tmp_path: Path) -> None:
    process = NodeFetcher(tmp_path / "node", s3_settings, down_bytes_per_s=MIB, timeout_s=1).start(digest)
    _, err = process.communicate(timeout=90)
    assert (process.returncode, "was not fetched within SHOAL_NODE_FETCH_TIMEOUT_S" in err) == (1, True)


@pytest.mark.soak
def test_the_time_is_for_all_digests_together(s3_settings: S3Settings, store: S3Store, tmp_path: Path) -> None:
    digests = [publish(store, tmp_path / str(seed), seed) for seed in (21, 22)]
    node = NodeFetcher(tmp_path / "node", s3_settings, down_bytes_per_s=6 * MIB, timeout_s=6)  # 4 s each
    process = node.start(digests[0], digests[1])
    _, err = process.communicate(timeout=90)
    assert (process.returncode, "was not fetched within SHOAL_NODE_FETCH_TIMEOUT_S" in err) == (1, True)


def test_a_peer_is_not_shown_the_installations_token(s3_settings: S3Settings, digest: Digest, tmp_path: Path) -> None:
    with running_tracker() as url, listening_peer() as (address, shown):
        everything = encode_announcement(Announcement(address, "", full(24)), 24)
        headers = {"authorization": f"Bearer {TOKEN}"}
        told = httpx.post(f"{url}/internal/v1/swarm/{digest}", content=everything, headers=headers, timeout=60)
        told.raise_for_status()
        process = NodeFetcher(tmp_path / "node", s3_settings, registry_url=url).start(digest)
        wait_until(lambda: shown)
        process.kill()
        process.communicate()
    assert shown[0] == f"Bearer {derived(TOKEN, 'chunks')}"
    assert TOKEN not in shown[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advertise_host": "node.example"}, "SHOAL_NODE_FETCH_ADVERTISE_HOST"),
        ({"advertise_host": "169.254.169.254"}, "not an address of a node"),
        ({"listen_host": "127.0.0.1", "internal_token_file": "/nowhere"}, "token"),
        ({"s3_credentials_file": "/nowhere"}, "S3 credentials"),
        ({"max_uploads": 0}, "max_uploads"),
    ],
)
def test_a_wrong_configuration_is_said(
    s3_settings: S3Settings,
    tmp_path: Path,
    settings: dict[str, object],
    said: str,
) -> None:
    process = NodeFetcher(tmp_path / "node", s3_settings, **settings).start(Digest("sha256:" + "0" * 64))
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert said in err
    assert "Traceback" not in err


@pytest.mark.soak
def test_unpublished_digest_is_reported(s3_settings: S3Settings, tmp_path: Path) -> None:
    for text, said in (("sha256:" + "0" * 64, "the store has no"), ("latest", "is not a digest")):
        process = NodeFetcher(tmp_path / said.replace(" ", ""), s3_settings).start(Digest(text))
        _, err = process.communicate(timeout=90)
        assert (process.returncode, said in err, "Traceback" in err) == (1, True, False)


def test_what_was_compiled_is_laid_out_before_the_engine_may_start(
    s3_settings: S3Settings, store: S3Store, digest: Digest, tmp_path: Path
) -> None:
    """Verified as the weights are; a companion for another accelerator stays where it is."""
    root, engine, pack = tmp_path / "warm", tmp_path / "engine", tmp_path / "pack"
    (root / "torch_compile_cache" / "0f3a").mkdir(parents=True)
    for accelerator in ("h100", "cpu"):
        (root / "torch_compile_cache" / "0f3a" / "graph").write_text(accelerator)
        pack.mkdir(exist_ok=True)
        compiled.pack(root, pack)
        compiled.publish(store, digest, pack, engine="0.32.0", accelerator=accelerator)
    node = NodeFetcher(tmp_path / "node", s3_settings, compiled_dir=engine, compiled_for="h100")
    out, err = node.start(digest, str(tmp_path / "model")).communicate(timeout=90)
    assert len(out.splitlines()) == 2, err
    laid_out = engine / "torch_compile_cache" / "0f3a" / "graph"
    assert laid_out.read_text() == "h100"
    linked_ns = (tmp_path / "model").lstat().st_ctime_ns
    assert laid_out.stat().st_ctime_ns <= linked_ns, "a local engine starts as soon as the link is there"


def test_broken_compile_cache_does_not_block_weights(
    s3_settings: S3Settings, store: S3Store, digest: Digest, tmp_path: Path
) -> None:
    """A broken compile cache must not delay an engine's start, and none of its files is written."""
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / compiled.PACK_NAME).write_bytes(b"no archive at all")
    content = put_content(store, folder, directories.build_manifest(folder, compiled.LIMITS))
    index = {"digest": content, "engine": "0.32.0", "accelerator": "h100", "keys": [], "size_bytes": 17}
    store.put(f"compiled/sha256/{hex_of(digest)}/index.json", json.dumps({"companions": [index]}).encode())
    node = NodeFetcher(tmp_path / "node", s3_settings, compiled_dir=tmp_path / "engine")
    process = node.start(digest)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0 and json.loads(out.splitlines()[0])["digest"] == digest, err
    assert "compiles anew" in err and not list((tmp_path / "engine").rglob("*"))
