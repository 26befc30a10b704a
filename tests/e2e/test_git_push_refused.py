"""Invalid manifests pushed to a running fleet are rejected; the output of `git push` names place and mistake."""

import json
from typing import Any

import pytest

from tests.api.invalid_manifests import INVALID, Invalid
from tests.e2e.background_load import background_load
from tests.fleets import Fleet, wait_until
from tests.soak import every

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]


def what_runs(fleet: Fleet) -> dict[str, Any]:
    status = fleet.status()
    return {
        "revision": status["revision"]["desired"],
        "tip": fleet.tip(),
        "epoch": (status["snapshot"]["epoch"], status["snapshot"]["gateway_epoch"]),
        "processes": {name: (entry["pid"], entry["restarts"]) for name, entry in fleet.processes().items()},
        "history": status["revision"]["history"],
    }


def missing_in(told: str, case: Invalid) -> list[str]:
    """Return the parts of the expected message that are missing from the output."""
    place = f"{case.path}:{case.line}:{case.column}" if case.line else case.path
    return [words for words in (f"{place}: ", *case.says) if words not in told]


@every(9)
def test_every_invalid_manifest_is_refused_with_its_place_and_the_fleet_untouched(sim_fleet: Fleet, every: int) -> None:
    """The same manifests are tested without a fleet in tests/api/test_invalid_manifests.py."""
    assert len(INVALID) >= 60
    wait_until("the fleet is settled", sim_fleet.is_applied, 120)
    before = what_runs(sim_fleet)
    wrong: dict[str, Any] = {}
    with background_load(sim_fleet, {"smollm2-135m": "acme"}) as load:
        for case in INVALID[::every]:
            pushed = sim_fleet.push({case.path: case.content}, case.name)
            missing = missing_in(pushed.stderr, case)
            if pushed.returncode == 0 or missing:
                wrong[case.name] = {"accepted": pushed.returncode == 0, "missing": missing, "told": pushed.stderr[:800]}
    load.check(at_least=5)
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)
    assert what_runs(sim_fleet) == before
    print(f"{len(INVALID[::every])} invalid manifests refused; {load.asked} requests meanwhile, none failed")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: &a [*a]\n", b"[" * 50_000, b"\x00" * 10, b"? " * 10_000])
def test_hostile_bytes_are_refused_in_bounded_words(sim_fleet: Fleet, content: bytes) -> None:
    before = sim_fleet.tip()
    pushed = sim_fleet.push({"policies/hostile.yaml": content}, "hostile")
    assert pushed.returncode != 0
    assert "policies/hostile.yaml" in pushed.stderr
    assert len(pushed.stderr) < 20_000
    assert sim_fleet.tip() == before
