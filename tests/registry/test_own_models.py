"""A tenant's own base model: only that tenant builds adapters on it, and node fetchers find its weights."""

import msgspec

from functions.api.ids import ModelId, TenantId
from functions.api.snapshot import PoolEntry
from tests.decisions.own_models import V2, WIKI, WIKI_POOL, wiki
from tests.registry.backends import url
from tests.registry.catalogue_rig import Rig, published

__all__ = ["url"]

DECLARED_IN = "registry/wiki.yaml"


async def with_acmes_own(rig: Rig) -> None:
    snapshot = published(rig.store.epoch + 1)
    pools = (*snapshot.pools, PoolEntry(WIKI_POOL, 2048, dedicated_to=(TenantId("acme"),)))
    models = (*snapshot.models, msgspec.structs.replace(wiki(), declared_in=DECLARED_IN))
    await rig.store.publish(msgspec.structs.replace(snapshot, pools=pools, models=models))


async def test_only_the_owner_registers_adapters_on_its_base(catalogue: Rig) -> None:
    """The refusal must not reveal to another tenant that the base exists."""
    await with_acmes_own(catalogue)
    mine = await catalogue.put("v1", "c", "acme/tone", "acme-writer", base_model=WIKI_POOL)
    assert mine.status_code == 201, mine.text
    refused = await catalogue.put("v1", "d", "globex/tone", "globex-writer", base_model=WIKI_POOL)
    unknown = await catalogue.put("v1", "d", "globex/tone", "globex-writer", base_model="acme.nothing")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "base_not_found")
    said = refused.json()["error"]["message"].replace(WIKI_POOL, "acme.nothing")
    assert said == unknown.json()["error"]["message"], "as if there were no such pool"


async def test_own_model_is_visible_to_its_tenant_and_changed_in_git(catalogue: Rig) -> None:
    await with_acmes_own(catalogue)
    assert (await catalogue.get(f"/v1/models/{WIKI}", "acme-reader"))["declared_in"] == DECLARED_IN
    assert (await catalogue.call("GET", f"/v1/models/{WIKI}", "globex-writer")).status_code == 404
    assert WIKI not in {row["id"] for row in (await catalogue.get("/v1/models", "globex-writer"))["data"]}
    changed = await catalogue.put("v3", "c", WIKI, "acme-writer")
    assert (changed.status_code, changed.json()["error"]["code"]) == (409, "declared_in_git")


async def test_node_fetchers_find_own_weights_by_pool_name(catalogue: Rig) -> None:
    await with_acmes_own(catalogue)
    found = await catalogue.get(f"/internal/v1/weights/{WIKI_POOL}/v2")
    assert found["digest"] == V2
    assert (await catalogue.call("GET", f"/internal/v1/weights/{WIKI_POOL}/v9")).status_code == 404
    assert catalogue.services.declared.git_model(ModelId(WIKI)) is not None
