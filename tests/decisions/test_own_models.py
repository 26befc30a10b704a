"""A tenant's own base model: callable by that tenant whatever it shares, and by no other tenant."""

import pytest
from msgspec.structs import replace

from functions.api import snapshot as snapshots
from functions.api.ids import RolloutId
from functions.api.snapshot import SplitEntry
from functions.decisions.catalogue import Catalogue
from tests.decisions.own_models import ACME, GLOBEX, TONE, V1, V2, WIKI, WIKI_POOL, snapshot, wiki


def catalogue(found: snapshots.Snapshot) -> Catalogue:
    return Catalogue(found, snapshots.content_hash(found))


@pytest.mark.parametrize("requested", [WIKI, f"{WIKI}:stable", f"{WIKI}@v2", f"{WIKI}@{V2}", TONE])
def test_own_model_exists_only_for_its_tenant(requested: str) -> None:
    known = catalogue(snapshot())
    mine = known.resolve(ACME, requested)
    assert mine is not None and mine.pool == WIKI_POOL and mine.is_adapter == (requested == TONE)
    assert known.may_call(GLOBEX, WIKI), "its patterns allow every id"
    assert known.resolve(GLOBEX, requested) is None


def test_own_model_is_listed_only_to_its_tenant() -> None:
    known = catalogue(snapshot())
    assert [model.id for model in known.callable_models(ACME)] == [TONE, WIKI]
    assert known.callable_models(GLOBEX) == []


def test_own_model_in_an_undedicated_pool_is_hidden() -> None:
    """Objects written to a cluster one by one may disagree for a while."""
    known = catalogue(snapshot(owners=()))
    assert known.resolve(ACME, WIKI) is None and known.resolve(GLOBEX, WIKI) is None


def test_own_model_uses_its_pools_engine_name() -> None:
    mine = catalogue(snapshot()).resolve(ACME, WIKI)
    assert mine is not None
    assert (mine.engine_name, mine.served_as, mine.weights) == (WIKI_POOL, "acme/wiki@v1", V1)
    assert mine.as_loaded(V2) == ("v2", V2)


def test_adapter_of_an_own_model_follows_its_rollout() -> None:
    split = SplitEntry("stable", RolloutId("ro-aaaaaaaa"), 1, 10, "v2")
    adapter = wiki(TONE, WIKI_POOL, "lora")
    known = catalogue(snapshot(adapter, replace(wiki(), splits=(split,))))
    resolved = known.resolve(ACME, TONE)
    assert resolved is not None and resolved.split is not None
    assert (resolved.weights, resolved.split.candidate.weights, resolved.split.model) == (V1, V2, WIKI)


def test_policies_reach_an_own_model_only_for_its_tenant() -> None:
    known = catalogue(snapshot())
    found = known.resolve_base(ACME, WIKI_POOL)
    assert found is not None and found.id == WIKI
    assert known.resolve_base(GLOBEX, WIKI_POOL) is None
