"""Listing: the models that a key may call, and none of another tenant."""

import json
from datetime import datetime
from typing import Any

import pytest

from functions.api.ids import TenantId
from functions.decisions.catalogue import Catalogue
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.view import FleetView
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.listing import KEPT_S, Listing, RecentListings, describe_model, page_of
from tests.gateway import rig

CATALOGUE = rig.catalogue()
ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def fleet(*beats: Heartbeat) -> FleetView:
    view = FleetView()
    for beat in beats:
        view.fold(beat, 0.0)
    return view


def list_models(catalogue: Catalogue, view: FleetView, tenant: TenantId, listing: Listing | None = None) -> Any:
    return json.loads((listing or Listing()).models(catalogue, view, tenant).content)


def test_listing_has_only_models_the_tenant_may_call() -> None:
    listed = list_models(CATALOGUE, fleet(), ACME)
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["acme/bot", rig.POOL]
    assert "globex" not in json.dumps(listed)
    assert [model["id"] for model in list_models(CATALOGUE, fleet(), GLOBEX)["data"]] == ["globex/bot"]
    assert list_models(CATALOGUE, fleet(), TenantId("nobody"))["data"] == []


def test_description_of_a_model() -> None:
    model = describe_model(CATALOGUE, fleet(rig.heartbeat("r0")), ACME, "acme/bot")
    assert model is not None
    assert (model["object"], model["owned_by"], model["parent"]) == ("model", "acme", rig.POOL)
    assert model["channels"]["canary"] == {"version": "v2", "digest": rig.DIGEST_V2}
    assert model["context_window"] == 2048 and model["task"] == "generate"
    assert model["capacity"] == {"ready": True, "replicas_ready": 1}


def test_reference_with_a_selector_is_returned_as_id() -> None:
    model = describe_model(CATALOGUE, fleet(), ACME, "acme/bot:canary")
    assert model is not None
    assert model["id"] == "acme/bot:canary"


def test_another_tenants_model_is_not_described() -> None:
    assert describe_model(CATALOGUE, fleet(), ACME, "globex/bot") is None
    assert describe_model(CATALOGUE, fleet(), GLOBEX, rig.POOL) is None


def test_capacity_counts_replicas_that_could_answer() -> None:
    view = fleet(
        rig.heartbeat("ready"),
        rig.heartbeat("cold", adapters=()),
        rig.heartbeat("draining", phase="draining"),
    )
    adapter = describe_model(CATALOGUE, view, ACME, "acme/bot")
    base = describe_model(CATALOGUE, view, ACME, rig.POOL)
    assert adapter is not None and base is not None
    assert adapter["capacity"] == {"ready": True, "replicas_ready": 1}
    assert base["capacity"] == {"ready": True, "replicas_ready": 2}


def test_model_shows_only_the_limits_set_by_its_tier() -> None:
    catalogue = rig.catalogue(quotas=(rig.quota(requests_per_minute=60, max_output_tokens=512),))
    model = describe_model(catalogue, fleet(), ACME, "acme/bot")
    assert model is not None
    assert model["tier"] == {"name": "enterprise", "limits": {"requests_per_minute": 60, "max_output_tokens": 512}}
    assert list_models(catalogue, fleet(), ACME)["data"][0]["tier"] == model["tier"]
    rival = describe_model(catalogue, fleet(), GLOBEX, "globex/bot")
    assert rival is not None and rival["tier"] is None, "its tier has no policy"


def test_listing_and_description_of_a_model_agree() -> None:
    catalogue = rig.catalogue(quotas=(rig.quota(requests_per_minute=60),), **rig.in_rollout(10))
    view = fleet(rig.heartbeat("r0"), rig.heartbeat("r1", adapters=()))
    listed = list_models(catalogue, view, ACME)["data"]
    assert listed == [describe_model(catalogue, view, ACME, model["id"]) for model in listed]
    assert [model["capacity"]["replicas_ready"] for model in listed] == [1, 2]


def test_cached_listing_follows_snapshot_and_fleet() -> None:
    listing, view = Listing(), fleet(rig.heartbeat("r0"))
    before = list_models(rig.catalogue(), view, ACME, listing)
    assert list_models(rig.catalogue(), view, ACME, listing) == before
    view.fold(rig.heartbeat("r0", sequence=2, adapters=()), 1.0)
    assert list_models(rig.catalogue(), view, ACME, listing)["data"][0]["capacity"]["ready"] is False
    changed = rig.catalogue(**rig.in_rollout(10))
    assert "rollout" in list_models(changed, view, ACME, listing)["data"][0]["channels"]["stable"]
    base_alone = tuple(model for model in rig.snapshot().models if model.type == "base")
    fewer = rig.catalogue(models=base_alone)
    assert [model["id"] for model in list_models(fewer, view, ACME, listing)["data"]] == [rig.POOL]
    assert len(listing._written) == 1


@pytest.mark.parametrize(("cap", "window"), [(512, 512), (2048, 2048), (131_072, 2048)])
def test_context_window_is_capped_by_the_tier(cap: int, window: int) -> None:
    catalogue = rig.catalogue(quotas=(rig.quota(max_context_tokens=cap),))
    model = describe_model(catalogue, fleet(), ACME, "acme/bot")
    assert model is not None and model["context_window"] == window


def test_channel_in_rollout_shows_control_and_candidate() -> None:
    catalogue = rig.catalogue(**rig.in_rollout(10, stage=2))
    model = describe_model(catalogue, fleet(), ACME, "acme/bot")
    assert model is not None and model["channels"] == {
        "canary": {"version": "v2", "digest": rig.DIGEST_V2},
        "stable": {
            "version": "v1",
            "digest": rig.DIGEST_V1,
            "rollout": {
                "id": rig.ROLLOUT,
                "stage": 2,
                "percent": 10,
                "candidate": {"version": "v2", "digest": rig.DIGEST_V2},
            },
        },
    }


def test_models_are_paged_as_the_anthropic_sdk_requests() -> None:
    lately = RecentListings(lambda: 0.0)

    def page(**query: str) -> tuple[list[str], bool]:
        listed = json.loads(lately.models(CATALOGUE, fleet(), ACME, page_of(query)))
        return [model["id"] for model in listed["data"]], listed["has_more"]

    assert page() == (["acme/bot", rig.POOL], False)
    assert page(limit="1") == (["acme/bot"], True)
    assert page(limit="1", after_id="acme/bot") == ([rig.POOL], False)
    assert page(limit="20") == (["acme/bot", rig.POOL], False)
    assert page(limit="20", after_id="nobody's") == ([], False)


def test_pages_within_a_second_share_one_listing() -> None:
    """Otherwise a client that lists one model at a time makes the gateway walk over ten thousand each time."""
    now_s, view = [0.0], fleet()
    lately = RecentListings(lambda: now_s[0])

    def ready(**query: str) -> list[bool]:
        listed = json.loads(lately.models(CATALOGUE, view, ACME, page_of(query)))
        return [model["capacity"]["ready"] for model in listed["data"]]

    assert ready(limit="1") == [False]
    view.fold(rig.heartbeat("r0"), 0.0)
    assert ready(limit="1") == ready(limit="1", after_id="acme/bot") == [False] and ready() == [False, False]
    now_s[0] = KEPT_S
    assert ready(limit="1", after_id="acme/bot") == [True]
    assert lately.models(CATALOGUE, view, ACME) == lately.models(CATALOGUE, view, ACME, page_of({"limit": "20"}))


def test_models_have_fields_that_vllm_clients_read() -> None:
    model = describe_model(CATALOGUE, fleet(), ACME, "acme/bot")
    assert model is not None and model["max_model_len"] == model["context_window"] == 2048


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "²", "1" * 50])
def test_invalid_page_limit_is_refused(limit: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        page_of({"limit": limit})
    assert refused.value.answer.message == "'limit' must be an integer from 1 to 1000."
    assert refused.value.answer.param == "limit"


def test_models_have_fields_that_the_anthropic_sdk_reads() -> None:
    model = describe_model(CATALOGUE, fleet(), ACME, "acme/bot")
    assert model is not None
    assert (model["type"], model["display_name"]) == ("model", "acme/bot")
    assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"]
