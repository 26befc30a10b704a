"""Writes that follow from one read, of which the writer sends only those that change something."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from functions.api.loader import Loaded
from functions.controller.kubernetes.errors import LeadershipLost, Retryable, Stale, Terminal
from functions.controller.kubernetes.objects import Body, Kind
from functions.controller.kubernetes.run import conditions
from functions.controller.kubernetes.run.conditions import PUBLISHED, ScalingStatus
from functions.controller.kubernetes.run.cr_source import ObservedResources, SeenObject
from functions.controller.kubernetes.run.informer import WatchedKind
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.controller.kubernetes.run.selection import SelectionRefusal
from functions.controller.kubernetes.run.status_writer import StatusWriter
from functions.controller.kubernetes.run.writes import FINALIZER, PublicationState, StatusWrite, writes_after
from functions.decisions.rollout.events import Breached, VersionLoaded
from functions.decisions.rollout.lifecycle import Rollout
from tests.decisions.rollout.rollouts import rollout, running

SHOAL = "shoal.dev/v1alpha1"
IN_FORCE = PublicationState(in_force=True)
AWAY = PublicationState(in_force=False, reason="RegistryUnavailable", message="the registry is away")


def obj(name: str = "acme", **more: Any) -> WatchedObject:
    return WatchedObject(name, "shoal", f"uid-{name}", "1", 1, b"{}", **more)


def seen(kind: str, plural: str, stored: WatchedObject, *held_by: str) -> dict[str, SeenObject]:
    return {f"{plural}/{stored.name}": SeenObject(WatchedKind(SHOAL, kind, plural, "shoal"), stored, held_by)}


def looked(objects: Mapping[str, SeenObject], **refusals: SelectionRefusal) -> ObservedResources:
    return ObservedResources(
        Loaded(()), "kubernetes@1", objects, {f"tenants/{name}": each for name, each in refusals.items()}
    )


def due(look: ObservedResources, publication: PublicationState, *, protect: bool = True) -> list[StatusWrite]:
    return list(writes_after(look, publication, protect=protect))


def reasons(writes: list[StatusWrite]) -> list[str]:
    return [
        each.object_status.conditions[0].reason if each.object_status else ",".join(each.finalizers) for each in writes
    ]


def test_a_tenant_gets_a_status_and_no_finalizer() -> None:
    assert reasons(due(looked(seen("Tenant", "tenants", obj())), IN_FORCE)) == ["Published"]


HOLDS = "kubectl holds .spec.predictor.minReplicas, but 3 replicas are wanted; leave minReplicas out"


@pytest.mark.parametrize(("contested", "said"), [("", ("True", "Scaled")), (HOLDS, ("False", "ReplicasContested"))])
def test_unobeyed_policy_status_has_reason_and_start_time(contested: str, said: tuple[str, str]) -> None:
    look = looked(seen("AutoscalingPolicy", "autoscalingpolicies", obj("base")))
    (write,) = writes_after(look, IN_FORCE, scaling={"base": ScalingStatus(3, 2, contested)})
    assert write.object_status is not None
    status = conditions.status_of(write.object_status, 1, {}, "2027-01-01T00:00:00Z")
    assert status is not None
    assert (status["wantedReplicas"], status["liveReplicas"]) == (3, 2)
    found = {each["type"]: each for each in status["conditions"]}
    assert (found["Obeyed"]["status"], found["Obeyed"]["reason"]) == said
    assert contested in found["Obeyed"]["message"]
    assert found["Ready"]["status"] == "True", "it is in force all the same"
    (later,) = writes_after(look, IN_FORCE)  # a new leader, which has read nothing yet
    assert later.object_status is not None
    assert conditions.status_of(later.object_status, 1, status, "2027-01-02T00:00:00Z") is None


def test_all_stages_of_a_rollout_policy_are_shown() -> None:
    document = b'{"spec": {"stages": [{"percent": 1, "duration": "5m"}, {"percent": 10}, {"percent": 100}]}}'
    stored = replace(obj("careful", finalizers=(FINALIZER,)), document=document)
    (write,) = due(looked(seen("RolloutPolicy", "rolloutpolicies", stored)), IN_FORCE)
    assert write.object_status is not None
    status = conditions.status_of(write.object_status, 1, {}, "2027-01-01T00:00:00Z")
    assert status is not None
    assert status["stages"] == "1,10,100"


def test_model_that_changes_a_version_reports_it() -> None:
    words = "acme/bot@v1 is sha256:1 in the API and sha256:2 here: versions do not change"
    publication = replace(IN_FORCE, refused={"models/acme.bot": words}, left_out={"models/acme.bot": "no artifact"})
    stored = obj("acme.bot", finalizers=(FINALIZER,))
    (write,) = due(looked(seen("Model", "models", stored)), publication)
    assert write.object_status is not None
    found = {each.type: (each.status, each.reason, each.message) for each in write.object_status.conditions}
    assert found == {
        "Ready": ("False", "VersionsDoNotChange", words),
        "Stalled": ("True", "VersionsDoNotChange", words),
    }


@pytest.mark.parametrize(("kind", "plural"), [("Model", "models"), ("QuotaPolicy", "quotapolicies")])
def test_referenced_object_gets_a_finalizer(kind: str, plural: str) -> None:
    writes = due(looked(seen(kind, plural, obj(finalizers=("other/one",)))), IN_FORCE)
    assert reasons(writes) == [f"other/one,{FINALIZER}", "Published"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (running(), [("Ready", "Unknown", "RollingOut"), ("Reconciling", "True", "RollingOut")]),
        (
            rollout(VersionLoaded(), Breached("bad")),
            [("Ready", "False", "RolloutHalted"), ("Stalled", "True", "RolloutHalted")],
        ),
    ],
)
def test_model_status_shows_its_rollout(row: Rollout, told: list[tuple[str, str, str]]) -> None:
    model = looked(seen("Model", "models", obj("acme.bot", finalizers=(FINALIZER,))))
    (write,) = due(model, PublicationState(in_force=True, rollouts={"models/acme.bot": row}))
    assert write.object_status is not None
    assert [(each.type, each.status, each.reason) for each in write.object_status.conditions] == told
    assert "acme/bot:stable" in write.object_status.conditions[0].message


def test_finalizer_is_removed_once_the_snapshot_without_the_object_is_in_force() -> None:
    dying = seen("Model", "models", obj(deleting=True, finalizers=(FINALIZER, "other/one")))
    assert due(looked(dying), AWAY) == []
    assert reasons(due(looked(dying), IN_FORCE)) == ["other/one"]


def test_referenced_object_keeps_its_finalizer_and_names_the_references() -> None:
    held = seen("QuotaPolicy", "quotapolicies", obj(deleting=True, finalizers=(FINALIZER,)), *"abcde")
    (write,) = due(looked(held), IN_FORCE)
    assert write.object_status is not None
    assert "a, b, c and 2 more still reference it" in write.object_status.conditions[0].message


def test_finalizers_are_removed_without_protection() -> None:
    marked = seen("Model", "models", obj(finalizers=(FINALIZER,)))
    assert reasons(due(looked(marked), IN_FORCE, protect=False)) == ["", "Published"]


def test_services_are_never_written() -> None:
    watched = WatchedKind("serving.kserve.io/v1beta1", "InferenceService", "inferenceservices", "shoal-models")
    assert due(looked({"inferenceservices/a": SeenObject(watched, obj("a"))}), IN_FORCE) == []


def test_refusal_is_reported_with_and_without_publication() -> None:
    look = looked(seen("Tenant", "tenants", obj()), acme=SelectionRefusal(("spec.tier: bad",), stands_in=True))
    assert reasons(due(look, IN_FORCE)) == reasons(due(look, AWAY)) == ["InvalidKeepsLastGood"]


def test_object_in_force_does_not_report_a_late_publication() -> None:
    status = conditions.status_of(PUBLISHED, 1, {}, "2027-01-01T00:00:00Z")
    assert status is not None
    assert due(looked(seen("Tenant", "tenants", obj(status=status))), AWAY) == []
    assert reasons(due(looked(seen("Tenant", "tenants", obj())), AWAY)) == ["RegistryUnavailable"]


# -- the writer --------------------------------------------------------------------------------------------------------


class Server:
    """A KubeApi for one object: versions, and refusals that a test has prepared."""

    def __init__(self, stored: WatchedObject) -> None:
        self.shown: WatchedObject | None = stored  # the object as the watch shows it
        self.held = stored
        self.sent: list[Any] = []
        self.refusals: list[Exception] = []

    def current(self, _key: str) -> WatchedObject | None:
        return self.shown

    def patch_status(
        self, _kind: Kind, _namespace: str, _name: str, status: Mapping[str, Any], *, resource_version: str = ""
    ) -> Body:
        return self._apply_write(status, resource_version, status=status)

    def merge_patch(self, _kind: Kind, _namespace: str, _name: str, patch: Body) -> Body:
        metadata = patch["metadata"]
        return self._apply_write(patch, metadata["resourceVersion"], finalizers=tuple(metadata["finalizers"]))

    def _apply_write(self, what: Any, version: str, **changes: Any) -> Body:
        if self.refusals:
            raise self.refusals.pop(0)
        if version != self.held.resource_version:
            raise Stale("somebody wrote in between")
        self.sent.append(what)
        self.held = replace(self.held, resource_version=str(int(self.held.resource_version) + 1), **changes)
        return {"metadata": {"resourceVersion": self.held.resource_version}}

    def show(self) -> None:
        """Let the watch show the last write."""
        self.shown = self.held


async def drained(writer: StatusWriter, server: Server, rounds: int = 200) -> None:
    task = asyncio.get_running_loop().create_task(writer.run(server))  # type: ignore[arg-type]
    try:
        for _ in range(rounds):
            await asyncio.sleep(0.01)
            if task.done() or not writer.pending:
                break
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def status_write(stored: WatchedObject) -> StatusWrite:
    return StatusWrite("tenants/acme", Kind(SHOAL, "Tenant"), stored, "status", object_status=PUBLISHED)


async def test_a_status_is_written_once_however_often_it_is_due() -> None:
    server = Server(obj())
    writer = StatusWriter(server.current, per_second=1000)
    writer.submit([status_write(obj())])
    await drained(writer, server)
    assert len(server.sent) == 1
    writer.submit([status_write(obj())])  # not shown by the watch yet
    await drained(writer, server, rounds=5)
    assert len(server.sent) == 1
    server.show()
    await drained(writer, server)
    assert (len(server.sent), writer.pending) == (1, 0)


async def test_a_finalizer_and_a_status_of_one_object_both_arrive() -> None:
    server = Server(obj())
    writer = StatusWriter(server.current, per_second=1000)
    finalizers = StatusWrite("models/acme", Kind(SHOAL, "Model"), obj(), "finalizers", finalizers=(FINALIZER,))
    writer.submit([finalizers, replace(status_write(obj()), key="models/acme")])

    async def watch() -> None:
        for _ in range(50):
            await asyncio.sleep(0.02)
            server.show()

    showing = asyncio.get_running_loop().create_task(watch())
    await drained(writer, server)
    showing.cancel()
    assert server.held.finalizers == (FINALIZER,)
    assert conditions.is_published(server.held.status, 1)


async def test_write_conflict_waits_for_the_new_version() -> None:
    server = Server(obj())
    server.held = replace(server.held, resource_version="7")
    writer = StatusWriter(server.current, per_second=1000)
    writer.submit([status_write(obj())])
    await drained(writer, server, rounds=3)
    assert server.sent == []
    server.show()
    await drained(writer, server)
    assert len(server.sent) == 1


async def test_changed_object_is_left_to_the_next_pass() -> None:
    server = Server(replace(obj(), generation=2))
    writer = StatusWriter(server.current, per_second=1000)
    writer.submit([status_write(obj())])
    assert writer.pending == 0


async def test_retryable_refusals_are_retried_and_others_are_logged() -> None:
    server = Server(obj())
    server.refusals = [Retryable("busy")]
    writer = StatusWriter(server.current, per_second=1000)
    writer.submit([status_write(obj())])
    await drained(writer, server)
    assert len(server.sent) == 1
    server = Server(obj())
    server.refusals = [Terminal("forbidden: grant the verb patch")]
    writer = StatusWriter(server.current, per_second=1000)
    writer.submit([status_write(obj())])
    await drained(writer, server)
    assert server.sent == []
    assert "grant the verb patch" in writer.problem


async def test_the_end_of_the_term_ends_the_writer() -> None:
    server = Server(obj())
    server.refusals = [LeadershipLost("over")]
    writer = StatusWriter(server.current, per_second=1000)
    writer.submit([status_write(obj())])
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(writer.run(server), 30)  # type: ignore[arg-type]
    assert writer.pending == 0
