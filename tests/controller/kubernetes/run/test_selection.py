"""Objects that arrive one by one: which are left out, replaced by their last good version, or never blamed."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import consistency
from functions.api.kinds.base import API_VERSION
from functions.controller.kubernetes.run.cr_source import referrers
from functions.controller.kubernetes.run.selection import (
    Candidate,
    Selection,
    ValidatedObject,
    select,
    validate_document,
)
from tests.controller.kubernetes.run.rig import PLURALS, POOL, model_spec, service_spec, tenant_spec


def judged(kind: str, name: str, spec: dict[str, Any]) -> ValidatedObject:
    return validate_document(key(kind, name), orjson.dumps(written(kind, name, spec)))


def written(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    if kind == "InferenceService":
        metadata = {"name": name, "labels": {"shoal.dev/pool": name}}
        return {"apiVersion": "serving.kserve.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def key(kind: str, name: str) -> str:
    return f"{PLURALS.get(kind, 'inferenceservices')}/{name}"


class Rig(dict[str, Candidate]):
    def put(self, kind: str, name: str, spec: dict[str, Any], **more: Any) -> "Rig":
        self[key(kind, name)] = Candidate(judged(kind, name, spec), **more)
        return self


def fleet() -> Rig:
    rig = Rig()
    rig.put("QuotaPolicy", "free", {}, accepted=True)
    rig.put("InferenceService", POOL, service_spec(), accepted=True)
    rig.put("Tenant", "acme", tenant_spec(key="ci"), accepted=True)
    return rig.put("Model", "acme.bot", model_spec("acme/bot"), accepted=True)


def in_force(selection: Selection) -> set[str]:
    return {declared.document.file for declared in selection.objects}


def test_objects_without_blame_are_selected() -> None:
    selection = select(fleet())
    assert in_force(selection) == set(fleet())
    assert selection.refusals == {}


def test_problem_location_has_object_and_key_path() -> None:
    bad = judged("Tenant", "acme", {"tier": "free", "modles": ["a"]})
    assert bad.declared is None
    allowed = "tier, keys, models, isolation, contextOverflow, conversations, tools"
    assert bad.problems == (f'spec.modles: unknown key; allowed: {allowed}; did you mean "models"?',)


def test_invalid_object_does_not_affect_others() -> None:
    rig = fleet().put("Tenant", "zeta", {"tier": 7})
    selection = select(rig)
    assert in_force(selection) == set(fleet())
    assert not selection.refusals["tenants/zeta"].stands_in
    assert "spec.tier" in selection.refusals["tenants/zeta"].problems[0]


def test_last_good_version_replaces_an_invalid_object() -> None:
    good = judged("Tenant", "acme", tenant_spec(key="ci")).declared
    rig = fleet().put("Tenant", "acme", {"tier": 7}, last_good=good)
    selection = select(rig)
    assert in_force(selection) == set(fleet())
    assert selection.refusals["tenants/acme"].stands_in


def test_contradictory_object_falls_back_to_its_last_good_version() -> None:
    good = judged("Tenant", "acme", tenant_spec(key="ci")).declared
    rig = fleet().put("Tenant", "acme", tenant_spec(tier="gold", key="ci"), last_good=good)
    selection = select(rig)
    assert good in selection.objects
    assert selection.refusals["tenants/acme"].stands_in
    assert "gold" in selection.refusals["tenants/acme"].problems[0]


def test_object_that_references_a_left_out_one_is_left_out_and_reported() -> None:
    rig = fleet().put("Tenant", "acme", tenant_spec(tier="gold"))
    selection = select(rig)
    assert in_force(selection) == {"quotapolicies/free", f"inferenceservices/{POOL}"}
    assert set(selection.refusals) == {"tenants/acme", "models/acme.bot"}


@pytest.mark.parametrize("thief", ["aaa", "zzz"])
def test_older_object_wins_a_double_claim(thief: str) -> None:
    rig = fleet().put("Tenant", thief, tenant_spec(key="ci"))
    selection = select(rig)
    assert in_force(selection) == set(fleet())
    assert set(selection.refusals) == {f"tenants/{thief}"}


def test_newer_service_of_a_pool_is_refused() -> None:
    second = written("InferenceService", "another", service_spec())
    second["metadata"]["labels"]["shoal.dev/pool"] = POOL
    rig = fleet()
    rig["inferenceservices/another"] = Candidate(validate_document("inferenceservices/another", orjson.dumps(second)))
    selection = select(rig)
    assert set(selection.refusals) == {"inferenceservices/another"}


_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["acme", "beta", "zeta"]),
        st.sampled_from(["free", "gold", 7]),
        st.sampled_from(["ci", "cd", ""]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(changes=_CHANGES, without_pool=st.booleans())
def test_selection_is_consistent_and_reports_every_left_out_object(
    changes: list[tuple[str, Any, str, bool, bool]], without_pool: bool
) -> None:
    rig = fleet()
    if without_pool:
        del rig[f"inferenceservices/{POOL}"]
    for name, tier, key_id, accepted, remembered in changes:
        last_good = judged("Tenant", name, tenant_spec(key=f"old-{name}")).declared if remembered else None
        spec = {**tenant_spec(key=key_id), "tier": tier}
        rig.put("Tenant", name, spec, accepted=accepted and tier == "free", last_good=last_good)
        rig.put("Model", f"{name}.bot", model_spec(f"{name}/bot"))
    selection = select(rig)
    assert list(consistency.problems(selection.objects, complete=True)) == []
    left_out = set(rig) - in_force(selection)
    assert left_out <= set(selection.refusals)
    assert all(refusal.stands_in == (key in in_force(selection)) for key, refusal in selection.refusals.items())


def test_reference_map_lists_all_references() -> None:
    rig = fleet()
    routing = {"pools": ["*"], "fallback": [{"when": "saturated", "from": "a", "to": "b", "tiers": ["gold"]}]}
    rig.put("RoutingPolicy", "default", routing)
    found = referrers(one.judged.declared for one in rig.values() if one.judged.declared)
    assert found["quotapolicies/free"] == ["tenants/acme"]
    assert found["quotapolicies/gold"] == ["routingpolicies/default"]
    assert found["rolloutpolicies/default"] == ["models/acme.bot"]
