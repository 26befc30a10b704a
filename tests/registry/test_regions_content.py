"""Content of adapters that git declares, in two regions with a store each: registries as processes, real buckets."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName
from functions.artifacts.locations import manifest_key
from functions.artifacts.manifest import hex_of
from functions.artifacts.s3 import S3Settings, S3Store
from functions.cli.adapter_push import pack
from functions.fleet.snapshots import SNAPSHOT_PATH
from tests.artifacts.adapter_files import make_adapter
from tests.ports import free_port
from tests.registry.catalogue_rig import published
from tests.registry.test_process import environment, registry
from tests.replica.processes import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]
SUBJECT = "acme/declared@v1"
FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass
class Region:
    client: httpx.Client
    objects: S3Store

    def held(self) -> dict[str, str]:
        (other,) = self.client.get("/internal/v1/regions").json()["others"]
        return {each["subject"]: each["code"] for each in other["held"]}

    def has(self, digest: Digest) -> bool:
        return self.objects.size_of(manifest_key(hex_of(digest))) is not None


@pytest.fixture
def regions(tmp_path: Path, s3_settings: S3Settings) -> Iterator[tuple[Region, Region]]:
    """Two regions that follow each other and publish the same snapshot, as from one repository."""
    ports = {name: free_port() for name in "ab"}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    (tmp_path / "regions.json").write_text(json.dumps({name: {"registry_url": url} for name, url in urls.items()}))
    (tmp_path / "regions-token").write_text("of all regions\n")
    (tmp_path / "pepper").write_bytes(b"p" * 32)
    keys = s3_settings.credentials
    credentials = {"access_key_id": keys.access_key_id, "secret_access_key": keys.secret_access_key}
    (tmp_path / "s3.json").write_text(json.dumps(credentials))
    with ExitStack() as stack:
        made = []
        for name, port in ports.items():
            bucket = f"region-{name}"
            objects = S3Store(replace(s3_settings, bucket=bucket))
            stack.callback(objects.close)
            objects.ensure_bucket()
            (tmp_path / name).mkdir()
            env = environment(
                tmp_path / name,
                port,
                SHOAL_REGISTRY_REGION=name,
                SHOAL_REGISTRY_REGIONS_FILE=str(tmp_path / "regions.json"),
                SHOAL_REGISTRY_REGIONS_TOKEN_FILE=str(tmp_path / "regions-token"),
                SHOAL_REGISTRY_PEPPER_FILE=str(tmp_path / "pepper"),
                SHOAL_REGISTRY_S3_ENDPOINT_URL=s3_settings.endpoint_url,
                SHOAL_REGISTRY_S3_CREDENTIALS_FILE=str(tmp_path / "s3.json"),
                SHOAL_REGISTRY_S3_BUCKET=bucket,
            )
            made.append(Region(stack.enter_context(registry(env, urls[name])), objects))
        yield made[0], made[1]


def declaring(digest: Digest) -> bytes:
    """Return a revision for both regions in which git names the adapter's digest."""
    snapshot = published()
    declared, base = snapshot.models
    version = msgspec.structs.replace(
        declared.versions[0], digest=digest, engine_name=EngineName(f"acme/declared@{digest[:14]}")
    )
    return snapshots.encode(
        msgspec.structs.replace(snapshot, models=(msgspec.structs.replace(declared, versions=(version,)), base))
    )


def test_declared_content_is_fetched_from_the_region_that_has_it(
    regions: tuple[Region, Region], tmp_path: Path
) -> None:
    """An adapter pushed into one region's store is served in both; until then, both report it missing."""
    a, b = regions
    adapter = make_adapter(tmp_path / "adapter", seed=7)
    for path in set(adapter.iterdir()) - {adapter / name for name in FILES}:
        path.unlink()
    digest = pack(adapter).digest
    for region in regions:
        assert region.client.put(SNAPSHOT_PATH, content=declaring(digest)).status_code == 204
    missing = {SUBJECT: "ArtifactMissing"}
    wait_for(lambda: [a.held(), b.held()] == [missing, missing], "both say that it is missing")
    files: list[Any] = [("file", (name, (adapter / name).read_bytes())) for name in FILES]
    made = a.client.post("/v1/artifacts", files=files, data={"tenant": "acme", "base_model": "base"})
    assert (made.status_code, made.json()["digest"]) == (201, digest), made.text
    wait_for(lambda: b.has(digest), "b has fetched it")
    wait_for(lambda: [a.held(), b.held()] == [{}, {}], "nothing is missing any more")
    row = b.client.get(f"/v1/artifacts/{digest}").json()
    assert row["tenant"] == "acme", "it is held as the tenant's, so that nothing collects it"
