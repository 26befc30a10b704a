"""The applier against a real API server: create, update, repair drift, and write nothing if nothing changed."""

import pytest

from functions.controller.kubernetes.objects import mapping_at, value_at
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, pool
from tests.controller.kubernetes.kserve_double import Script

pytestmark = pytest.mark.servers


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


def test_creates_services_and_budgets(fleet: Fleet) -> None:
    outcome = fleet.push(pool("a"), pool("b"))
    assert outcome.result == "applied"
    assert sorted((ref.kind, ref.name) for ref in outcome.written) == [
        ("InferenceService", "a"),
        ("InferenceService", "b"),
        ("PodDisruptionBudget", "a"),
        ("PodDisruptionBudget", "b"),
    ]
    assert fleet.replicas("a") == 2
    selector = value_at(fleet.budget("b") or {}, "spec", "selector", "matchLabels")
    assert selector == {"serving.kserve.io/inferenceservice": "b"}


def test_service_is_healthy_only_with_healthy_pods(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    assert not fleet.applier.reconcile(desired).is_healthy
    fleet.kserve.settle()
    assert fleet.applier.reconcile(desired).is_healthy


def test_converged_fleet_causes_no_write_in_ten_resyncs(fleet: Fleet) -> None:
    desired = fleet.desired(*(pool(name) for name in "abc"))
    fleet.converge(desired)
    before = fleet.api.counts
    for _ in range(10):
        assert fleet.applier.reconcile(desired).is_healthy
    after = fleet.api.counts
    assert after.writes == before.writes
    assert after.dry_runs == before.dry_runs + 10 * 6


def test_resync_of_twenty_pools_makes_two_dry_runs_per_pool_and_four_reads(fleet: Fleet) -> None:
    desired = fleet.desired(*(pool(f"pool-{number}") for number in range(20)))
    fleet.converge(desired)
    before = fleet.api.counts
    fleet.applier.reconcile(desired)
    after = fleet.api.counts
    assert (after.reads - before.reads, after.dry_runs - before.dry_runs) == (4, 40)


def test_a_new_revision_of_the_same_content_writes_only_the_record(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a")))
    before = fleet.api.counts.writes
    outcome = fleet.push(pool("a"))
    assert outcome.written == ()
    assert fleet.api.counts.writes == before + 1
    assert mapping_at(fleet.record() or {}, "data")["lastAppliedRevision"] == outcome.revision


def test_an_update_changes_only_what_changed(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    desired = fleet.desired(pool("a", args="--max-loras=8"), pool("b"))
    outcome = fleet.applier.reconcile(desired)
    assert [(ref.kind, ref.name) for ref in outcome.written] == [("InferenceService", "a")]
    fleet.converge(desired)
    assert fleet.kserve.restarts == {"a": 1}


def test_just_written_service_is_not_healthy_despite_a_ready_status(fleet: Fleet) -> None:
    """Arguments that only lost their first one cannot be told apart from the old ones by their end."""
    before, after = pool("a").replace("args: [", "args: [--first, "), pool("a")
    fleet.converge(fleet.desired(before))
    desired = fleet.desired(after)
    outcome = fleet.applier.reconcile(desired)
    assert [health.reason for ref, health in outcome.health.items() if ref.kind == "InferenceService"] == [
        "JustWritten"
    ]
    assert not outcome.is_healthy
    assert fleet.converge(desired).is_healthy


def test_a_bigger_pool_restarts_no_pod(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a", replicas=2)))
    fleet.converge(fleet.desired(pool("a", replicas=5)))
    deployment = fleet.kserve.deployment("a")
    assert value_at(deployment or {}, "spec", "replicas") == 5
    assert fleet.kserve.restarts == {}


def test_controller_annotations_never_reach_the_cluster(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a")))
    notes = 'shoal.dev/wave: "1", shoal.dev/prune: disabled'
    desired = fleet.desired(pool("a", annotations=notes))
    outcome = fleet.converge(desired)
    assert outcome.result == "applied"
    annotations = mapping_at(fleet.service("a") or {}, "metadata", "annotations")
    assert sorted(annotations) == ["serving.kserve.io/autoscalerClass", "serving.kserve.io/deploymentMode"]
    assert fleet.kserve.restarts == {}


def test_applier_adds_no_marks_to_the_service(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    live = fleet.service("a") or {}
    assert mapping_at(live, "metadata", "labels") == {"shoal.dev/pool": "a"}
    assert live["spec"] == desired.objects[-1].body["spec"]


def test_manual_edit_is_repaired(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    fleet.edit("a", {"spec": {"predictor": {"minReplicas": 7}}})
    outcome = fleet.applier.reconcile(desired)
    assert [ref.name for ref in outcome.written] == ["a"]
    assert fleet.replicas("a") == 2


def test_undeclared_fields_are_left_alone(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    fleet.edit("a", {"spec": {"predictor": {"timeout": 99}}})
    assert fleet.applier.reconcile(desired).written == ()


def test_manually_deleted_object_is_recreated(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    fleet.delete("a")
    outcome = fleet.applier.reconcile(desired)
    assert [(ref.kind, ref.name) for ref in outcome.written] == [("InferenceService", "a")]
    fleet.converge(desired)
    assert fleet.replicas("a") == 2


def test_existing_object_is_taken_over(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"), pool("b"))
    found = next(each for each in desired.objects if (each.ref.kind, each.ref.name) == ("InferenceService", "a"))
    fleet.apply_as("kubectl", found.body)
    outcome = fleet.applier.reconcile(desired)
    assert "a" in [ref.name for ref in outcome.written if ref.kind == "InferenceService"]
    fleet.converge(fleet.desired(pool("b")))
    assert fleet.service("a") is None  # it was ours, so it was deleted


def test_field_no_longer_declared_is_removed(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a", more="timeout: 60, ")))
    fleet.converge(fleet.desired(pool("a")))
    assert "timeout" not in (fleet.service("a") or {})["spec"]["predictor"]


def test_the_next_wave_waits_for_the_health_of_the_one_before(fleet: Fleet) -> None:
    fleet.kserve.scripts["first"] = Script(passes_until_available=10_000)
    second = pool("second", annotations='shoal.dev/wave: "1"')
    desired = fleet.desired(pool("first"), second)
    for _ in range(3):
        outcome = fleet.applier.reconcile(desired)
        fleet.kserve.step()
    assert outcome.result == "waiting"
    assert fleet.service("second") is None
    assert outcome.gate is not None
    assert [ref.name for ref, _ in outcome.gate.unhealthy] == ["first"]
    fleet.kserve.scripts["first"] = Script()
    fleet.kserve._seen.clear()
    fleet.converge(desired)
    assert fleet.service("second") is not None


def test_waiting_at_a_gate_causes_no_writes(fleet: Fleet) -> None:
    fleet.kserve.scripts["first"] = Script(crashes=True)
    desired = fleet.desired(pool("first"), pool("second", annotations='shoal.dev/wave: "1"'))
    fleet.applier.reconcile(desired)
    fleet.kserve.settle()
    fleet.applier.reconcile(desired)
    before = fleet.api.counts.writes
    for _ in range(5):
        assert fleet.applier.reconcile(desired).result == "waiting"
    assert fleet.api.counts.writes == before


def test_gate_waits_until_removed_arguments_are_gone(fleet: Fleet) -> None:
    """KServe is slow: Ready is still True, and the old arguments end with the new ones."""
    front, late = "args: [--enforce-eager, --max-model-len=2048", pool("b", annotations='shoal.dev/wave: "1"')
    fleet.converge(fleet.desired(pool("a").replace("args: [--max-model-len=2048", front), late))
    desired = fleet.desired(pool("a"), late.replace("--enable-lora", "--enable-lora, --max-loras=2"))
    fleet.applier.reconcile(desired)
    fleet.restart()
    outcome = fleet.applier.reconcile(desired)
    assert outcome.result == "waiting"
    assert "from before the last change" in str(outcome.gate)
    assert "--max-loras=2" not in str(fleet.service("b"))
    fleet.converge(desired)
    assert "--max-loras=2" in str(fleet.service("b"))


def test_gate_reports_a_timeout_even_across_restarts(fleet: Fleet) -> None:
    fleet.kserve.scripts["first"] = Script(crashes=True)
    desired = fleet.desired(pool("first"), pool("second", annotations='shoal.dev/wave: "1"'))
    fleet.applier.reconcile(desired)
    fleet.kserve.settle()
    assert fleet.applier.reconcile(desired).stalled == ""
    fleet.clock.now_s += 1801
    fleet.restart()
    outcome = fleet.applier.reconcile(desired)
    assert outcome.result == "waiting"
    assert "first" in outcome.stalled


def test_a_new_revision_ends_the_wait_for_the_old_one(fleet: Fleet) -> None:
    fleet.kserve.scripts["first"] = Script(crashes=True)
    second = pool("second", annotations='shoal.dev/wave: "1"')
    fleet.applier.reconcile(fleet.desired(pool("first"), second))
    fleet.kserve.scripts["first"] = Script()
    fleet.converge(fleet.desired(pool("first", args="--mended"), second))
    assert fleet.service("second") is not None


def test_history_keeps_one_line_for_each_of_the_last_five_revisions(fleet: Fleet) -> None:
    outcomes = [fleet.push(pool("a", args=f"--seed={number}")) for number in range(7)]
    history = fleet.store.read().history
    assert [attempt.revision for attempt in history] == [outcome.revision for outcome in outcomes[:1:-1]]


def test_edited_record_is_overwritten(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a")))
    fleet.edit_record({"data": {"lastAppliedRevision": "main@forged"}})
    outcome = fleet.push(pool("a"))
    assert fleet.store.read().last_applied == outcome.revision
