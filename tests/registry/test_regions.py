"""Two registries of two regions that follow each other: versions, channels, keys and conflicts.

Both are called in this process. There is no store and no bus, so content is added by its row in both.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.fleet.quota_regions import RegionBus
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.tasks import Supervised
from functions.registry.app import make_app
from functions.registry.fleet_watch import FleetWatch
from functions.registry.regions import following
from functions.registry.regions.client import RegionAccess
from functions.registry.regions.following import RegionsFollower
from functions.registry.regions.parts import RegionParts
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from tests.registry.catalogue_rig import Rig, catalogue, digest
from tests.registry.rig import TOKEN, ScriptedBus

REGIONS_TOKEN = "of all regions"
SOON_S = 15.0


@dataclass
class Region:
    name: str
    rig: Rig
    parts: RegionParts
    app: Any

    async def model(self, model: str = "acme/bot") -> dict[str, Any] | None:
        answer = await self.rig.call("GET", f"/v1/models/{model}/versions")
        return dict(answer.json()) if answer.status_code == 200 else None

    async def versions(self, model: str = "acme/bot") -> dict[str, str]:
        found = await self.model(model)
        return {each["name"]: each["digest"] for each in found["data"]} if found else {}

    async def channel(self, name: str = "stable") -> str | None:
        found = await self.rig.get("/v1/models")
        model = next((each for each in found["data"] if each["id"] == "acme/bot"), None)
        return model["channels"].get(name, {}).get("version") if model else None

    async def policy(self, model: str = "acme/bot") -> str | None:
        found = await self.rig.get("/v1/models")
        return next((each["rollout"] for each in found["data"] if each["id"] == model), None)

    def held(self) -> dict[str, str]:
        return {each["subject"]: each["code"] for other in self.parts.follower.described() for each in other["held"]}


@asynccontextmanager
async def _region(folder: Path, name: str, number: int) -> AsyncIterator[Region]:
    folder.mkdir()
    clock_s = [1_000.0 + number]  # a clock of its own, which advances with each write

    def clock() -> float:
        clock_s[0] = max(clock_s[0] + 0.01, time.time())
        return clock_s[0]

    database = Database(database_url(None, folder), clock)
    await asyncio.to_thread(database.prepare)
    bus = RegionBus("valkey://127.0.0.1:1/0")
    async with catalogue(folder, database) as rig:
        access = RegionAccess(REGIONS_TOKEN, None)
        file = folder.parent / "regions.json"
        follower = RegionsFollower(name, file, access, rig.services, bus, clock=time.monotonic)
        parts = RegionParts(REGIONS_TOKEN, follower, bus, None)
        app = make_app(
            rig.store, FleetWatch(ScriptedBus()), RoleCredentials(TOKEN), services=rig.services, regions=parts
        )
        yield Region(name, rig, parts, app)
        await parts.close()
    database.close()


@pytest.fixture
async def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Region, Region]]:
    monkeypatch.setattr(following, "RETRY_S", 0.2)
    listed = {name: {"registry_url": f"http://{name}"} for name in "ab"}
    (tmp_path / "regions.json").write_text(json.dumps(listed))
    tasks = Supervised()
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(_region(tmp_path / name, name, number)) for number, name in enumerate("ab")
        ]
        for one, other in ((a, b), (b, a)):
            await one.parts.follower._client._client.aclose()
            headers = RegionAccess(REGIONS_TOKEN, None).headers
            one.parts.follower._client._client = httpx.AsyncClient(
                transport=httpx.ASGITransport(other.app), headers=headers
            )
            one.parts.start_tasks(tasks)
        yield a, b
        await tasks.close()
        for one in (a, b):
            one.rig.store.close()


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    gives_up_s = time.monotonic() + SOON_S
    while not await condition():
        assert time.monotonic() < gives_up_s, what
        await asyncio.sleep(0.05)


async def test_versions_channels_and_keys_replicate_both_ways(regions: tuple[Region, Region]) -> None:
    a, b = regions
    for letter in "cd":
        b.rig.artifact(letter)
        a.rig.artifact(letter)
    assert (await a.rig.put("v1", "c", promote_to="stable", rollout="at-once")).status_code == 201

    async def b_has_v1() -> bool:
        return await b.versions() == {"v1": digest("c")} and await b.channel() == "v1"

    await until("b has what was put at a", b_has_v1)
    assert (await b.rig.put("v2", "d", promote_to="stable")).status_code == 201

    async def a_has_v2() -> bool:
        return await a.channel() == "v2" and set(await a.versions()) == {"v1", "v2"}

    await until("a has what was put at b", a_has_v2)
    made = await a.rig.call(
        "POST", "/v1/tenants/acme/keys", json={"id": "travels", "limits": {"requests_per_minute": 5}}
    )
    assert made.status_code == 201

    async def b_key(revoked: bool) -> bool:
        keys = (await b.rig.get("/v1/tenants/acme/keys"))["data"]
        return [(each["id"], each["revoked"], each["limits"]["requests_per_minute"]) for each in keys] == [
            ("travels", revoked, 5)
        ]

    await until("the key is known at b", lambda: b_key(False))
    assert (await b.rig.call("DELETE", "/v1/tenants/acme/keys/travels")).status_code == 204

    async def a_revoked() -> bool:
        return (await a.rig.get("/v1/tenants/acme/keys"))["data"][0]["revoked"] is True

    await until("it is revoked at a", a_revoked)
    assert "region:a" in str(await b.rig.get("/v1/audit"))
    assert a.held() == {} and b.held() == {}


async def test_deletions_replicate_and_stay_deleted(regions: tuple[Region, Region]) -> None:
    a, b = regions
    for letter in "cd":
        b.rig.artifact(letter)
    await a.rig.put("v1", "c", promote_to="stable", rollout="at-once")
    await a.rig.put("v2", "d", promote_to="stable")

    async def b_has_both() -> bool:
        return set(await b.versions()) == {"v1", "v2"} and await b.channel() == "v2"

    await until("b has both", b_has_both)
    assert (await b.rig.call("DELETE", "/v1/models/acme/bot/versions/v1")).status_code == 204

    async def only_v2_at_a() -> bool:
        return set(await a.versions()) == {"v2"}

    await until("v1 is gone at a", only_v2_at_a)
    assert (await a.rig.call("DELETE", "/v1/models/acme/bot")).status_code == 204

    async def gone_at_b() -> bool:
        return await b.model() is None

    await until("the model is gone at b", gone_at_b)
    again = await b.rig.put("v2", "d")
    assert again.status_code == 201

    async def back_at_a() -> bool:
        return await a.versions() == {"v2": digest("d")} and await a.channel() is None

    await until("what was made again is made again at a", back_at_a)


async def test_channel_rolls_out_per_region_and_is_not_retried_after_rollback(
    regions: tuple[Region, Region],
) -> None:
    a, b = regions
    for letter in "cd":
        b.rig.artifact(letter)
    rollout = await a.rig.rolling()

    async def b_has_both() -> bool:
        return set(await b.versions()) == {"v1", "v2"} and await b.channel() == "v1"

    await until("b has both versions, and no rollout", b_has_both)
    assert (await b.rig.get("/v1/rollouts"))["data"] == []
    lock_version = (await a.rig.get(f"/v1/rollouts/{rollout}"))["lock_version"]
    assert (await a.rig.happened(rollout, "loaded", lock_version)).status_code == 200
    assert (await a.rig.call("POST", f"/v1/rollouts/{rollout}/promote")).status_code == 200

    async def b_rolls() -> bool:
        return [each["state"] for each in (await b.rig.get("/v1/rollouts"))["data"]] == ["loading"]

    await until("the rollout of b begins once a has completed its own", b_rolls)
    assert await b.channel() == "v1"
    its = (await b.rig.get("/v1/rollouts"))["data"][0]["id"]
    assert (await b.rig.call("POST", f"/v1/rollouts/{its}/rollback", json={"reason": "no"})).status_code == 200
    a.rig.artifact("e")
    b.rig.artifact("e")
    assert (await a.rig.put("v3", "e")).status_code == 201

    async def b_has_v3() -> bool:
        return "v3" in await b.versions() and b.held() == {"acme/bot:stable": "taken_back_here"}

    await until("b holds the channel and takes the rest", b_has_v3)
    assert len((await b.rig.get("/v1/rollouts"))["data"]) == 1
    assert await a.channel() == "v2"


async def test_policy_named_later_applies_in_both_regions(regions: tuple[Region, Region]) -> None:
    """Otherwise the other region would roll out by the policy that the model was created with."""
    a, b = regions
    for letter in "cd":
        b.rig.artifact(letter)
    assert (await a.rig.put("v1", "c", promote_to="stable", rollout="at-once")).status_code == 201

    async def b_has_v1() -> bool:
        return await b.channel() == "v1" and await b.policy() == "at-once"

    await until("b has the model, with its policy", b_has_v1)
    assert (await a.rig.put("v1", "c", rollout="slow")).status_code == 200

    async def b_is_slow() -> bool:
        return await b.policy() == "slow"

    await until("b has the policy that a was told later", b_is_slow)
    assert (await b.rig.put("v1", "c", rollout="at-once")).status_code == 200

    async def a_is_at_once() -> bool:
        return await a.policy() == await b.policy() == "at-once"

    await until("a has what b was told after that", a_is_at_once)
    assert (await a.rig.put("v2", "d", rollout="slow", promote_to="stable")).status_code == 201
    (rollout,) = (await a.rig.get("/v1/rollouts"))["data"]
    assert (await a.rig.happened(rollout["id"], "loaded", rollout["lock_version"])).status_code == 200
    assert (await a.rig.call("POST", f"/v1/rollouts/{rollout['id']}/promote")).status_code == 200

    async def b_rolls_by_it() -> bool:
        return [each["policy"]["name"] for each in (await b.rig.get("/v1/rollouts"))["data"]] == ["slow"]

    await until("the rollout of b goes by the new policy", b_rolls_by_it)
    assert await b.channel() == "v1"
    assert a.held() == b.held() == {}


async def test_conflicts_are_held_and_missing_content_is_retried(regions: tuple[Region, Region]) -> None:
    a, b = regions
    await asyncio.sleep(0.3)
    for one, letter in ((a, "c"), (b, "d")):  # at the same moment in both regions
        assert (await one.rig.put("v1", letter)).status_code == 201

    async def both_hold() -> bool:
        return a.held() == b.held() == {"acme/bot@v1": "version_taken"}

    await until("both say so", both_hold)
    assert (await a.versions(), await b.versions()) == ({"v1": digest("c")}, {"v1": digest("d")})
    assert (await a.rig.put("v1", "e", "acme/other")).status_code == 201

    async def b_lacks_content() -> bool:
        return b.held().get("acme/other@v1") == "no_store"

    await until("b holds what it cannot fetch", b_lacks_content)
    b.rig.artifact("e")

    async def b_has_it() -> bool:
        return await b.versions("acme/other") == {"v1": digest("e")} and "acme/other@v1" not in b.held()

    await until("b takes it once it can", b_has_it)


async def test_changes_during_a_disconnection_replicate_afterwards(
    regions: tuple[Region, Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENT_S", 0.5)
    a, b = regions
    assert (await a.rig.call("POST", "/v1/tenants/acme/keys", json={"id": "cut"})).status_code == 201

    async def b_keys() -> dict[str, bool]:
        return {each["id"]: each["revoked"] for each in (await b.rig.get("/v1/tenants/acme/keys"))["data"]}

    async def knows_it() -> bool:
        return await b_keys() == {"cut": False}

    await until("b knows the key", knows_it)

    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("the way is cut", request=request)

    follower = b.parts.follower
    (other,) = follower.others.values()
    way, follower._client._client = (
        follower._client._client,
        httpx.AsyncClient(transport=httpx.MockTransport(nobody)),
    )
    await other.tasks.close()  # with the poll in progress
    other.tasks = Supervised()
    follower._start_tasks(other)
    assert (await a.rig.call("DELETE", "/v1/tenants/acme/keys/cut")).status_code == 204
    await asyncio.sleep(1.0)
    assert await b_keys() == {"cut": False} and not follower.is_connected(other), "it says so, and goes on"
    follower._client._client = way

    async def is_revoked() -> bool:
        return await b_keys() == {"cut": True} and follower.is_connected(other)

    await until("the revocation comes", is_revoked)


async def test_region_routes_are_for_regions_only(regions: tuple[Region, Region]) -> None:
    a, _ = regions
    async with httpx.AsyncClient(transport=httpx.ASGITransport(a.app), base_url="http://a") as client:
        paths = ("/regions/v1/changes", "/regions/v1/used", f"/regions/v1/chunks/{'0' * 64}")
        for token in (TOKEN, "", "wrong"):
            headers = {"authorization": f"Bearer {token}"}
            assert [(await client.get(path, headers=headers)).status_code for path in paths] == [401, 401, 401]
        own = {"authorization": f"Bearer {REGIONS_TOKEN}"}
        assert (await client.get("/regions/v1/changes", headers=own)).status_code == 200
        assert (await client.get("/regions/v1/used", headers=own)).status_code == 503  # there is no bus
        assert (await client.get(paths[2], headers=own)).status_code == 404
        for path in ("/v1/models", "/v1/audit", "/internal/v1/changes", "/internal/v1/regions", "/v1/fleet"):
            assert (await client.get(path, headers=own)).status_code == 401
        metrics = (await client.get("/metrics")).text
    assert 'shoal_region_connected{region="b"}' in metrics
