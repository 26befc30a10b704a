"""If the API server refuses one object, nothing of the revision is applied; every refusal is reported."""

import time
from collections.abc import Iterator

import pytest

from functions.controller.kubernetes.errors import Conflict, KindMissing
from functions.controller.kubernetes.objects import INFERENCE_SERVICE
from functions.controller.kubernetes.outcome import ApplyOutcome
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import INFERENCE_SERVICE as INFERENCE_SERVICE_CRD
from tests.controller.kubernetes.crds import create_crds, delete_crd
from tests.controller.kubernetes.fixtures import Space, foreign_crds, kube_assets, make_space
from tests.controller.kubernetes.fleet import Fleet, autoscaling, pool

pytestmark = pytest.mark.servers


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


def refused(outcome: ApplyOutcome) -> dict[str, str]:
    assert outcome.result == "refused"
    assert outcome.written == ()
    return {refusal.ref.name: str(refusal) for refusal in outcome.refusals}


def test_one_refused_object_blocks_the_revision(fleet: Fleet) -> None:
    reasons = refused(fleet.push(pool("a"), pool("b", more="scaleTarget: many, "), pool("c", more="timeout: soon, ")))
    assert sorted(reasons) == ["b", "c"]
    assert "1.yaml:1" in reasons["b"]
    assert "scaleTarget" in reasons["b"]
    assert fleet.service("a") is None
    assert fleet.budget("a") is None


def test_field_the_server_would_drop_is_refused(fleet: Fleet) -> None:
    reasons = refused(fleet.push(pool("a", more="minReplica: 3, ")))
    assert "spec.predictor.minReplica" in reasons["a"]


def test_a_refused_revision_leaves_the_running_one_untouched(fleet: Fleet) -> None:
    good = fleet.converge(fleet.desired(pool("a")))
    bad = fleet.desired(pool("a", args="--changed"), pool("b", more="timeout: soon, "))
    before = fleet.service("a")
    fleet.applier.reconcile(bad)
    writes = fleet.api.counts.writes
    fleet.applier.reconcile(bad)
    assert fleet.api.counts.writes == writes  # the same refusal again causes no write
    assert fleet.service("a") == before
    record = fleet.store.read()
    assert (record.last_applied, record.last_attempted) == (good.revision, bad.revision)
    assert record.history[0].result == "refused"
    assert "timeout" in record.history[0].message


def test_the_deployment_mode_cannot_change(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    reasons = refused(fleet.push(pool("a").replace("deploymentMode: Standard", "deploymentMode: Knative")))
    assert "from Standard to Knative" in reasons["a"]


def test_conflicting_declarations_are_reported_and_kept(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"), pool("b"))
    fleet.converge(desired)
    body = dict(desired.objects[-1].body)
    theirs = {**body, "spec": {"predictor": {"minReplicas": 9, "model": {"modelFormat": {"name": "vLLM"}}}}}
    fleet.apply_as("flux", theirs, force=True)
    writes = fleet.api.counts.writes
    for _ in range(3):
        outcome = fleet.applier.reconcile(desired)
        reasons = refused(outcome)
    assert "flux holds .spec.predictor.minReplicas" in reasons["b"]
    assert "flux" in outcome.stalled
    assert outcome.refusals[0].may_pass
    assert fleet.replicas("b") == 9
    assert fleet.api.counts.writes == writes + 1  # the record reports the refusal once


def test_conflicts_are_overwritten_with_force(space: Space) -> None:
    fleet = Fleet(space, settings={"conflicts": "force"})
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    theirs = {**desired.objects[-1].body, "spec": {"predictor": {"minReplicas": 9}}}
    fleet.apply_as("flux", theirs, force=True)
    fleet.converge(desired)
    assert fleet.replicas("a") == 2


def test_recurring_edit_is_reported(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"))
    fleet.converge(desired)
    for _ in range(3):
        fleet.edit("a", {"spec": {"predictor": {"minReplicas": 7}}}, manager="other-operator")
        assert fleet.applier.reconcile(desired).result == "applied"
    fleet.edit("a", {"spec": {"predictor": {"minReplicas": 7}}}, manager="other-operator")
    outcome = fleet.applier.reconcile(desired)
    assert isinstance(outcome.refusals[0].error, Conflict)
    assert "probably by a controller" in outcome.stalled
    fleet.clock.now_s += 601
    assert fleet.applier.reconcile(desired).result == "applied"


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server for this file only, which does not know InferenceServices at first."""
    foreign_crds()
    server = ApiServer.start(tmp_path_factory.mktemp("bare"), kube_assets())
    yield server
    server.close()


@pytest.mark.soak
def test_a_crd_that_is_missing_at_the_start_is_waited_for(bare_server: ApiServer) -> None:
    fleet = Fleet(make_space(bare_server))
    desired = fleet.desired(pool("a"), autoscaling("a"))
    outcome = fleet.applier.reconcile(desired)
    assert isinstance(outcome.refusals[0].error, KindMissing)
    assert outcome.refusals[0].may_pass
    assert fleet.budget("a") is None
    names = create_crds(bare_server.client(), foreign_crds() / INFERENCE_SERVICE_CRD)
    fleet.converge(desired)
    assert fleet.replicas("a") == 2
    delete_crd(bare_server.client(), names[0])
    wait_until_not_served(fleet)
    assert isinstance(fleet.applier.reconcile(desired).refusals[0].error, KindMissing)
    create_crds(bare_server.client(), foreign_crds() / INFERENCE_SERVICE_CRD)
    fleet.converge(desired)


def wait_until_not_served(fleet: Fleet) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if not Fleet(fleet.space).api.serves(INFERENCE_SERVICE):
            return
        time.sleep(0.1)
    raise AssertionError("the deleted CRD is still served")
