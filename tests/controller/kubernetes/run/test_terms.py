"""State at the start of a leadership term: never older than what another leader has put in force meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import Configuration
from msgspec.structs import replace

from functions.api.declared import Declared
from functions.api.ids import KeyId, ModelId, PoolName, TenantId
from functions.api.kinds.catalogue import AnyObject
from functions.api.loader import Loaded
from functions.api.snapshot import KeyEntry, ModelEntry, PoolEntry, Snapshot
from functions.controller.kubernetes.errors import Retryable
from functions.controller.kubernetes.objects import INFERENCE_SERVICE
from functions.controller.kubernetes.run.cr_reconciler import CustomResourceReconciler
from functions.controller.kubernetes.run.lease import LeaseUnreachable
from functions.controller.kubernetes.run.object_store import watched_object
from functions.controller.kubernetes.run.process import KubernetesController
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.rollouts.book import Book
from functions.controller.rollouts.client import ApiKeyRow
from functions.controller.snapshot.publish import PublishOutcome
from functions.controller.snapshot.registry_client import RegistryUnavailable
from tests.controller.kubernetes.run.rig import POOL, SHOAL, service_spec, tenant_spec
from tests.controller.kubernetes.run.test_loop import Guard
from tests.controller.kubernetes.run.test_selection import key, written
from tests.controller.whole import compiled
from tests.controller.whole import declared as declared_from
from tests.fleet.conftest import free_port


class Registry:
    """Stands in for `Publishing`, its registry and its rows: the snapshot in force, and the publications over it."""

    def __init__(self, in_force: Snapshot | None) -> None:
        self.in_force = in_force
        self.away = False
        self.published: tuple[str, Loaded] | None = None
        self.taken: list[Loaded] = []
        self.registry = self.rows = self
        self.book = self.rows_now = Book(is_known=True)
        self.trouble = ""

    async def fetch_changes(self) -> bool:
        self.book = self.rows_now
        return True

    async def current(self) -> Snapshot | None:
        if self.away:
            raise RegistryUnavailable("away")
        return self.in_force

    async def publish(self, loaded: Loaded, _revision: str) -> PublishOutcome:
        self.taken.append(loaded)
        return PublishOutcome("published", "", complete=True)

    def models_of(self, tenant: str) -> tuple[str, ...] | None:
        """Return the tenant's models in the newest publication, or None."""
        for each in self.taken[-1].objects:
            if each.document.file == f"tenants/{tenant}":
                return tuple(each.value.spec.models)  # type: ignore[union-attr]
        return None

    @property
    def snapshot(self) -> Snapshot:
        """Compiled snapshot of the newest publication."""
        return compiled(list(self.taken[-1].objects))


class ApiAway:
    def serves(self, _kind: Any) -> bool:
        raise Retryable("no budgets in this test")


class Scene:
    """A reconciler whose watches show what the test stores."""

    def __init__(self, in_force: Snapshot | None, folder: Path) -> None:
        settings = KubernetesSettings(internal_token_file=folder / "token")
        self.registry = Registry(in_force)
        self.reconciler = CustomResourceReconciler(settings, None, self.registry, lambda: None)  # type: ignore[arg-type]
        for informer in self.reconciler.informers:
            informer.store.replace_all([])
        self.put("QuotaPolicy", "free", {})
        self.put("InferenceService", POOL, service_spec(), labels={"shoal.dev/pool": POOL})

    def put(self, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        informer = next(each for each in self.reconciler.informers if each.watched.kind == kind)
        api_version = INFERENCE_SERVICE.api_version if kind == "InferenceService" else SHOAL
        item = {"metadata": {"name": name, **metadata}, "spec": spec}
        informer.store.put(watched_object(item, api_version, kind))

    async def reconcile(self, term: int) -> str:
        return (await self.reconciler.reconcile(Guard(term), ApiAway())).kind  # type: ignore[arg-type]


def declared(kind: str, name: str, spec: dict[str, Any]) -> Declared[AnyObject]:
    return declared_from(key(kind, name), written(kind, name, spec))


def snapshot_with(*models: str) -> Snapshot:
    return compiled(
        [
            declared("QuotaPolicy", "free", {}),
            declared("InferenceService", POOL, service_spec()),
            declared("Tenant", "acme", tenant_spec(key="ci", models=models)),
        ]
    )


async def test_last_good_version_is_replaced_by_another_leaders_publication(tmp_path: Path) -> None:
    scene = Scene(None, tmp_path)
    scene.put("Tenant", "acme", tenant_spec(key="ci", models=("acme/old",)))
    await scene.reconcile(term=1)
    assert scene.registry.models_of("acme") == ("acme/old",)
    scene.registry.in_force = snapshot_with("acme/new")  # term 2 was another leader's, which read a second good version
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))  # and then an invalid one
    await scene.reconcile(term=3)
    assert scene.registry.models_of("acme") == ("acme/new",)


async def test_publication_waits_for_the_snapshot_in_force(tmp_path: Path) -> None:
    """The registry was unreachable for one request: an object that is invalid now would lose its last good version."""
    scene = Scene(snapshot_with("acme/good"), tmp_path)
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))
    scene.registry.away = True
    assert await scene.reconcile(term=1) == "passing"
    assert scene.registry.taken == []
    scene.registry.away = False
    await scene.reconcile(term=1)
    assert scene.registry.models_of("acme") == ("acme/good",)


APPLICATIONS = {
    "contextOverflow": "slide",
    "conversations": {"store": True, "ttl": "2h"},
    "tools": [{"name": "search", "url": "https://tools.acme.example/search"}],
}


async def test_tools_of_an_invalid_tenant_survive_a_restart(tmp_path: Path) -> None:
    spec = {**tenant_spec(key="ci"), **APPLICATIONS}
    objects = [declared("QuotaPolicy", "free", {}), declared("Tenant", "acme", spec)]
    scene = Scene(compiled([*objects, declared("InferenceService", POOL, service_spec())]), tmp_path)
    scene.put("Tenant", "acme", {**spec, "tier": 7})
    await scene.reconcile(term=1)
    (tenant,) = scene.registry.snapshot.tenants
    assert scene.registry.in_force is not None
    assert (tenant,) == scene.registry.in_force.tenants
    assert [tool.name for tool in tenant.tools] == ["search"]


@pytest.mark.parametrize("bad", [{"context": 0}, {"replicas": -1}])
async def test_pool_of_an_invalid_service_survives_a_restart(tmp_path: Path, bad: dict[str, int]) -> None:
    """An embedding pool keeps its task, and the models over it stay in force."""
    in_force = replace(snapshot_with(), pools=(PoolEntry(PoolName(POOL), 4096, 2, 2, task="embed"),))
    scene = Scene(in_force, tmp_path)
    scene.put("InferenceService", POOL, service_spec(**bad), labels={"shoal.dev/pool": POOL})
    await scene.reconcile(term=1)
    assert scene.registry.snapshot.pools == in_force.pools


async def test_two_services_that_claim_a_pool_have_no_last_good_version(tmp_path: Path) -> None:
    in_force = replace(snapshot_with(), pools=(PoolEntry(PoolName(POOL), 4096, 2, 2),))
    scene = Scene(in_force, tmp_path)
    scene.put("InferenceService", "another", service_spec(context=0), labels={"shoal.dev/pool": POOL})
    await scene.reconcile(term=1)
    assert [pool.context_window_tokens for pool in scene.registry.snapshot.pools] == [2048], "the one that is valid"


async def test_stand_in_excludes_keys_and_models_of_the_api(tmp_path: Path) -> None:
    """The API's rows are merged again later; a key revoked there would otherwise stay with the tenant."""
    key_of_api = KeyEntry(KeyId("api"), TenantId("acme"), "1" * 64, ("inference",), "interactive")
    revoked = KeyEntry(KeyId("old"), TenantId("acme"), "2" * 64, ("inference",), "interactive")
    whole = snapshot_with("acme/good")
    model = ModelEntry(ModelId("acme/bot"), PoolName(POOL), "lora", (), {})
    scene = Scene(replace(whole, keys=(*whole.keys, key_of_api, revoked), models=(model,)), tmp_path)
    scene.registry.rows_now = Book(
        is_known=True,
        keys={KeyId("api"): ApiKeyRow(KeyId("api"), "acme", "1" * 64, ("inference",), "interactive")},
        revoked={KeyId("old"): "2" * 64},
    )
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))
    scene.put("Model", "acme.bot", {"id": 7})
    await scene.reconcile(term=1)
    assert scene.registry.snapshot.keys == whole.keys
    assert scene.registry.snapshot.models == ()


async def test_stand_in_excludes_a_key_created_just_before_the_term(tmp_path: Path) -> None:
    """The long poll has not reported the key yet, but the snapshot in force contains it."""
    whole = snapshot_with("acme/good")
    minted = KeyEntry(KeyId("api"), TenantId("acme"), "1" * 64, ("inference",), "interactive")
    scene = Scene(replace(whole, keys=(*whole.keys, minted)), tmp_path)
    row = ApiKeyRow(KeyId("api"), "acme", "1" * 64, ("inference",), "interactive")
    scene.registry.rows_now = Book(is_known=True, keys={KeyId("api"): row})
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))
    await scene.reconcile(term=1)
    assert scene.registry.snapshot.keys == whole.keys


async def test_publication_waits_for_the_registrys_rows(tmp_path: Path) -> None:
    scene = Scene(snapshot_with("acme/good"), tmp_path)
    scene.registry.rows_now = Book()
    assert await scene.reconcile(term=1) == "passing"
    assert scene.registry.taken == []


async def test_tier_used_by_a_last_good_version_stays(tmp_path: Path) -> None:
    scene = Scene(None, tmp_path)
    scene.put("Tenant", "acme", tenant_spec(key="ci", models=("acme/*",)))
    await scene.reconcile(term=1)
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))  # not declared: the first version stands in
    deleting = {"deletionTimestamp": "now", "finalizers": ["shoal.dev/in-force"]}
    scene.put("QuotaPolicy", "free", {}, **deleting)
    await scene.reconcile(term=1)
    assert scene.registry.models_of("acme") == ("acme/*",)
    looked = scene.reconciler.looked
    assert looked is not None
    assert looked.seen["quotapolicies/free"].held_by == ("tenants/acme",)
    scene.put("QuotaPolicy", "gold", {})
    await scene.reconcile(term=1)
    assert scene.reconciler.looked is not None
    assert scene.reconciler.looked.seen["quotapolicies/free"].held_by == ()
    assert scene.registry.models_of("acme") == ()


async def test_unreadable_record_blocks_a_new_lease(tmp_path: Path) -> None:
    """A term that began below the record's token would keep the Lease without being able to write, for ever."""
    (tmp_path / "token").write_text("t")
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{free_port()}"
    controller = KubernetesController(KubernetesSettings(internal_token_file=tmp_path / "token", port=0), configuration)
    try:
        with pytest.raises(LeaseUnreachable, match="token is not known"):
            await asyncio.to_thread(controller._recorded_token)
    finally:
        await controller._publishing.close()
