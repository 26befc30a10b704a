"""Pure parts between the cluster and the decision: ownership, comparison, conflicts, the record, pruning."""

from typing import Any

import pytest

from functions.controller.kubernetes.dry_runs import dropped_fields, is_converged
from functions.controller.kubernetes.errors import Conflict, FieldConflict, Terminal
from functions.controller.kubernetes.inventory import (
    HISTORY_MAX,
    MESSAGE_MAX_CHARS,
    InventoryEntry,
    InventoryRecord,
    ReconcileAttempt,
    WaitingWave,
    decode,
    encode,
)
from functions.controller.kubernetes.objects import BUDGET, INFERENCE_SERVICE, Body, ObjectRef
from functions.controller.kubernetes.ownership import (
    FIELD,
    FIELD_TEXT,
    REPAIR_WINDOW_S,
    Repairs,
    body_for,
    contested_fields,
    declares,
    fields_applied_by,
    owners,
    seed_body,
)
from functions.controller.kubernetes.pruning import PrunePlan, plan_prune
from functions.controller.kubernetes.render import Autoscaled, Desired, DesiredObject

NUMBER = {"f:spec": {"f:predictor": {"f:minReplicas": {}}}}
OURS = "shoal-controller"


def owned(*entries: tuple[str, str, dict[str, Any]], **more: Any) -> Body:
    fields = [{"manager": name, "operation": op, "fieldsV1": fields} for name, op, fields in entries]
    metadata = {"name": "a", "namespace": "m", "uid": "u", "resourceVersion": "1", "managedFields": fields}
    return {"apiVersion": INFERENCE_SERVICE.api_version, "kind": "InferenceService", "metadata": metadata, **more}


def wanted(*, autoscaled: bool = False) -> DesiredObject:
    predictor = {} if autoscaled else {"minReplicas": 2}
    body = {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": "InferenceService",
        "metadata": {"name": "a", "namespace": "m"},
        "spec": {"predictor": predictor},
    }
    return DesiredObject(body, 0, "a.yaml:1", autoscaled=Autoscaled(2) if autoscaled else None)


class TestOwnership:
    def test_owners_lists_every_owner_of_a_field(self) -> None:
        live = owned((OURS, "Apply", NUMBER), ("kubectl", "Update", NUMBER), ("other", "Apply", {"f:spec": {}}))
        assert owners(live, *FIELD) == {(OURS, "Apply"), ("kubectl", "Update")}

    def test_a_status_writer_owns_nothing_of_the_spec(self) -> None:
        live = owned((OURS, "Apply", NUMBER))
        live["metadata"]["managedFields"][0]["subresource"] = "status"
        assert owners(live, *FIELD) == set()
        assert not declares(live, OURS)

    def test_update_does_not_count_as_declaration(self) -> None:
        assert not declares(owned(("kubectl", "Update", NUMBER)), "kubectl")

    @pytest.mark.parametrize("entries", [None, "text", [None], [{}], [{"fieldsV1": []}]])
    def test_malformed_managed_fields_have_no_owners(self, entries: Any) -> None:
        assert owners({"metadata": {"managedFields": entries}}, *FIELD) == set()


class TestCompare:
    def test_server_metadata_is_no_difference(self) -> None:
        live = owned((OURS, "Apply", NUMBER), spec={"x": 1}, status={"a": 1})
        result = owned((OURS, "Apply", NUMBER), spec={"x": 1})
        result["metadata"] |= {"resourceVersion": "2", "generation": 9, "creationTimestamp": "later"}
        assert is_converged(live, result)

    def test_spec_labels_and_owned_fields_are_differences(self) -> None:
        live = owned((OURS, "Apply", NUMBER), spec={"x": 1})
        assert not is_converged(live, owned((OURS, "Apply", NUMBER), spec={"x": 2}))
        assert not is_converged(live, owned((OURS, "Apply", {}), spec={"x": 1}))
        labelled = owned((OURS, "Apply", NUMBER), spec={"x": 1})
        labelled["metadata"]["labels"] = {"a": "b"}
        assert not is_converged(live, labelled)

    def test_fields_of_other_managers_are_no_difference(self) -> None:
        live = owned((OURS, "Apply", NUMBER), ("x", "Apply", NUMBER), spec={})
        assert is_converged(live, owned((OURS, "Apply", NUMBER), spec={}))

    def test_dropped_fields_are_named(self) -> None:
        empty = {"nothing": None, "text": "", "zero": 0, "no": False, "list_": [], "map": {}}
        sent = {"spec": {"a": 1, "b": {"c": 1}, "list": [{"d": 1}], "gone": [1], **empty}}
        got = {"spec": {"a": 2, "b": {}, "list": [{}], "more": 1}}
        assert dropped_fields(sent, got) == ["spec.b.c", "spec.list[0].d", "spec.gone"]

    def test_list_extended_by_a_webhook_is_not_compared(self) -> None:
        assert dropped_fields({"a": [{"b": 1}]}, {"a": [{}, {}]}) == []


class TestHandover:
    def test_new_object_starts_with_the_seed(self) -> None:
        body = body_for(wanted(autoscaled=True), None)
        assert body["spec"]["predictor"]["minReplicas"] == 2

    def test_a_live_object_is_bound_by_uid_and_version(self) -> None:
        body = body_for(wanted(), owned())
        assert (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) == ("u", "1")

    def test_seed_hands_the_live_number_to_the_autoscaler(self) -> None:
        live = owned((OURS, "Apply", NUMBER), spec={"predictor": {"minReplicas": 5}})
        seed = seed_body(wanted(autoscaled=True), live)
        assert seed is not None
        assert seed["spec"] == {"predictor": {"minReplicas": 5}}

    @pytest.mark.parametrize("owner", [("shoal-autoscaler", "Apply"), ("kubectl", "Update")])
    def test_number_with_an_owner_is_not_seeded(self, owner: tuple[str, str]) -> None:
        live = owned((OURS, "Apply", NUMBER), (*owner, NUMBER), spec={"predictor": {"minReplicas": 5}})
        assert seed_body(wanted(autoscaled=True), live) is None

    def test_number_set_by_a_webhook_in_our_name_is_handed_over(self) -> None:
        live = owned((OURS, "Update", NUMBER), spec={"predictor": {"minReplicas": 5}})
        assert seed_body(wanted(autoscaled=True), live) is not None

    def test_pool_without_policy_has_no_seed(self) -> None:
        assert seed_body(wanted(), owned((OURS, "Apply", NUMBER))) is None


class TestConflicts:
    HELD = FieldConflict("them", ".spec.predictor.model.args")

    def forbidden(self, *entries: tuple[str, str, dict[str, Any]], often: bool = False, policy: Any = "report") -> Any:
        return contested_fields(Conflict("", (self.HELD,)), wanted(), owned(*entries), policy, repaired_often=often)

    def test_single_update_by_others_is_drift(self) -> None:
        assert self.forbidden(("them", "Update", {})) == ()

    def test_field_declared_by_others_is_a_conflict(self) -> None:
        assert self.forbidden(("them", "Apply", {})) == (self.HELD,)
        assert self.forbidden(("them", "Apply", {}), policy="force") == ()

    def test_field_set_by_a_webhook_in_our_name_is_no_conflict(self) -> None:
        conflict = Conflict("", (FieldConflict(OURS, ".spec.predictor.timeout"),))
        live = owned((OURS, "Apply", NUMBER), (OURS, "Update", {}))
        assert contested_fields(conflict, wanted(), live, "report", repaired_often=True) == ()

    def test_recurring_update_counts_as_a_controllers(self) -> None:
        assert self.forbidden(("them", "Update", {}), often=True) == (self.HELD,)

    @pytest.mark.parametrize(("autoscaled", "ours"), [(False, True), (True, False)])
    def test_the_autoscalers_number_is_ours_only_without_a_policy(self, autoscaled: bool, ours: bool) -> None:
        conflict = Conflict("", (FieldConflict("shoal-autoscaler", FIELD_TEXT),))
        live = owned(("shoal-autoscaler", "Apply", NUMBER))
        refused = contested_fields(conflict, wanted(autoscaled=autoscaled), live, "report", repaired_often=True)
        assert (refused == ()) is ours

    def test_repairs_expire_after_their_window(self) -> None:
        repairs, ref = Repairs(), ObjectRef("g", "K", "n", "a")
        for second in range(3):
            assert not repairs.is_limit_reached(ref, second)
            repairs.record_repair(ref, second)
        assert repairs.is_limit_reached(ref, 3)
        assert not repairs.is_limit_reached(ref, 1 + REPAIR_WINDOW_S)
        repairs.keep_only(set())
        assert not repairs.is_limit_reached(ref, 3)


def entry(name: str, kind: str = "InferenceService", **values: Any) -> InventoryEntry:
    group = "policy" if kind == "PodDisruptionBudget" else "serving.kserve.io"
    return InventoryEntry(group, kind, "m", name, **{"uid": f"uid-{name}", **values})


class TestRecord:
    RECORD = InventoryRecord(
        token=7,
        entries=(entry("a"), entry("b", "PodDisruptionBudget", wave=-1, keep=True, uid="")),
        last_attempted="main@2",
        last_applied="main@1",
        history=(
            ReconcileAttempt("main@2", "refused", 5.0, 0.5, "because"),
            ReconcileAttempt("main@1", "applied", 1.0),
        ),
        waiting=WaitingWave("main@2", 0, 3.0),
        last_handled_reconcile_at="now",
    )

    def test_what_is_written_is_read(self) -> None:
        assert decode(encode(self.RECORD)) == self.RECORD
        assert decode({}) == InventoryRecord()

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("inventory", "[{"),
            ("inventory", '[{"name": 1}]'),
            ("inventory", "{}"),
            ("history", '[{"revision": "x", "result": "perfect", "ended_unix_s": 1}]'),
            ("fencingToken", "many"),
            ("waiting", "[]"),
        ],
    )
    def test_incomplete_record_is_an_error(self, key: str, text: str) -> None:
        with pytest.raises(Terminal, match="cannot be read"):
            decode({**encode(self.RECORD), key: text})

    def test_history_is_bounded_to_one_line_per_revision(self) -> None:
        record = InventoryRecord()
        for number in range(HISTORY_MAX + 2):
            record = record.with_attempt(ReconcileAttempt(f"main@{number}", "waiting", number))
            record = record.with_attempt(ReconcileAttempt(f"main@{number}", "applied", number))
        assert len(record.history) == HISTORY_MAX
        assert {attempt.result for attempt in record.history} == {"applied"}

    def test_repeated_result_does_not_change_the_record(self) -> None:
        record = InventoryRecord().with_attempt(ReconcileAttempt("main@1", "refused", 1.0, message="x" * 10**6))
        again = record.with_attempt(ReconcileAttempt("main@1", "refused", 2.0, message="x" * 10**6))
        assert again is record
        assert len(record.history[0].message) == MESSAGE_MAX_CHARS

    def test_applied_revision_beside_a_refusal_does_not_change_the_record(self) -> None:
        record = (
            InventoryRecord()
            .with_attempt(ReconcileAttempt("main@1", "applied", 1.0))
            .with_attempt(ReconcileAttempt("main@2", "refused", 2.0))
        )
        again = record.with_attempt(ReconcileAttempt("main@1", "applied", 3.0)).with_attempt(
            ReconcileAttempt("main@2", "refused", 4.0)
        )
        assert again is record
        back = (
            InventoryRecord()
            .with_attempt(ReconcileAttempt("main@1", "applied", 1.0))
            .with_attempt(ReconcileAttempt("main@2", "applied", 2.0))
        )
        assert back.with_attempt(ReconcileAttempt("main@1", "applied", 3.0)).history[0].revision == "main@1"

    def test_the_inventory_is_bounded(self) -> None:
        entries = {each.ref: each for each in (entry(f"n{number}") for number in range(2001))}
        with pytest.raises(Terminal, match="allowed: 2000"):
            InventoryRecord().with_entries(entries)


class TestPruning:
    def plan(
        self, entries: tuple[InventoryEntry, ...], desired: tuple[str, ...], *, consent: str = "", missing: str = ""
    ) -> PrunePlan:
        objects = tuple(
            DesiredObject(
                {"apiVersion": INFERENCE_SERVICE.api_version, "kind": "InferenceService",
                 "metadata": {"name": name, "namespace": "m"}}, 0, "",
            )
            for name in desired
        )  # fmt: skip
        live = {}
        for each in entries:
            body = owned((OURS, "Apply", {}))
            body["metadata"] |= {"name": each.name, "uid": f"uid-{each.name}"}
            live[each.ref] = body
        live.pop(entry(missing).ref, None)
        desired_state = Desired("main@9", (BUDGET, INFERENCE_SERVICE), objects)
        return plan_prune(InventoryRecord(entries=entries, consent=consent), desired_state, live)

    def names(self, plan: PrunePlan) -> list[str]:
        return [ref.name for ref, _ in plan.delete]

    def test_half_of_the_services_may_be_pruned_without_consent(self) -> None:
        four = tuple(entry(name) for name in "abcd")
        assert self.names(self.plan(four, ("a", "b"))) == ["d", "c"]
        assert "3 of 4 services" in self.plan(four, ("a",)).refused
        assert self.names(self.plan(four, ("a",))) == []
        assert self.names(self.plan(four, ("a",), consent="main@9")) == ["d", "c", "b"]

    def test_last_service_is_never_pruned_without_consent(self) -> None:
        assert "nothing is desired" in self.plan((entry("a"),), ()).refused
        assert self.names(self.plan((entry("a"),), (), consent="main@9")) == ["a"]
        assert "nothing is desired" in self.plan((entry("a"),), (), consent="main@8").refused

    def test_as_many_new_services_do_not_outweigh_the_old_ones(self) -> None:
        """A wrong branch may hold as many services as the right one."""
        both = (entry("a"), entry("b"), entry("c", new=True), entry("d", new=True))
        assert "2 of 2 services" in self.plan(both, ("c", "d")).refused
        assert self.names(self.plan(both, ("b", "c", "d"))) == ["a"]
        assert self.names(self.plan(both, ("a", "b", "c"))) == ["d"]

    def test_deletes_in_reverse_order_of_application(self) -> None:
        entries = (entry("a"), entry("a", "PodDisruptionBudget", wave=-1), entry("b", wave=3), entry("k"), entry("l"))
        kinds = [(ref.kind, ref.name) for ref, _ in self.plan(entries, ("k", "l")).delete]
        assert kinds == [("InferenceService", "b"), ("InferenceService", "a"), ("PodDisruptionBudget", "a")]

    def test_missing_objects_leave_the_inventory(self) -> None:
        plan = self.plan((entry("a"), entry("b")), ("a",), missing="b")
        assert [ref.name for ref in plan.forget] == ["b"]

    def test_entry_without_a_uid_is_matched_by_field_manager(self) -> None:
        assert self.names(self.plan((entry("a"), entry("b", uid="")), ("a",))) == ["b"]

    def test_object_with_another_uid_is_not_pruned(self) -> None:
        plan = self.plan((entry("a"), entry("b", uid="older")), ("a",))
        assert self.names(plan) == []
        assert [ref.name for ref in plan.forget] == ["b"]

    def test_kinds_outside_the_scope_leave_the_inventory(self) -> None:
        stays = InventoryEntry("example.com", "Other", "m", "x", "uid-x")
        live = {stays.ref: owned((OURS, "Apply", {}))}
        plan = plan_prune(InventoryRecord(entries=(stays,)), Desired("r", (INFERENCE_SERVICE,), ()), live)
        assert (plan.delete, plan.forget) == ((), (stays.ref,))


def test_fields_without_an_apply_are_none() -> None:
    assert fields_applied_by(owned(), OURS) is None
