"""A gateway forwards the registry's tenant routes and nothing else of the registry."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import ModelId, PoolName
from functions.api.snapshot import ModelEntry, PoolEntry
from functions.artifacts.s3 import S3Settings
from functions.decisions.catalogue import Catalogue
from functions.fleet.snapshots import SNAPSHOT_PATH
from functions.gateway.assembly import make_services
from functions.gateway.gateway import Gateway
from functions.gateway.http.asgi import make_app
from functions.gateway.limits import Limits
from functions.gateway.metrics import Metrics
from functions.gateway.registry_routes import ROUTES, UPLOADS, RegistryForwarding
from tests.artifacts.adapter_files import make_adapter
from tests.gateway.certificates import self_signed
from tests.gateway.processes import GatewayProcess, valkey
from tests.ports import free_port
from tests.registry.catalogue_rig import PEPPER, Rig, digest, key_text, published
from tests.registry.rig import NOW_UNIX_S, TOKEN
from tests.registry.test_every_route import BODIES, DOORS, PAGE, acmes
from tests.registry.test_process import environment, registry

PROJECT = Path(__file__).parents[2]
SHOAL = [sys.executable, "-m", "functions.cli.main"]


@dataclass
class Front:
    """A gateway and its registry, both in this process; `forwarded` lists what reached the registry through it."""

    client: httpx.AsyncClient
    forwarded: list[str] = field(default_factory=list)

    async def call(self, method: str, path: str, who: str, **options: object) -> httpx.Response:
        bearer = key_text(who) if who.startswith(("acme", "globex")) else who
        headers = {"authorization": f"Bearer {bearer}"} | options.pop("headers", {})  # type: ignore[operator]
        return await self.client.request(method, path, headers=headers, **options)  # type: ignore[arg-type]


@pytest.fixture
async def front(catalogue: Rig) -> AsyncIterator[Front]:
    limits = Limits(body_bytes=8 * 1024)
    services = make_services(
        pepper=PEPPER, limits=limits, metrics=Metrics(), clock=time.monotonic, wall_clock=lambda: NOW_UNIX_S
    )
    gateway = Gateway(services)
    it = published()
    gateway.swap(Catalogue(it, snapshots.content_hash(it)))
    made = Front(httpx.AsyncClient())

    async def record(request: httpx.Request) -> None:
        made.forwarded.append(f"{request.method} {request.url.path}")

    hooks = {"request": [record]}
    transport = catalogue.client._transport
    forwarding = RegistryForwarding(
        services, httpx.AsyncClient(transport=transport, base_url="http://registry", event_hooks=hooks)
    )
    app = make_app(gateway, [forwarding.add_routes])
    made.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://llm.example.com")
    async with made.client:
        yield made
    await forwarding.close()


def test_only_routes_of_tenants_are_forwarded() -> None:
    """Keys with models:read or models:write open these routes; the gateway answers the two model listings itself."""
    tenants = {door for door, heard in DOORS.items() if heard[3] == 0 and heard[0] == 401}  # acme-writer: let in
    own = {("GET", "/v1/models"), ("GET", "/v1/models/{name}"), ("GET", "/v1/models/{tenant}/{name}")}
    assert set(ROUTES) == tenants - own


@pytest.mark.parametrize("caller", [TOKEN, "acme-writer", ""], ids=["operator", "tenant", "nobody"])
async def test_other_routes_do_not_reach_the_registry(catalogue: Rig, front: Front, caller: str) -> None:
    rollout = await catalogue.rolling()
    before = await catalogue.audited()
    closed = [door for door in DOORS if door not in ROUTES] + [("GET", path) for path in PAGE]
    for method, path in closed:
        told = await front.call(method, acmes(path, rollout), caller)
        if path.startswith(("/internal", "/v1/snapshot", "/v1/fleet", "/v1/tenants", "/v1/audit", "/console", "/metr")):
            assert told.status_code == 404, (method, path)
    assert front.forwarded == []
    assert await catalogue.audited() == before


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_installation_token_is_refused_at_a_gateway(catalogue: Rig, front: Front, route: tuple[str, str]) -> None:
    method, path = route[0], acmes(route[1], await catalogue.rolling())
    for caller in (TOKEN, ""):
        told = await front.call(method, path, caller, json=BODIES.get(route, {}))
        assert told.status_code == 401, told.text
    assert front.forwarded == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/acme/../../internal/v1/changes/versions",
        "/v1/models/acme/%2e%2e%2f%2e%2e%2fsnapshot/versions",
        "/v1/models/acme/bot%3Fx=1%26/versions",
        "/v1/models/acme/bot%23/versions",
        "/v1/rollouts/..%2f..%2finternal%2fv1%2fchanges",
        "/v1/rollouts//internal",
        "/v1/artifacts/%2e%2e",
    ],
)
async def test_ambiguous_path_is_not_forwarded(front: Front, path: str) -> None:
    told = await front.client.get(httpx.URL(path), headers={"authorization": f"Bearer {key_text('acme-writer')}"})
    assert told.status_code == 404, told.text
    assert front.forwarded == []


@pytest.mark.parametrize("name", ["if-match", "content-type", "accept"])
async def test_non_ascii_header_is_refused_by_the_registry(front: Front, name: str) -> None:
    key = f"Bearer {key_text('acme-writer')}".encode()
    headers = [(b"authorization", key), (name.encode(), b"\xff\xfe")]
    told = await front.client.delete("/v1/models/acme/bot", headers=headers)
    assert told.status_code in (400, 404, 409), told.text
    assert front.forwarded == ["DELETE /v1/models/acme/bot"]


async def test_a_tenant_registers_a_version_and_moves_a_channel(catalogue: Rig, front: Front) -> None:
    catalogue.artifact("c")
    body = {"digest": digest("c"), "base_model": "base", "adapter_type": "lora", "promote_to": "stable"}
    made = await front.call("PUT", "/v1/models/acme/bot/versions/v1", "acme-writer", json=body)
    assert made.status_code == 201, made.text
    versions = (await front.call("GET", "/v1/models/acme/bot/versions?limit=1", "acme-reader")).json()
    assert [row["name"] for row in versions["data"]] == ["v1"]
    assert (versions["pool"], versions["declared_in"]) == ("base", "")
    told = (versions["data"][0]["in_force"], versions["channels_in_force"])
    assert told == (False, {}), "no controller has published it"
    gits = (await front.call("GET", "/v1/models/acme/declared/versions", "acme-reader")).json()
    assert gits["declared_in"] == "registry/acme.yaml"
    assert all(row["in_force"] for row in gits["data"])
    assert (gits["channels_in_force"], gits["snapshot_epoch"]) == ({"stable": "v1"}, 1)
    assert (await front.call("DELETE", "/v1/models/acme/bot", "acme-reader")).status_code == 403, "the registry's say"
    assert (await front.call("DELETE", "/v1/models/acme/bot", "globex-writer")).status_code == 404
    assert (await front.call("DELETE", "/v1/models/acme/bot", "acme-writer")).status_code == 204
    assert "key:acme-writer" in str((await catalogue.get("/v1/audit"))["data"])


async def test_rollout_is_read_and_rolled_back_with_its_etag(catalogue: Rig, front: Front) -> None:
    rollout = await catalogue.rolling()
    listed = (await front.call("GET", "/v1/rollouts?active=true", "acme-reader")).json()
    assert [row["id"] for row in listed["data"]] == [rollout]
    one = await front.call("GET", f"/v1/rollouts/{rollout}", "acme-reader")
    stale = await front.call("POST", f"/v1/rollouts/{rollout}/pause", "acme-writer", headers={"if-match": '"77"'})
    assert stale.status_code == 412
    paused = await front.call(
        "POST", f"/v1/rollouts/{rollout}/pause", "acme-writer", headers={"if-match": one.headers["etag"]}
    )
    assert (paused.status_code, paused.json()["state"]) == (200, "paused"), paused.text
    assert (await front.call("GET", f"/v1/rollouts/{rollout}", "globex-writer")).status_code == 404


async def test_body_over_the_gateway_limit_is_refused_except_uploads(front: Front) -> None:
    large = {"version": "v" * 9000}
    refused = await front.call("POST", "/v1/models/acme/bot/channels/stable", "acme-writer", json=large)
    assert refused.status_code == 413, refused.text
    upload = await front.call("POST", UPLOADS, "acme-writer", files={"file": b"x" * 9000})
    assert (upload.status_code, upload.json()["error"]["code"]) == (503, "no_store"), "the registry's own answer"


async def test_forwarded_requests_of_a_tenant_are_bounded(front: Front) -> None:
    told = await asyncio.gather(*(front.call("GET", "/v1/rollouts", "acme-reader") for _ in range(17)))
    assert sorted(answer.status_code for answer in told) == [200] * 16 + [429]
    assert (await front.call("GET", "/v1/rollouts", "acme-reader")).status_code == 200, "places are given back"


async def test_unreachable_registry_is_reported_after_the_key_check(front: Front, catalogue: Rig) -> None:
    class Away(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused")

    services = make_services(
        pepper=PEPPER, limits=Limits(), metrics=Metrics(), clock=time.monotonic, wall_clock=lambda: NOW_UNIX_S
    )
    gateway = Gateway(services)
    it = published()
    gateway.swap(Catalogue(it, snapshots.content_hash(it)))
    forwarding = RegistryForwarding(services, httpx.AsyncClient(transport=Away(), base_url="http://registry"))
    transport = httpx.ASGITransport(make_app(gateway, [forwarding.add_routes]))
    async with httpx.AsyncClient(transport=transport, base_url="https://llm.example.com") as client:
        told = await client.get("/v1/rollouts", headers={"authorization": f"Bearer {key_text('acme-reader')}"})
        assert (told.status_code, told.json()["error"]["code"]) == (503, "registry_unavailable")
        assert told.headers["retry-after"] == "5"
        assert (await client.get("/v1/rollouts", headers={"authorization": "Bearer no"})).status_code == 401


def with_a_missing_artifact() -> snapshots.Snapshot:
    """The shipped catalogue declares acme/pirate@v1, whose artifact is not in the store."""
    it = published(pepper=b"pepper----------")
    pool = PoolName("smollm2-135m")
    pirate = ModelEntry(ModelId("acme/pirate"), pool, "lora", (), {}, "registry/models.yaml")
    return msgspec.structs.replace(
        it,
        models=tuple(sorted((*it.models, pirate), key=lambda model: model.id)),
        pools=(*it.pools, PoolEntry(pool, 2048)),
    )


@pytest.fixture
def served(tmp_path: Path, s3_settings: S3Settings) -> Iterator[str]:
    """Run registry, store and gateway as processes; return the gateway's address. It knows the tenants' keys."""
    port = free_port()
    (tmp_path / "pepper").write_bytes(PEPPER.ljust(16, b"-"))
    (tmp_path / "s3.json").write_text(
        json.dumps(
            {
                "access_key_id": s3_settings.credentials.access_key_id,
                "secret_access_key": s3_settings.credentials.secret_access_key,
            }
        )
    )
    env = environment(
        tmp_path,
        port,
        SHOAL_REGISTRY_PEPPER_FILE=str(tmp_path / "pepper"),
        SHOAL_REGISTRY_S3_ENDPOINT_URL=s3_settings.endpoint_url,
        SHOAL_REGISTRY_S3_CREDENTIALS_FILE=str(tmp_path / "s3.json"),
        SHOAL_REGISTRY_S3_BUCKET=s3_settings.bucket,
    )
    (tmp_path / "gateway").mkdir()
    with valkey(tmp_path) as bus, registry(env, f"http://127.0.0.1:{port}") as client:
        gateway = GatewayProcess(tmp_path / "gateway", bus, self_signed(tmp_path))
        (gateway.folder / "pepper").write_bytes((tmp_path / "pepper").read_bytes())
        (gateway.folder / "token").write_text(TOKEN)
        (gateway.folder / "snapshot.json").unlink()
        gateway.registry_url = f"http://127.0.0.1:{port}"
        assert client.put(SNAPSHOT_PATH, content=snapshots.encode(with_a_missing_artifact())).is_success
        with gateway.start():
            url = f"http://127.0.0.1:{gateway.plain_port}"
            _until_it_knows(url)
            yield url


def _until_it_knows(url: str) -> None:
    deadline_s = time.monotonic() + 90
    headers = {"authorization": f"Bearer {key_text('acme-writer')}"}
    while time.monotonic() < deadline_s:
        try:
            if httpx.get(f"{url}/v1/rollouts", headers=headers).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the gateway did not forward within 90 s")


def shoal_at(address: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in that folder, as on a tenant's machine."""
    env = os.environ | {
        "SHOAL_STATE_DIR": str(folder / "none"),
        "SHOAL_CLI_REGISTRY_URL": address,
        "SHOAL_CLI_KEY": key_text("acme-writer"),
    }
    return subprocess.run(
        [*SHOAL, *arguments], env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.servers
@pytest.mark.timeout(400)
def test_push_adds_missing_artifact_and_digest_of_a_declared_version(served: str, tmp_path: Path) -> None:
    """The command writes the digest into the file in a checkout, and prints the line elsewhere, as for the demo."""
    checkout = tmp_path / "checkout"
    for folder in ("inferenceservices", "policies", "registry"):
        (checkout / folder).mkdir(parents=True)
        for file in (PROJECT / folder).glob("*.yaml"):
            (checkout / folder / file.name).write_bytes(file.read_bytes())
    models = checkout / "registry" / "models.yaml"
    before = models.read_text()
    adapter = PROJECT / "registry" / "adapters" / "acme" / "pirate" / "v1"
    elsewhere = shoal_at(served, tmp_path, "adapter", "push", "acme/pirate@v1", str(adapter))
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert "in registry/models.yaml (in a clone, this command adds it):" in elsewhere.stdout
    line = re.search(
        r'- \{name: v1, artifact: "s3://shoal-models/acme/pirate/v1", digest: "(sha256:\w+)"\}', elsewhere.stdout
    )
    assert line is not None, elsewhere.stdout
    pushed = shoal_at(served, checkout, "adapter", "push", "acme/pirate@v1", str(adapter))
    assert pushed.returncode == 0, pushed.stderr
    old = 'artifact: "s3://shoal-models/acme/pirate/v1"'
    assert models.read_text() == before.replace(old, f'{old}, digest: "{line[1]}"')
    again = shoal_at(served, checkout, "adapter", "push", "acme/pirate@v1", str(adapter))
    assert "has this already: nothing to change" in again.stdout
    other = shoal_at(served, checkout, "adapter", "push", "acme/pirate@v1", str(make_adapter(tmp_path / "other")))
    assert "acme/pirate@v1 has other content" in other.stderr


@pytest.mark.servers
@pytest.mark.timeout(400)
def test_an_adapter_is_pushed_and_promoted_through_a_gateway_process(served: str, tmp_path: Path) -> None:
    def shoal(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return shoal_at(served, tmp_path, *arguments)

    first, second = make_adapter(tmp_path / "one"), make_adapter(tmp_path / "two", seed=2)
    no_wait = "--no-wait"  # no controller publishes here
    pushed = shoal("adapter", "push", "acme/faq@v1", str(first), "--base", "base", "--promote", no_wait)
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    assert "sent, checked and stored" in pushed.stdout
    assert "nothing to send" in shoal("adapter", "push", "acme/faq@v1", str(first), no_wait).stdout
    other = shoal("adapter", "push", "acme/faq@v1", str(second))
    assert "a version never changes" in other.stderr
    assert shoal("adapter", "push", "acme/faq@v2", str(second), no_wait).returncode == 0
    assert "moves to v2 by rollout" in (promoted := shoal("promote", "acme/faq", "v2")).stdout, promoted.stderr
    assert "acme/faq" in shoal("rollout", "ls").stdout
    assert shoal("rollout", "rollback", "acme/faq").returncode == 0
    without = shoal("adapter", "push", "acme/new@v1", str(first))
    assert "name its base model with --base" in without.stderr
    headers = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/internal/v1/changes", "/v1/snapshot", "/v1/fleet", "/v1/tenants/acme/keys", "/console"):
        assert httpx.get(served + path, headers=headers).status_code == 404
