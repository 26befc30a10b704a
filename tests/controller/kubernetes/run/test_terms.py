"""What a process knows when a term of its begins: never older than what another leader has put in force meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import Configuration

from functions.api.loader import Loaded
from functions.api.snapshot import Snapshot
from functions.controller.kubernetes.errors import Retryable
from functions.controller.kubernetes.objects import INFERENCE_SERVICE
from functions.controller.kubernetes.run.cr_side import CustomResourceSide
from functions.controller.kubernetes.run.lease import LeaseUnreachable
from functions.controller.kubernetes.run.object_store import stored
from functions.controller.kubernetes.run.process import KubernetesController
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.snapshot.publish import PublishOutcome
from functions.controller.snapshot.registry_client import RegistryUnavailable
from tests.controller.kubernetes.run.rig import POOL, SHOAL, service_spec, tenant_spec
from tests.controller.kubernetes.run.test_last_good import compiled, declared
from tests.controller.kubernetes.run.test_loop import Guard
from tests.fleet.conftest import free_port


class Registry:
    """Both as `Publishing` and as its wire: what is in force, and what was published over it."""

    def __init__(self, in_force: Snapshot | None) -> None:
        self.in_force = in_force
        self.away = False
        self.published: list[Loaded] = []
        self.wire = self

    async def current(self) -> Snapshot | None:
        if self.away:
            raise RegistryUnavailable("away")
        return self.in_force

    async def publish(self, loaded: Loaded, _revision: str) -> PublishOutcome:
        self.published.append(loaded)
        return PublishOutcome("published", "", complete=True)

    def models_of(self, tenant: str) -> tuple[str, ...] | None:
        """In the newest publication."""
        for each in self.published[-1].objects:
            if each.document.file == f"tenants/{tenant}":
                return tuple(each.value.spec.models)  # type: ignore[union-attr]
        return None


class ApiAway:
    def serves(self, _kind: Any) -> bool:
        raise Retryable("no budgets in this test")


class Scene:
    """A side whose watches show what the test puts there."""

    def __init__(self, in_force: Snapshot | None, folder: Path) -> None:
        settings = KubernetesSettings(internal_token_file=folder / "token")
        self.registry = Registry(in_force)
        self.side = CustomResourceSide(settings, None, self.registry, lambda: None)  # type: ignore[arg-type]
        for informer in self.side.informers:
            informer.store.replace_all([])
        self.put("QuotaPolicy", "free", {})
        self.put("InferenceService", POOL, service_spec(), labels={"shoal.dev/pool": POOL})

    def put(self, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        informer = next(each for each in self.side.informers if each.watched.kind == kind)
        api_version = INFERENCE_SERVICE.api_version if kind == "InferenceService" else SHOAL
        item = {"metadata": {"name": name, **metadata}, "spec": spec}
        informer.store.put(stored(item, api_version, kind))

    async def reconcile(self, term: int) -> str:
        return (await self.side.reconcile(Guard(term), ApiAway())).kind  # type: ignore[arg-type]


def snapshot_with(*models: str) -> Snapshot:
    return compiled(
        [
            declared("QuotaPolicy", "free", {}),
            declared("InferenceService", POOL, service_spec()),
            declared("Tenant", "acme", tenant_spec(key="ci", models=models)),
        ]
    )


async def test_what_was_good_in_an_earlier_term_yields_to_what_another_leader_put_in_force(tmp_path: Path) -> None:
    scene = Scene(None, tmp_path)
    scene.put("Tenant", "acme", tenant_spec(key="ci", models=("acme/old",)))
    await scene.reconcile(term=1)
    assert scene.registry.models_of("acme") == ("acme/old",)
    scene.registry.in_force = snapshot_with("acme/new")  # term 2 was another's, who saw a second good version
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))  # and then one that is wrong
    await scene.reconcile(term=3)
    assert scene.registry.models_of("acme") == ("acme/new",)


async def test_nothing_is_published_before_what_is_in_force_was_read(tmp_path: Path) -> None:
    """The registry was away for that one request: what is wrong now would lose its last good version."""
    scene = Scene(snapshot_with("acme/good"), tmp_path)
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))
    scene.registry.away = True
    assert await scene.reconcile(term=1) == "passing"
    assert scene.registry.published == []
    scene.registry.away = False
    await scene.reconcile(term=1)
    assert scene.registry.models_of("acme") == ("acme/good",)


async def test_a_tier_stays_while_a_last_good_version_needs_it(tmp_path: Path) -> None:
    scene = Scene(None, tmp_path)
    scene.put("Tenant", "acme", tenant_spec(key="ci", models=("acme/*",)))
    await scene.reconcile(term=1)
    scene.put("Tenant", "acme", tenant_spec(tier="gold", key="ci"))  # nobody declares it: the first version stands in
    deleting = {"deletionTimestamp": "now", "finalizers": ["shoal.dev/in-force"]}
    scene.put("QuotaPolicy", "free", {}, **deleting)
    await scene.reconcile(term=1)
    assert scene.registry.models_of("acme") == ("acme/*",)
    looked = scene.side.looked
    assert looked is not None
    assert looked.seen["quotapolicies/free"].held_by == ("tenants/acme",)
    scene.put("QuotaPolicy", "gold", {})
    await scene.reconcile(term=1)
    assert scene.side.looked is not None
    assert scene.side.looked.seen["quotapolicies/free"].held_by == ()
    assert scene.registry.models_of("acme") == ()


async def test_a_record_that_cannot_be_read_now_holds_up_a_new_lease(tmp_path: Path) -> None:
    """A term that began below the record's token would keep the Lease, and could write nothing, for ever."""
    (tmp_path / "token").write_text("t")
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{free_port()}"
    controller = KubernetesController(KubernetesSettings(internal_token_file=tmp_path / "token", port=0), configuration)
    try:
        with pytest.raises(LeaseUnreachable, match="token is not known"):
            await asyncio.to_thread(controller._recorded_token)
    finally:
        await controller._publishing.close()
