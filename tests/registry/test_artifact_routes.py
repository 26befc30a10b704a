"""Content is ingested: streamed uploads and fetched addresses. Refused content leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import ASGIApp

from functions.artifacts.ingest import Ingest, IngestPolicy
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Settings, S3Store
from functions.fleet import heartbeat as heartbeats
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.rollout_stats import EvidenceBook
from functions.registry import artifact_routes
from functions.registry.app import make_app
from functions.registry.collecting import GarbageCollector
from functions.registry.declared import DeclaredCatalogue
from functions.registry.errors import ApiError
from functions.registry.fleet_watch import FleetWatch
from functions.registry.ingesting import Ingesting
from functions.registry.principal import Authenticator
from functions.registry.services import RegistryServices
from functions.registry.sql.database import Database
from functions.registry.sql.ledger import SqlLedger
from functions.registry.store import SnapshotStore
from tests.artifacts.adapter_files import make_adapter
from tests.fleet.builders import beat as heartbeat
from tests.registry.catalogue_rig import LIMITS, PEPPER, Rig, published
from tests.registry.rig import NOW_UNIX_S, TOKEN, ScriptedBus, error_of

pytestmark = pytest.mark.servers
FILES = ("adapter_config.json", "adapter_model.safetensors")


class Bringing(Rig):
    """A catalogue with a real object store behind it."""

    objects: S3Store
    staging: Path
    collecting: GarbageCollector
    fleet: FleetWatch
    app: ASGIApp

    async def upload(self, directory: Path, who: str = TOKEN, **fields: str) -> httpx.Response:
        files = [("file", (path.name, path.read_bytes())) for path in sorted(directory.iterdir()) if path.name in FILES]
        return await self.call("POST", "/v1/artifacts", who, files=files, data=fields)

    def stored(self) -> set[str]:
        return {found.key for found in self.objects.list("")}

    def left(self) -> list[Path]:
        return [path for path in self.staging.rglob("*") if path.is_file()] if self.staging.is_dir() else []


@pytest.fixture
def objects(s3_settings: S3Settings) -> Iterator[S3Store]:
    """A bucket for these tests only: a small SeaweedFS has room for few of them."""
    settings = S3Settings(s3_settings.endpoint_url, s3_settings.credentials, "registry-tests", read_timeout_s=20.0)
    opened = S3Store(settings)
    opened.ensure_bucket()
    yield opened
    opened.close()


@pytest.fixture
async def bringing(tmp_path: Path, database: Database, objects: S3Store) -> AsyncIterator[Bringing]:
    store = SnapshotStore(tmp_path / "snapshot.json")
    await store.publish(published())
    staging = tmp_path / "staging"
    ingest = Ingest(objects, staging, IngestPolicy(reserve_free_bytes=0), ledger=SqlLedger(database))
    ingesting = Ingesting(ingest, database, models_dir=None, max_rank=64, at_once=3, at_once_per_tenant=1)
    services = RegistryServices(
        database=database,
        declared=DeclaredCatalogue(store),
        authenticator=Authenticator(store, RoleCredentials(TOKEN), PEPPER, lambda: NOW_UNIX_S),
        limits=LIMITS,
        evidence=EvidenceBook(),
        ingesting=ingesting,
        pepper=PEPPER,
    )
    fleet = FleetWatch(ScriptedBus())
    fleet.link.set(True)
    collecting = GarbageCollector(objects, database, store, fleet, grace_s=0.0, wall_clock=lambda: NOW_UNIX_S)
    app = make_app(store, fleet, RoleCredentials(TOKEN), lambda: NOW_UNIX_S, services=services, collecting=collecting)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://registry", timeout=60) as client:
        made = Bringing(database, store, services, client)
        made.objects, made.staging, made.collecting, made.fleet = objects, staging, collecting, fleet
        made.app = app
        yield made
    ingesting.close()


async def test_upload_returns_its_digest_and_can_be_registered(bringing: Bringing, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    made = await bringing.upload(adapter, "acme-writer", base_model="base")
    assert made.status_code == 201, made.text
    found = made.json()
    assert (found["tenant"], found["facts"]["rank"], found["signature"]) == ("acme", 4, "unsigned")
    again = await bringing.upload(adapter, "acme-writer")
    assert (again.status_code, again.json()["digest"]) == (200, found["digest"])
    assert (await bringing.get(f"/v1/artifacts/{found['digest']}", "acme-reader"))["total_bytes"] == found[
        "total_bytes"
    ]
    body = {"digest": found["digest"], "base_model": "base"}
    put = await bringing.call("PUT", "/v1/models/acme/bot/versions/v1", "acme-writer", json=body)
    assert put.status_code == 201
    assert bringing.left() == []


async def test_artifact_is_invisible_to_other_tenants(bringing: Bringing, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    digest = (await bringing.upload(adapter, "acme-writer")).json()["digest"]
    assert (await bringing.call("GET", f"/v1/artifacts/{digest}", "globex-writer")).status_code == 404
    body = {"digest": digest, "base_model": "base"}
    put = await bringing.call("PUT", "/v1/models/globex/own/versions/v1", "globex-writer", json=body)
    assert (put.status_code, error_of(put)["code"]) == (404, "artifact_not_found")
    # it sent the bytes, so it owns the content too
    assert (await bringing.upload(adapter, "globex-writer")).status_code == 201
    assert (
        await bringing.call("PUT", "/v1/models/globex/own/versions/v1", "globex-writer", json=body)
    ).status_code == 201


async def test_operator_uploads_for_a_tenant(bringing: Bringing, tmp_path: Path) -> None:
    made = await bringing.upload(make_adapter(tmp_path / "adapter"), tenant="acme")
    assert made.json()["tenant"] == "acme"
    as_other = await bringing.upload(make_adapter(tmp_path / "other", seed=2), "acme-writer", tenant="globex")
    assert (as_other.status_code, error_of(as_other)["code"]) == (404, "tenant_not_found")


async def test_version_may_name_the_address_of_its_content(bringing: Bringing, tmp_path: Path) -> None:
    uri = f"s3://{bringing.objects.bucket}/acme/bot/v1"
    digest = publish_directory(bringing.objects, make_adapter(tmp_path / "adapter"), uri)
    body = {"artifact_uri": uri, "base_model": "base", "adapter_type": "lora", "promote_to": "stable"}
    path = "/v1/models/acme/bot/versions/v1"
    made = await bringing.call("PUT", path, "acme-writer", json=body)
    assert (made.status_code, made.json()["digest"]) == (201, digest), made.text
    assert (await bringing.call("PUT", path, "acme-writer", json=body)).status_code == 200
    other = await bringing.call("PUT", "/v1/models/globex/own/versions/v1", "globex-writer", json=body)
    assert (other.status_code, error_of(other)["code"]) == (422, "artifact_refused")
    gone = await bringing.call("POST", "/v1/artifacts", json={"artifact_uri": uri[:-1] + "9"})
    assert gone.status_code in (404, 422), gone.text
    assert bringing.left() == []


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "https://127.0.0.1:8444/v1/snapshot",
        "https://[::ffff:10.0.0.1]/x",
        "s3://another-bucket/acme/x",
        "s3://shoal-models/../x",
        "gopher://x",
        "x" * 600,
    ],
)
async def test_forbidden_addresses_are_refused_with_the_reason(bringing: Bringing, uri: str) -> None:
    before = bringing.stored()
    refused = await bringing.call("POST", "/v1/artifacts", "acme-writer", json={"artifact_uri": uri})
    assert (refused.status_code, error_of(refused)["code"]) == (422, "artifact_refused")
    assert len(error_of(refused)["message"]) > 20
    assert (bringing.stored(), bringing.left()) == (before, [])


def form(*parts: tuple[str, bytes], boundary: str = "xx", end: bool = True) -> bytes:
    body = b"".join(f"--{boundary}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts)
    return body + (f"--{boundary}--\r\n".encode() if end else b"")


def file_part(name: str, data: bytes = b"{}") -> tuple[str, bytes]:
    return f'Content-Disposition: form-data; name="file"; filename="{name}"', data


FIELD = 'Content-Disposition: form-data; name="base_model"'


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (form(), 422, "no files"),
        (form(file_part("../adapter_config.json")), 422, ""),
        (form(file_part("/etc/passwd")), 422, ""),
        (form(file_part("a\\b")), 422, ""),
        (form(file_part("adapter_model.bin", b"PK")), 422, ""),
        (form(file_part("adapter_config.json"), file_part("adapter_config.json")), 422, "twice"),
        (form(file_part("adapter_config.json")), 422, ""),
        (form(file_part("adapter_config.json"), end=False), 400, "ended before"),
        (form((FIELD, b"base"), (FIELD, b"base")), 400, "is repeated"),
        (form(file_part("adapter_config.json"), (FIELD, b"base")), 400, "fields first"),
        (form((FIELD, b"x" * 2000)), 400, "over 1024"),
        (form((FIELD, b"none"), file_part("adapter_config.json")), 400, "no base model"),
        (
            form(('Content-Disposition: form-data; name="extra"', b"1"), file_part("adapter_config.json")),
            400,
            "unknown field",
        ),
        (form(('Content-Disposition: form-data; name="upload"; filename="x"', b"1")), 400, "named file"),
        (form((FIELD + "\r\nX-Long: " + "a" * 10_000, b"base")), 400, "header"),
        (form(("Content-Disposition: form-data", b"1")), 400, "no name"),
        (b"no form at all", 400, ""),
        (b"", 400, ""),
        (form(*[file_part(f"f{number}") for number in range(200)]), 422, "files"),
    ],
)
async def test_invalid_forms_are_refused_and_leave_nothing(
    bringing: Bringing, body: bytes, status: int, words: str
) -> None:
    before = bringing.stored()
    headers = {"content-type": "multipart/form-data; boundary=xx"}
    refused = await bringing.call("POST", "/v1/artifacts", content=body, headers=headers)
    assert refused.status_code == status, refused.text
    assert words in error_of(refused)["message"]
    assert (bringing.stored(), bringing.left()) == (before, [])
    assert await bringing.audited() == []


@pytest.mark.parametrize("media", ["", "text/plain", "multipart/mixed; boundary=x", "multipart/form-data"])
async def test_other_media_types_are_refused(bringing: Bringing, media: str) -> None:
    refused = await bringing.call("POST", "/v1/artifacts", content=b"x", headers={"content-type": media})
    assert refused.status_code in (400, 415)


async def test_upload_places_are_bounded_per_tenant_and_in_total(bringing: Bringing, tmp_path: Path) -> None:
    ingesting = bringing.services.ingesting
    assert ingesting is not None
    adapter = make_adapter(tmp_path / "adapter")
    with ingesting.reserve_place("acme"):  # type: ignore[arg-type]
        busy = await bringing.upload(adapter, "acme-writer")
        assert (busy.status_code, error_of(busy)["code"], busy.headers["retry-after"]) == (
            429,
            "too_many_uploads",
            "10",
        )
        assert (await bringing.upload(adapter, "globex-writer")).status_code == 201
        with ingesting.reserve_place(None), ingesting.reserve_place(None):
            assert (await bringing.upload(adapter, "globex-writer")).status_code == 503
    assert (await bringing.upload(adapter, "acme-writer")).status_code == 201


async def test_aborted_upload_leaves_nothing(bringing: Bringing) -> None:
    before = bringing.stored()
    began = form(file_part("adapter_model.safetensors", b"x" * 3_000_000), end=False)
    messages = iter(({"type": "http.request", "body": began, "more_body": True}, {"type": "http.disconnect"}))
    told: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        told.append(message)

    headers = [
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"content-type", b"multipart/form-data; boundary=xx"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/artifacts", "query_string": b"", "headers": headers}
    await bringing.app(scope, receive, send)
    assert told[0]["status"] == 400
    assert (bringing.stored(), bringing.left()) == (before, [])


async def test_collector_deletes_unnamed_artifacts_only(bringing: Bringing, tmp_path: Path) -> None:
    kept = (await bringing.upload(make_adapter(tmp_path / "kept"), "acme-writer")).json()["digest"]
    body = {"digest": kept, "base_model": "base"}
    await bringing.call("PUT", "/v1/models/acme/bot/versions/v1", "acme-writer", json=body)
    dropped = (await bringing.upload(make_adapter(tmp_path / "dropped", seed=7), "acme-writer")).json()["digest"]
    everything = bringing.stored()
    counted = await bringing.call("POST", "/internal/v1/gc", json={"dry_run": True})
    assert (counted.status_code, counted.json()["deleted"]) == (200, 0), counted.text
    assert bringing.stored() == everything
    bringing.collecting.wall_clock = lambda: NOW_UNIX_S + 10.0  # past the grace, which is zero here
    for _ in range(2):
        done = await bringing.call("POST", "/internal/v1/gc")
        assert done.status_code == 200, done.text
    left = bringing.stored()
    assert f"manifests/sha256/{kept.removeprefix('sha256:')}" in left
    assert f"manifests/sha256/{dropped.removeprefix('sha256:')}" not in left
    again = await bringing.call("PUT", "/v1/models/acme/bot/versions/v2", json=body | {"digest": dropped})
    assert (again.status_code, error_of(again)["code"]) == (404, "artifact_not_found")
    assert (await bringing.upload(make_adapter(tmp_path / "dropped", seed=7), "acme-writer")).status_code == 201


async def test_artifact_loaded_by_a_replica_is_kept_after_its_version_is_deleted(
    bringing: Bringing, tmp_path: Path
) -> None:
    digest = (await bringing.upload(make_adapter(tmp_path / "adapter"), "acme-writer")).json()["digest"]
    body = {"digest": digest, "base_model": "base"}
    await bringing.call("PUT", "/v1/models/acme/bot/versions/v1", "acme-writer", json=body)
    await bringing.call("DELETE", "/v1/models/acme/bot/versions/v1", "acme-writer")
    bringing.fleet.receive_message(heartbeats.encode(heartbeat(adapters=(f"acme/bot@{digest[:23]}",))))
    bringing.collecting.wall_clock = lambda: NOW_UNIX_S + 10.0
    for _ in range(3):
        assert (await bringing.call("POST", "/internal/v1/gc")).status_code == 200
    assert f"manifests/sha256/{digest.removeprefix('sha256:')}" in bringing.stored()
    bringing.fleet.receive_message(heartbeats.encode(heartbeat(sequence=2)))
    for _ in range(2):
        assert (await bringing.call("POST", "/internal/v1/gc")).status_code == 200
    assert f"manifests/sha256/{digest.removeprefix('sha256:')}" not in bringing.stored()


async def test_collector_refuses_without_bus_or_while_another_collects(bringing: Bringing) -> None:
    bringing.fleet.link.set(False)
    refused = await bringing.call("POST", "/internal/v1/gc")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "not_now")
    bringing.fleet.link.set(True)
    with bringing.database.exclusive_lock("collecting"):
        refused = await bringing.call("POST", "/internal/v1/gc")
        assert "another registry" in error_of(refused)["message"]


async def test_concurrent_uploads_of_equal_content_agree(bringing: Bringing, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    answers: list[Any] = await asyncio.gather(*(bringing.upload(adapter) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 201]
    assert len({answer.json()["digest"] for answer in answers}) == 1


async def test_upload_that_times_out_during_a_write_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upload must be answered instead of cut off during the write."""
    monkeypatch.setattr(artifact_routes, "UPLOAD_DEADLINE_S", 0.05)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 1024**2, "more_body": True}

    request = Request({"type": "http", "method": "POST", "path": "/v1/artifacts", "headers": []}, receive)
    with pytest.raises(ApiError, match="took over"):
        async for _ in artifact_routes._blocks(request, IngestPolicy()):
            await asyncio.sleep(0.1)  # a slow disk


async def test_too_slow_upload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that arrive just often enough would occupy one of the few places for half an hour."""
    monkeypatch.setattr(artifact_routes, "RATE_GRACE_S", 0.05)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.02)  # the client's own pace
        return {"type": "http.request", "body": b"x", "more_body": True}

    request = Request({"type": "http", "method": "POST", "path": "/v1/artifacts", "headers": []}, receive)
    with pytest.raises(ApiError, match="at least 32768 bytes/s are required"):
        async for _ in artifact_routes._blocks(request, IngestPolicy()):
            raise AssertionError("a megabyte cannot have come")
