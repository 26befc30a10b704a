"""Which parked processes a machine has, and which engines are forked from them."""

from dataclasses import replace

import pytest

from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool, Target
from functions.controller.local.spec import ProcessSpec
from tests.controller.test_plan import CONTEXT

A = Pool("a", 2, "m", env=(("OMP_NUM_THREADS", "1"),))
SAME = Pool("b", 1, "m", args=("--max-loras=2",), env=A.env)
OTHER = Pool("c", 1, "m", env=(("OMP_NUM_THREADS", "2"),))


def planned(most: int, *pools: Pool, kind: str = "vllm") -> dict[str, ProcessSpec]:
    return plan_fleet(replace(CONTEXT, parked_engines=most), pools, Target(kind), {})  # type: ignore[arg-type]


def parked_in(specs: dict[str, ProcessSpec]) -> list[str]:
    return [name for name, spec in specs.items() if spec.role == "parked"]


def test_no_process_is_parked_without_the_setting() -> None:
    specs = planned(0, A)
    assert not parked_in(specs)
    assert {spec.forked_from for spec in specs.values()} == {None}


def test_parked_process_is_shared_per_environment_despite_other_arguments() -> None:
    specs = planned(8, A, SAME, OTHER)
    first, second = parked_in(specs)
    assert {specs[f"engine-{each}"].forked_from for each in ("a-0", "a-1", "b-0")} == {first}
    assert specs["engine-c-0"].forked_from == second
    assert first.startswith("parked-a-") and second.startswith("parked-c-")


def test_parked_processes_are_bounded_by_the_setting() -> None:
    specs = planned(1, A, OTHER)
    assert len(parked_in(specs)) == 1
    assert specs["engine-c-0"].forked_from is None


def test_parked_process_starts_at_once_for_a_pool_at_zero_and_after_engines_otherwise() -> None:
    zero, serving = planned(1, replace(A, replicas=0)), planned(1, A)
    assert zero[parked_in(zero)[0]].after == ()
    assert serving[parked_in(serving)[0]].after == ("engine-a-0", "engine-a-1")


@pytest.mark.parametrize("kind", ["vllm", "sim"])
def test_engine_spec_does_not_depend_on_parking(kind: str) -> None:
    """Turning the setting on restarts nothing."""
    without, parked = planned(0, A, kind=kind), planned(1, A, kind=kind)
    assert all(parked[name].spec_hash == spec.spec_hash for name, spec in without.items())
    (name,) = parked_in(parked)
    assert parked[name].argv[3] == parked["engine-a-0"].argv[2], "the module that python -m runs"
    assert set(parked[name].env) <= set(parked["engine-a-0"].env)


def test_versions_of_a_base_share_a_parked_process() -> None:
    """The parked process has no compile cache: a replica reads its own compiled artifacts when it starts to work."""
    versions = replace(A, model="m@v1", folders=("m@v1", "m@v2"))
    specs = planned(8, versions)
    assert len(parked_in(specs)) == 1
    assert "VLLM_CACHE_ROOT" not in dict(specs[parked_in(specs)[0]].env)
