"""The adapter cache as a process, between eight nodes and a real store."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.fetch import fetch
from functions.artifacts.near_store import NearStore
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Settings, S3Store
from functions.fleet.role_credentials import RoleCredentials
from tests.artifacts.adapter_files import make_adapter
from tests.ports import free_ports
from tests.replica.processes import http, role, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
TOKEN = "adapter-cache-tests"
NODES = 8


@contextmanager
def running_cache(folder: Path, s3: S3Settings, port: int) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(TOKEN)
    credentials = {
        "access_key_id": s3.credentials.access_key_id,
        "secret_access_key": s3.credentials.secret_access_key,
    }
    (folder / "s3.json").write_text(json.dumps(credentials))
    settings = {
        "LISTEN_PORT": port,
        "INTERNAL_TOKEN_FILE": folder / "token",
        "S3_ENDPOINT_URL": s3.endpoint_url,
        "S3_CREDENTIALS_FILE": folder / "s3.json",
        "CACHE_DIR": folder / "cache",
        "MAX_ANSWERS": 8 * NODES,  # all nodes at once; the default of 16 would send some to the store
    }
    env = {f"SHOAL_ADAPTER_CACHE_{name}": str(value) for name, value in settings.items()}
    with role("functions.replica.adapter_cache", log=folder / "log", env=env):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: http("GET", f"{url}/readyz")[0] == 200, "the adapter cache answers")
        yield url


def metric(url: str, name: str) -> float:
    page = http("GET", f"{url}/metrics")[1].decode()
    return float(next(line for line in page.splitlines() if line.startswith(name + " ")).split()[1])


def test_the_store_is_read_once_for_all_nodes_of_a_region_and_not_at_all_after_a_restart(
    store: S3Store, s3_settings: S3Settings, tmp_path: Path
) -> None:
    """Nodes must not read the store one by one: a popular adapter would cross regions once for each node."""
    secret = RoleCredentials(TOKEN).secret("chunks")
    [port] = free_ports(1)
    digest = publish_directory(
        store, make_adapter(tmp_path / "adapter", seed=81), "s3://shoal-models/acme/near/v1", replace=True
    )

    def node(url: str, name: str) -> NearStore:
        near = NearStore(store, url, lambda: secret)
        with closing(near):
            path = fetch(near, ArtifactCache(tmp_path / name), Digest(digest))
        assert (path / "adapter_model.safetensors").is_file()
        return near

    with running_cache(tmp_path / "region", s3_settings, port) as url, ThreadPoolExecutor(NODES) as nodes:
        found = list(nodes.map(lambda number: node(url, f"node-{number}"), range(NODES)))
        assert sum(near.reads["store"] for near in found) == 0
        objects = found[0].reads["cache"]
        assert all(near.reads["cache"] == objects for near in found)
        assert metric(url, 'shoal_region_cache_requests_total{result="miss"}') == objects
        read_bytes = metric(url, "shoal_region_cache_store_bytes_total")
        assert 0 < read_bytes == metric(url, "shoal_region_cache_bytes"), "each object once, and kept"
    with running_cache(tmp_path / "region", s3_settings, port) as url:
        assert node(url, "later").reads == {"cache": objects}
        assert metric(url, "shoal_region_cache_store_bytes_total") == 0
    alone = node(url, "alone")  # the cache at this address has stopped
    assert alone.reads == {"store": objects}
