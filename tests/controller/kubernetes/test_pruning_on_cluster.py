"""Pruning on a real API server: only our own objects, only on purpose, and never in a hurry."""

from typing import Any

import pytest

from functions.controller.kubernetes.errors import Stale
from functions.controller.kubernetes.objects import mapping_at
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, pool

pytestmark = pytest.mark.servers


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


def inventory(fleet: Fleet) -> set[str]:
    return {f"{entry.kind}/{entry.name}" for entry in fleet.store.read().entries}


def test_undesired_objects_are_deleted(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    fleet.converge(fleet.desired(pool("a")))
    assert fleet.service("b") is None
    assert fleet.budget("b") is None
    assert inventory(fleet) == {"InferenceService/a", "PodDisruptionBudget/a"}


def test_services_are_deleted_before_their_budgets(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    outcome = fleet.push(pool("a"))
    assert [ref.kind for ref in outcome.pruned] == ["InferenceService", "PodDisruptionBudget"]


def test_foreground_deletion_keeps_the_inventory_entry_until_done(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    desired = fleet.desired(pool("a"))
    fleet.applier.reconcile(desired)
    assert mapping_at(fleet.service("b") or {}, "metadata")["finalizers"] == ["foregroundDeletion"]
    assert fleet.kserve.deployment("b") is not None
    assert "InferenceService/b" in inventory(fleet)
    fleet.kserve.settle()
    fleet.applier.reconcile(desired)
    assert fleet.kserve.deployment("b") is None
    assert "InferenceService/b" not in inventory(fleet)


def test_foreign_finalizer_is_reported_and_kept(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    fleet.edit("b", {"metadata": {"finalizers": ["example.com/backup"]}})
    desired = fleet.desired(pool("a"))
    fleet.applier.reconcile(desired)
    fleet.kserve.settle()
    before = fleet.api.counts.writes
    for _ in range(3):
        outcome = fleet.applier.reconcile(desired)
    assert fleet.api.counts.writes == before + 1  # the budget of b is gone and leaves the inventory
    assert "example.com/backup" in str(outcome.notes)
    assert fleet.service("b") is not None
    assert "InferenceService/b" in inventory(fleet)


def test_service_desired_again_during_its_deletion_is_recreated(fleet: Fleet) -> None:
    both = (pool("a"), pool("b"))
    fleet.converge(fleet.desired(*both))
    fleet.push(pool("a"))
    desired = fleet.desired(*both)
    outcome = fleet.applier.reconcile(desired)
    assert {health.reason for ref, health in outcome.health.items() if ref.name == "b"} == {"BeingDeleted"}
    fleet.converge(desired)
    assert fleet.replicas("b") == 2


def test_an_empty_render_deletes_nothing_without_consent(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a")))
    desired = fleet.desired()
    outcome = fleet.applier.reconcile(desired)
    assert "nothing is desired any more" in outcome.stalled
    assert fleet.service("a") is not None
    fleet.annotate_record("shoal.dev/allow-prune", desired.revision)
    fleet.converge(desired)
    assert fleet.service("a") is None


def test_more_than_half_of_the_services_need_consent(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(*(pool(name) for name in "abc")))
    desired = fleet.desired(pool("a"))
    outcome = fleet.applier.reconcile(desired)
    assert "2 of 3 services" in outcome.stalled
    assert fleet.service("b") is not None
    fleet.annotate_record("shoal.dev/allow-prune", "main@another")
    assert "2 of 3 services" in fleet.applier.reconcile(desired).stalled
    fleet.annotate_record("shoal.dev/allow-prune", desired.revision)
    fleet.converge(desired)
    assert fleet.service("c") is None


def test_another_fleet_of_the_same_size_needs_consent(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    desired = fleet.desired(pool("c"), pool("d"))
    for _ in range(3):  # on every further pass
        assert "2 of 2 services" in fleet.applier.reconcile(desired).stalled
    assert fleet.service("a") is not None
    fleet.annotate_record("shoal.dev/allow-prune", desired.revision)
    fleet.converge(desired)
    assert fleet.service("a") is None
    fleet.converge(fleet.desired(pool("c")))
    assert fleet.service("d") is None, "what was new counts by now"


def test_opting_out_in_git_keeps_the_object(fleet: Fleet) -> None:
    kept = pool("b", annotations="shoal.dev/prune: disabled")
    fleet.converge(fleet.desired(pool("a"), kept))
    outcome = fleet.converge(fleet.desired(pool("a")))
    assert fleet.service("b") is not None
    assert "shoal.dev/prune" in str(outcome.notes)


def test_opting_out_on_the_live_object_keeps_it(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    fleet.edit("b", {"metadata": {"annotations": {"shoal.dev/prune": "disabled"}}})
    fleet.converge(fleet.desired(pool("a")))
    assert fleet.service("b") is not None


def test_opt_out_just_before_deletion_is_respected(fleet: Fleet) -> None:
    """The opt-out comes between the read and the deletion: the object has another resourceVersion by then."""
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    admin = fleet.space.client

    class OptsOutBeforeTheFirstDeletion:
        def request(self, method: str, *arguments: Any, **parameters: Any) -> Any:
            if method == "delete":
                fleet.edit("b", {"metadata": {"annotations": {"shoal.dev/prune": "disabled"}}})
            return admin.request(method, *arguments, **parameters)

    fleet.make_client = OptsOutBeforeTheFirstDeletion
    fleet.restart()
    with pytest.raises(Stale):
        fleet.push(pool("a"))
    assert not (fleet.service("b") or {})["metadata"].get("deletionTimestamp")


def test_recreated_object_is_not_deleted(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    body = next(each.body for each in fleet.desired(pool("b")).objects if each.ref.kind == "InferenceService")
    fleet.delete("b")
    fleet.apply_as("somebody", body)
    outcome = fleet.push(pool("a"))
    assert "another object of this name" in str(outcome.notes)
    assert fleet.service("b") is not None
    assert "InferenceService/b" not in inventory(fleet)


def test_object_without_our_field_manager_is_not_deleted(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    fleet.edit("b", {"metadata": {"managedFields": [{}]}})
    outcome = fleet.push(pool("a"))
    assert "applies nothing of it" in str(outcome.notes)
    assert fleet.service("b") is not None


def test_nothing_is_deleted_while_anything_is_refused(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b"), pool("c")))
    outcome = fleet.push(pool("a", more="scaleTarget: many, "), pool("b"))
    assert outcome.result == "refused"
    assert fleet.service("c") is not None


def test_an_object_of_ours_outside_the_inventory_is_reported(fleet: Fleet) -> None:
    stray = next(each.body for each in fleet.desired(pool("stray")).objects if each.ref.kind == "InferenceService")
    fleet.apply_as("shoal-controller", stray)
    outcome = fleet.push(pool("a"))
    assert "InferenceService" in str(outcome.notes)
    assert "neither desired nor in the inventory" in str(outcome.notes)
    assert fleet.service("stray") is not None
