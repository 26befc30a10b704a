"""Publishing to a real registry: changes are published; wrong, unknown or empty content never is."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from functions.api.ids import Digest
from functions.api.loader import Loaded
from functions.artifacts.errors import ArtifactMissing, StoreUnavailable
from functions.controller.snapshot import publish
from functions.controller.snapshot.publish import Publisher, PublishOutcome
from functions.controller.snapshot.registry_client import RegistryClient
from functions.controller.snapshot.resolve import Resolver
from functions.fleet.snapshots import SNAPSHOT_PATH
from functions.registry.feed import Feed
from tests.controller.configs import base, load, lora, pool, tenant
from tests.registry.rig import TOKEN, Rig, serving

BOT = lora("acme/bot", "v1")


class Setting:
    """A configuration folder, artifacts, a registry, and replaceable publishers."""

    def __init__(self, folder: Path, rig: Rig) -> None:
        self.rig = rig
        self.store_is_away = False
        self.missing: set[str] = set()
        self.slept_s: list[float] = []
        self.publisher = self.new_publisher()
        self.write(pool(), tenant("acme", "ci"), base(), BOT)

    def new_publisher(self, url: str = "", token: str = TOKEN) -> Publisher:
        registry = RegistryClient(self.rig.client, url or self.rig.url, token)
        return Publisher(
            registry=registry, resolver=Resolver(self._read, fresh_s=0.0), wall_clock=lambda: 9.0, sleep=self._sleep
        )

    def write(self, *documents: str) -> None:
        self.loaded = load(*documents)

    async def publish(self) -> PublishOutcome:
        return await self.publisher.publish(self.loaded, "main@" + "1" * 40)

    def served_ids(self) -> list[str]:
        assert self.rig.store.current is not None
        return [model.id for model in self.rig.store.current.snapshot.models]

    def _read(self, artifact_uri: str) -> Digest:
        if self.store_is_away:
            raise StoreUnavailable("the store does not answer")
        if artifact_uri in self.missing:
            raise ArtifactMissing("the store has no such pointer")
        return Digest("sha256:" + "1" * 64)

    async def _sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with serving(tmp_path / "registry") as rig:
        yield Setting(tmp_path, rig)


async def test_the_first_call_publishes_and_the_second_has_nothing_to_do(setting: Setting) -> None:
    first = await setting.publish()
    assert (first.kind, first.epoch, first.complete, first.problems) == ("published", 1, True, ())
    assert first.message == "published epoch 1: 1 tenants, 2 models, 1 pools"
    assert setting.rig.store.current is not None
    assert setting.rig.store.current.snapshot_hash == first.snapshot_hash
    second = await setting.publish()
    assert (second.kind, second.epoch, second.complete) == ("unchanged", 1, True)


async def test_another_publisher_finds_the_same_content_unchanged(setting: Setting) -> None:
    await setting.publish()
    setting.publisher = setting.new_publisher()
    assert (await setting.publish()).kind == "unchanged"


async def test_changed_content_is_the_next_epoch(setting: Setting) -> None:
    await setting.publish()
    setting.write(pool(), tenant("acme", "ci", "second"), base(), BOT)
    assert ((await setting.publish()).kind, setting.rig.store.epoch) == ("published", 2)


async def test_the_snapshot_says_which_revision_it_came_from(setting: Setting) -> None:
    outcome = await setting.publish()
    assert setting.rig.store.current is not None
    assert outcome.revision == setting.rig.store.current.snapshot.revision == "main@" + "1" * 40


async def test_empty_configuration_is_published_only_with_consent(setting: Setting) -> None:
    await setting.publish()
    outcome = await setting.publisher.publish(Loaded(()), "main@empty")
    assert (outcome.kind, setting.rig.store.epoch) == ("invalid", 1)
    assert outcome.message == "main@empty declares no object at all; nothing was published"
    outcome = await setting.publisher.publish(Loaded(()), "main@empty", empty_is_meant=True)
    assert (outcome.kind, setting.rig.store.epoch, setting.served_ids()) == ("published", 2, [])


async def test_missing_artifact_removes_its_version_and_requests_a_retry(setting: Setting) -> None:
    setting.missing = {"s3://shoal-models/acme/bot/v1"}
    outcome = await setting.publish()
    assert (outcome.kind, outcome.complete) == ("published", False)
    assert setting.rig.store.current is not None
    models = setting.rig.store.current.snapshot.models
    assert [(model.id, len(model.versions)) for model in models] == [("acme/bot", 0), ("base", 1)]
    assert any("acme/bot@v1 is left out" in problem for problem in outcome.problems)
    setting.missing = set()
    assert (await setting.publish()).complete
    assert setting.served_ids() == ["acme/bot", "base"]


async def test_store_outage_at_the_start_removes_no_model(setting: Setting) -> None:
    await setting.publish()
    setting.publisher = setting.new_publisher()  # a restarted controller knows nothing by itself
    setting.store_is_away = True
    setting.write(pool(), tenant("acme", "ci", "second"), base(), BOT)
    outcome = await setting.publish()
    assert (outcome.kind, outcome.complete, setting.served_ids()) == ("published", False, ["acme/bot", "base"])
    assert any("the last known digest" in problem for problem in outcome.problems)


async def test_a_registry_that_lost_its_state_gets_the_content_above_every_epoch_seen(setting: Setting) -> None:
    await setting.publish()
    await setting.rig.get(SNAPSHOT_PATH, after=57)  # a follower that this registry served before it lost its state
    outcome = await setting.publish()
    assert (outcome.kind, outcome.epoch) == ("published", 58)
    assert (await setting.publish()).kind == "unchanged"


async def test_unreachable_registry_is_retried_with_backoff_and_then_reported(setting: Setting) -> None:
    setting.publisher = setting.new_publisher(url="http://127.0.0.1:1")
    outcome = await setting.publish()
    assert (outcome.kind, outcome.complete) == ("unavailable", False)
    assert f"accepted nothing in {publish.ATTEMPTS} attempts" in outcome.message
    assert setting.slept_s == [0.2, 0.4, 0.8]


async def test_a_wrong_token_is_refused_at_once(setting: Setting) -> None:
    setting.publisher = setting.new_publisher(token="wrong")
    outcome = await setting.publish()
    assert (outcome.kind, setting.slept_s) == ("refused", [])
    assert "answered 401" in outcome.message


async def test_lost_epoch_race_is_retried(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    other = setting.new_publisher()
    state = RegistryClient.state
    raced = False

    async def state_then_race(registry: RegistryClient) -> object:
        nonlocal raced
        seen = await state(registry)
        if not raced:
            raced = True
            other_content = load(pool(), tenant("acme", "ci"), tenant("globex", "g"), base(), BOT)
            assert (await other.publish(other_content, "main@other")).epoch == 1
        return seen

    monkeypatch.setattr(RegistryClient, "state", state_then_race)
    outcome = await setting.publish()
    assert (outcome.kind, outcome.epoch) == ("published", 2)


async def test_server_that_is_no_registry_is_detected(setting: Setting) -> None:
    async def stranger(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"hello"})  # type: ignore[operator]

    async with httpx.AsyncClient(transport=httpx.ASGITransport(stranger)) as client:  # type: ignore[arg-type]
        registry = RegistryClient(client, "http://stranger", TOKEN)
        setting.publisher = Publisher(registry=registry, resolver=Resolver(setting._read), sleep=setting._sleep)
        outcome = await setting.publish()
    assert outcome.kind == "unavailable"
    assert "does not answer as a registry does" in outcome.message


async def test_small_change_is_sent_as_a_delta(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.publish()
    sent: list[int] = []
    send = RegistryClient.send

    async def watched(registry: RegistryClient, method: str, *args: object, **options: object) -> httpx.Response:
        content = options.get("content")
        if isinstance(content, bytes):
            sent.append(content.count(b"\n"))
        return await send(registry, method, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(RegistryClient, "send", watched)
    setting.write(pool(), tenant("acme", "ci", "second"), base(), BOT)
    assert (await setting.publish()).kind == "published"
    assert sent == [2], "a header, and the new key"
    assert setting.rig.store.current is not None
    assert [key.key_id for key in setting.rig.store.current.snapshot.keys] == ["ci", "second"]


async def test_a_registry_that_lost_the_base_gets_the_whole(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.publish()
    state = RegistryClient.state

    async def state_then_loss(registry: RegistryClient) -> object:
        seen = await state(registry)
        setting.rig.store.feed = Feed()
        return seen

    monkeypatch.setattr(RegistryClient, "state", state_then_loss)
    setting.write(pool(), tenant("acme", "ci", "second"), base(), BOT)
    assert (await setting.publish()).kind == "published"
    assert setting.served_ids() == ["acme/bot", "base"]
