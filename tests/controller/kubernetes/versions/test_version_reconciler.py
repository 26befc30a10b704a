"""A base moves between versions on a real API server: the replicas of each version at each step.

KServe is played by its double, which sets the Deployments' statuses: there is no kubelet here.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from functions.controller.kubernetes.objects import AUTOSCALER_MANAGER, FIELD_MANAGER
from functions.controller.kubernetes.ownership import FIELD, owners
from functions.controller.kubernetes.versions.second_service import VERSIONS_MANAGER, service_name
from functions.decisions.rollout.events import Breached, Promoted, StagePassed, VersionLoaded
from tests.controller.kubernetes.crashes import DyingClient, Killed
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.versions.documents import CAREFUL, SCALED, base, service
from tests.controller.kubernetes.versions.version_rig import POOL, VersionRig
from tests.soak import every

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]

SECOND = service_name("a", "v2", "shoal://a@v2")
NEXT = (service(replicas=4, uri="shoal://a@v2", args="--max-model-len=4096"), base("v1", "v2", stable="v2"), CAREFUL)


@pytest.fixture
def rig(space: Space, tmp_path: Path) -> VersionRig:
    made = VersionRig(space, tmp_path)
    made.settle()
    return made


def to_the_last_stage(rig: VersionRig) -> None:
    rig.rolls_out()
    rig.settle()
    rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed())
    rig.settle()
    rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed(), widens=True)
    rig.settle()


def test_a_base_goes_from_one_version_to_the_next(rig: VersionRig) -> None:
    """The commit names the new weights and moves the channel; no replica of the old version is stopped for it."""
    assert rig.shown() == "v1 4/4"
    assert rig.stored_versions() in {"{}", "None"}, "nothing is on its way"
    rig.declare(*NEXT)
    rig.step()
    assert rig.shown() == "v1 4/4", "it waits for its turn, arguments and all"
    rig.rolls_out()
    rig.settle()
    assert rig.shown() == "v1 4/4, v2 1/1", "while it loads, with one replica more"
    second = rig.services()[SECOND]
    assert second["spec"]["predictor"]["model"]["args"] == ["--max-model-len=4096"], "as it was declared with"
    assert (VERSIONS_MANAGER, "Apply") in owners(second, *FIELD)
    assert rig.fleet.budget(SECOND) is not None
    assert rig.stored_versions() == '{"a":{"total":4,"surge":1}}'
    rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed())
    rig.settle()
    assert rig.shown() == "v1 3/3, v2 2/2"
    assert owners(rig.services()[POOL], *FIELD) == {(AUTOSCALER_MANAGER, "Apply")}, "one writer of the number"
    rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed(), widens=True)
    rig.settle()
    assert rig.shown() == "v1 1/1, v2 4/4" and rig.aimed == {"v2": 4}, "so many are waited for"
    assert not rig.fleet.kserve.restarts, "no replica was started anew by a changed template"
    rig.rolls_out(VersionLoaded(), Promoted("ada"))
    rig.run_reconciler()
    assert rig.shown().startswith("v1 0/"), "what is through goes at once"
    rig.fleet.kserve.settle()
    rig.run_reconciler()
    assert rig.woken, "git's pass may write the service by now"
    rig.settle()
    assert rig.shown() == "v2 4/4", "and all are the pool's own again"
    own = rig.services()[POOL]
    assert own["spec"]["predictor"]["model"]["args"] == ["--max-model-len=4096"]
    assert (FIELD_MANAGER, "Apply") in owners(own, *FIELD), "the number is git's again"
    assert (rig.stored_versions(), rig.fleet.budget(SECOND)) == ("{}", None)
    assert (rig.fewest_ready, rig.most_asked) == (4, 5)
    written = rig.fleet.api.counts.writes
    rig.step()
    assert rig.fleet.api.counts.writes == written, "a fleet at rest costs no write"
    rig.declare(service(replicas=5, uri="shoal://a@v2", args="--max-model-len=4096"), *NEXT[1:])
    rig.settle()
    assert rig.shown() == "v2 5/5"


def test_rolled_back_base_is_restored_in_the_next_pass(rig: VersionRig) -> None:
    rig.declare(*NEXT)
    to_the_last_stage(rig)
    assert rig.shown() == "v1 1/1, v2 4/4"
    rig.rolls_out(VersionLoaded(), StagePassed(), Breached("slow"))
    rig.run_reconciler()
    assert rig.shown().startswith("v1 4/"), "the numbers are back at once; the replica that still runs answers"
    assert rig.services()[SECOND]["spec"]["predictor"]["minReplicas"] == 0
    rig.settle()
    assert rig.shown() == "v1 4/4"
    assert rig.services()[POOL]["spec"]["predictor"]["model"]["storageUri"] == "shoal://a@v1", "still held back"
    assert not rig.fleet.kserve.restarts


def test_commit_without_a_storage_uri_change_moves_in_stages(rig: VersionRig) -> None:
    """The replicas stay with the second service until storageUri follows."""
    rig.declare(service(replicas=4), base("v1", "v2", stable="v2"), CAREFUL)
    to_the_last_stage(rig)
    rig.rolls_out(VersionLoaded(), Promoted("ada"))
    rig.settle()
    assert rig.shown() == "v1 0/0, v2 4/4"
    rig.declare(*NEXT)
    rig.settle()
    assert rig.shown() == "v2 4/4"
    assert set(rig.services()) == {POOL}
    assert rig.fewest_ready == 4


def test_rollout_without_surge_drains_one_replica_per_new_one(space: Space, tmp_path: Path) -> None:
    strategy = "deploymentStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}, "
    rig = VersionRig(space, tmp_path, (service(replicas=2, more=strategy), base("v1", "v2"), CAREFUL))
    rig.settle()
    rig.rolls_out()
    rig.settle()
    assert rig.shown() == "v1 1/1, v2 1/1"
    assert (rig.fewest_ready, rig.most_asked) == (1, 2)


SCALED_POOL = (service(replicas=3), base("v1", "v2"), CAREFUL, SCALED)


def test_autoscaler_size_during_a_rollout_covers_both_services(space: Space, tmp_path: Path) -> None:
    rig = VersionRig(space, tmp_path, SCALED_POOL)
    rig.settle()
    assert rig.reconciler.total_of("a") is None, "nothing is on its way: the number is the autoscaler's"
    rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed())
    rig.settle()
    assert rig.shown() == "v1 2/2, v2 2/2"
    assert rig.reconciler.total_of("a") == 3
    assert rig.reconciler.request_total("a", 6).changed and not rig.reconciler.request_total("a", 6).changed
    rig.settle()
    assert rig.shown() == "v1 4/4, v2 3/3"
    assert rig.stored_versions() == '{"a":{"total":6,"surge":1}}'
    rig.start_controller()
    rig.settle()
    assert rig.shown() == "v1 4/4, v2 3/3", "the next leader knows how many are wanted"
    assert rig.reconciler.total_of("a") == 6
    rig.rolls_out(VersionLoaded(), Breached("slow"))
    rig.settle()
    assert rig.shown() == "v1 6/6"
    assert owners(rig.services()[POOL], *FIELD) == {(AUTOSCALER_MANAGER, "Apply")}
    assert rig.reconciler.total_of("a") is None


def test_rollout_without_spare_accelerator_has_no_surge(space: Space, tmp_path: Path) -> None:
    rig = VersionRig(space, tmp_path, SCALED_POOL, changes={"max_accelerators": 3})
    rig.settle()
    rig.rolls_out()
    rig.settle()
    assert rig.shown() == "v1 2/2, v2 1/1"
    assert rig.most_asked == 3


def test_version_decisions_wait_for_a_publication_of_the_term(rig: VersionRig) -> None:
    """The publications of another leader are unknown: a rollout that looks rolled back may be completed."""
    rig.declare(*NEXT)
    to_the_last_stage(rig)
    rig.rolls_out(VersionLoaded(), Breached("slow"))
    rig.published = False
    rig.start_controller()
    rig.step()
    rig.step()
    assert rig.shown() == "v1 1/1, v2 4/4"


def test_number_declared_by_others_is_reported_and_blocks_the_rollout(
    rig: VersionRig, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"spec": {"predictor": {"minReplicas": 4, "model": {"modelFormat": {"name": "vLLM"}}}}}
    own = rig.services()[POOL]
    head = {key: own[key] for key in ("apiVersion", "kind")}
    named = {"metadata": {key: own["metadata"][key] for key in ("name", "namespace")}}
    rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed())
    rig.settle()
    rig.fleet.apply_as("flux", {**head, **named, **theirs}, force=True)
    rig.run_reconciler()
    assert "leave minReplicas out of what delivers a" in caplog.text
    counts = {name: asked for name, (_, asked, _) in rig.counts().items()}
    assert counts == {"a": 4, "+v2": 2}, "theirs stands, and nothing is added to it"


def test_removed_pool_leaves_the_versions_record(rig: VersionRig) -> None:
    rig.rolls_out(VersionLoaded())
    rig.settle()
    rig.fleet.delete("a")
    rig.run_reconciler()
    assert rig.stored_versions() == "{}"


@every(7)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_controller_killed_at_any_request_is_continued_by_the_next(
    space: Space, tmp_path: Path, after: bool, every: int
) -> None:
    """The controller is killed in passes that begin a rollout, change the shares and roll it back."""
    rig = VersionRig(space, tmp_path)
    rig.settle()
    situations: list[Callable[[], None]] = [
        rig.rolls_out,
        lambda: rig.rolls_out(VersionLoaded(), StagePassed(), StagePassed()),
        lambda: rig.rolls_out(VersionLoaded(), Breached("slow")),
    ]
    wanted = ["v1 4/4, v2 1/1", "v1 3/3, v2 2/2", "v1 4/4"]
    died = True
    for call in range(1, 100, every):
        if not died:
            break
        died = False
        for begin, shown in zip(situations, wanted, strict=True):
            rig.start_controller(DyingClient(space.client, call, after=after))
            begin()
            try:
                rig.step()
            except Killed:
                died = True
            rig.start_controller()
            rig.settle()
            assert rig.shown() == shown, (call, died)
    assert not died, "the last one reached its end"
    assert (rig.fewest_ready, rig.most_asked) == (3, 5), "three of v1, while v2 is taken back"
