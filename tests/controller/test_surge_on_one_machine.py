"""A surge on one machine takes no slot and no accelerator that another engine has."""

from dataclasses import replace
from pathlib import Path

import pytest

from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import Pool, Target
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import ControllerSettings, LocalSettings
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.surge_room import Machine, find_machine
from functions.controller.process import Controller
from functions.fleet.tasks import Supervised
from tests.controller.conftest import PATIENCE_S, Shop
from tests.controller.test_supervisor import replica_of

WHOLE = Pool("a", 1, "m")
THIRD = Pool("a", 1, "m", args=("--gpu-memory-utilization=0.3",))
ONE = Machine(accelerators=("0",))


def test_engine_with_its_own_accelerator_leaves_no_room() -> None:
    assert "accelerator 0" in ONE.no_room(WHOLE, {"a": 1}, [WHOLE], "vllm")
    assert ONE.no_room(WHOLE, {}, [WHOLE], "vllm") == ""


@pytest.mark.parametrize(("awake", "fits"), [(2, True), (3, False)])
def test_engines_that_share_an_accelerator_leave_its_unused_memory(awake: int, fits: bool) -> None:
    assert (ONE.no_room(THIRD, {"a": awake}, [THIRD], "vllm") == "") == fits


def test_engine_of_another_pool_on_the_same_accelerator_counts() -> None:
    apart = Pool("b", 1, "m", env=(("CUDA_VISIBLE_DEVICES", "1"),))
    two = Machine(accelerators=("0", "1"))
    assert two.no_room(apart, {"a": 1}, [WHOLE, apart], "vllm") == ""
    both = Pool("b", 1, "m", args=("--tensor-parallel-size", "2"))
    assert "accelerator 0" in two.no_room(both, {"a": 1}, [WHOLE, both], "vllm")
    assert "accelerator 1" in two.no_room(apart, {"c": 1}, [apart, Pool("c", 1, "m", args=both.args)], "vllm")


def test_slots_limit_a_surge_only_if_set() -> None:
    assert Machine().no_room(WHOLE, {"a": 30}, [WHOLE], "vllm") == ""
    two = Machine(max_engines=2)
    assert "SHOAL_MAX_ENGINES" in two.no_room(WHOLE, {"a": 1, "b": 1}, [WHOLE], "sim")
    assert two.no_room(WHOLE, {"a": 1}, [WHOLE], "sim") == ""


def test_simulated_engines_need_no_accelerator() -> None:
    assert ONE.no_room(WHOLE, {"a": 5}, [WHOLE], "sim") == ""


def test_accelerators_are_those_visible_in_the_environment(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_machine({}, 3, tmp_path) == Machine(("0", "1", "10"), 3)
    assert find_machine({"CUDA_VISIBLE_DEVICES": " 1 , 10"}, None, tmp_path).accelerators == ("1", "10")
    assert find_machine({"CUDA_VISIBLE_DEVICES": ""}, None, tmp_path).accelerators == ()
    assert find_machine({"CUDA_VISIBLE_DEVICES": "0"}, None, tmp_path / "none").accelerators == ()


def test_surge_of_a_rollout_waits_for_a_slot(tmp_path: Path) -> None:
    """An engine that is draining, or crashed and about to restart, still has its slot."""
    controller = Controller(LocalSettings(state_dir=tmp_path, max_engines=2), ControllerSettings())
    controller._reconciler.retarget(Target("sim"))
    controller._reconciler.set_desired("main@1", (WHOLE,))
    first = controller._supervisor.add(replica_of("a", 0)["engine-a-0"])
    assert controller._may_surge(WHOLE)
    other = controller._supervisor.add(replica_of("a", 1)["engine-a-1"])
    other.state = replace(other.state, phase="backoff")
    assert not controller._may_surge(WHOLE)
    controller._scaling._asleep = frozenset({"a-1"})
    assert controller._may_surge(WHOLE), "what sleeps has none"
    controller._scaling._asleep, first.state = frozenset(), replace(first.state, phase="stopped")
    assert controller._may_surge(WHOLE)


@pytest.mark.servers
async def test_change_checks_room_before_starting_an_extra_replica(shop: Shop, layout: StateLayout) -> None:
    asked: list[str] = []

    def no_room(pool: Pool) -> str:
        asked.append(pool.name)
        return "full"

    made = OfOneEngine(layout, no_room)
    tasks = Supervised(restart_after_s=0.05)
    tasks.forever("converge", lambda: made.run(shop.supervisor, shop.operations))
    for number in ("1", "2"):
        made.desired = replica_of("a", 0, number)
        made.set_desired(f"main@{number}", (WHOLE,))
        assert await shop.supervisor.wait_until(lambda: made.wanted.settled, PATIENCE_S)
        for name in made.desired:  # a replica without its agent is not in service and frees no room
            await shop.reaches(name, "ready")
    assert asked == ["a"]
    assert shop.supervisor.specs()["engine-a-0"].argv[-1] == "2"
    await tasks.close()


class OfOneEngine(Reconciler):
    """Desires one engine and its agent."""

    desired: dict[str, ProcessSpec]

    def __init__(self, layout: StateLayout, no_room: object) -> None:
        super().__init__(
            layout, LocalSettings(), Target("sim"), until_published=_at_once, on_done=lambda *_: None,
            is_paused=lambda: False, counts={}, no_room=no_room,  # type: ignore[arg-type]
        )  # fmt: skip

    def specs(self, former_slots: dict[str, int], pools: object = None) -> dict[str, ProcessSpec]:
        return self.desired


async def _at_once(revision: str) -> None:
    return None
