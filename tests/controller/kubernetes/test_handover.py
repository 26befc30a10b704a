"""`minReplicas` changes owner between git and the autoscaler, and the number of pods never changes by itself."""

from collections.abc import Iterator
from functools import partial

import pytest

from functions.controller.kubernetes.objects import AUTOSCALER_MANAGER, FIELD_MANAGER, value_at
from functions.controller.kubernetes.ownership import FIELD, owners
from tests.controller.kubernetes.crashes import killed_at_each_call
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, autoscaling, pool

pytestmark = pytest.mark.servers


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


def owners_of(fleet: Fleet, name: str = "a") -> set[tuple[str, str]]:
    return owners(fleet.service(name) or {}, *FIELD)


def scale(fleet: Fleet, replicas: int) -> None:
    """Apply the autoscaler's one field, as the autoscaler does, without force."""
    body = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "a", "namespace": fleet.space.models},
        "spec": {"predictor": {"minReplicas": replicas}},
    }
    fleet.apply_as(AUTOSCALER_MANAGER, body)


def test_autoscaled_pool_starts_with_its_seed_owned_by_the_autoscaler(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a", replicas=2), autoscaling("a", least=1)))
    assert fleet.replicas("a") == 2
    assert owners_of(fleet) == {(AUTOSCALER_MANAGER, "Apply")}


def test_autoscaler_number_is_kept(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"), autoscaling("a"))
    fleet.converge(desired)
    scale(fleet, 6)
    assert fleet.applier.reconcile(desired).written == ()
    fleet.converge(fleet.desired(pool("a", args="--changed"), autoscaling("a")))
    assert fleet.replicas("a") == 6


def test_adding_a_policy_keeps_the_live_number(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a", replicas=5)))
    with watched(fleet) as numbers:
        fleet.converge(fleet.desired(pool("a", replicas=5), autoscaling("a")))
    assert numbers == {5}
    assert owners_of(fleet) == {(AUTOSCALER_MANAGER, "Apply")}
    scale(fleet, 7)  # no conflict: the applier no longer owns the field
    assert fleet.replicas("a") == 7


def test_removing_a_policy_applies_the_number_in_git_in_one_step(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a", replicas=4), autoscaling("a")))
    scale(fleet, 7)
    with watched(fleet) as numbers:
        fleet.converge(fleet.desired(pool("a", replicas=4)))
    assert numbers <= {7, 4}
    assert owners_of(fleet) == {(FIELD_MANAGER, "Apply")}


def test_removing_a_policy_does_not_count_as_repair(fleet: Fleet) -> None:
    covered, plain = (pool("a"), autoscaling("a")), (pool("a"),)
    for _ in range(4):
        fleet.converge(fleet.desired(*covered))
        scale(fleet, 6)
        assert fleet.converge(fleet.desired(*plain)).result == "applied"


def test_pool_without_a_number_keeps_the_last_one(fleet: Fleet) -> None:
    fleet.converge(fleet.desired(pool("a", replicas=None), autoscaling("a", least=1)))
    scale(fleet, 6)
    fleet.converge(fleet.desired(pool("a", replicas=None)))
    assert fleet.replicas("a") == 6


def test_manual_edit_of_an_autoscaled_number_is_left_to_the_autoscaler(fleet: Fleet) -> None:
    desired = fleet.desired(pool("a"), autoscaling("a"))
    fleet.converge(desired)
    fleet.edit("a", {"spec": {"predictor": {"minReplicas": 8}}})
    assert fleet.applier.reconcile(desired).written == ()
    assert fleet.replicas("a") == 8


@pytest.mark.soak
@pytest.mark.parametrize("every", [1], ids=["each"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.timeout(600)
def test_handover_survives_a_kill_at_every_write(fleet: Fleet, after: bool, every: int) -> None:
    """The controller is killed at each call of a handover and of its reverse; the number is always 5."""
    plain, covered = (pool("a", replicas=5),), (pool("a", replicas=5), autoscaling("a"))
    fleet.converge(fleet.desired(*plain))
    with watched(fleet) as numbers:
        for before, revision in ((plain, covered), (covered, plain)):
            prepare = partial(converge, fleet, before)
            wanted = partial(fleet.desired, *revision)
            for _, desired in killed_at_each_call(fleet, prepare, wanted, after=after, every=every):
                fleet.converge(desired)
    assert numbers == {5}


def converge(fleet: Fleet, documents: tuple[str, ...]) -> None:
    fleet.converge(fleet.desired(*documents))


class watched:  # noqa: N801 - reads as a word of the test
    """Every number that the API server held meanwhile, from a watch of the service, so that none is missed."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._numbers: set[object] = set()

    def __enter__(self) -> set[object]:
        self._from = (self._fleet.service("a") or {})["metadata"]["resourceVersion"]
        return self._numbers

    def __exit__(self, *_: object) -> None:
        self._numbers.update(value_at(each, *FIELD) for each in self._seen())

    def _seen(self) -> Iterator[dict[str, object]]:
        yield from self._fleet.seen_since(self._from, self._fleet.service("a") or {})
