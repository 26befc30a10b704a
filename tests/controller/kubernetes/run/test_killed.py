"""SIGKILL after every write of a reconcile: the next controller converges, without orphans or duplicates."""

import json
import signal
import subprocess

import httpx
import pytest

from tests.controller.kubernetes.run.rig import (
    ControllerProcess,
    Rig,
    model_spec,
    populate,
    service_spec,
    settled,
    tenant_spec,
    versions,
)
from tests.controller.kubernetes.run.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(1500)]

QUICK = {"LEASE_S": "3", "RENEW_DEADLINE_S": "2", "LEASE_RETRY_S": "0.3"}
MOST_WRITES = 40


def change_everything(rig: Rig, number: int) -> None:
    """Make a push that causes every kind of write: objects and pools are created, changed and deleted."""
    pool = f"pool-{number}"
    rig.create("InferenceService", pool, service_spec(), labels={"shoal.dev/pool": pool})
    rig.create("Tenant", f"n{number}", tenant_spec(key=f"key-{number}"))
    rig.create("Model", f"n{number}.m", {**model_spec(f"n{number}/m"), "base": pool})
    rig.patch("QuotaPolicy", "free", {"spec": {"weight": 1.0 + number}})
    if number:
        rig.delete("Model", f"n{number - 1}.m")
        rig.delete("Tenant", f"n{number - 1}")
        rig.delete("InferenceService", f"pool-{number - 1}")


def converged(rig: Rig, controller: ControllerProcess, number: int) -> None:
    pools = ["base-a", f"pool-{number}"]
    until(lambda: rig.budgets() == pools, f"a budget for each pool, and no other; {controller.log}")
    until(lambda: rig.get("Model", f"n{number - 1}.m") is None, "what was deleted is gone")
    settled(rig, controller)
    snapshot = rig.snapshot()
    assert snapshot is not None
    assert [pool.name for pool in snapshot.pools] == pools
    assert [tenant.name for tenant in snapshot.tenants] == [f"n{number}", "t0"]
    assert [model.id for model in snapshot.models] == [f"n{number}/m", "t0/m0"]
    assert [quota.weight for quota in snapshot.quotas] == [1.0 + number]
    until(lambda: sorted(each["name"] for each in json.loads(rig.record()["data"]["inventory"])) == pools)


def token(rig: Rig) -> int:
    return int(rig.record().get("data", {}).get("fencingToken", 0))


def test_controller_killed_after_any_write_converges(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    populate(rig, tenants=1, models=1)
    tokens = [0]
    for number, dies_at in enumerate(range(MOST_WRITES)):
        change_everything(rig, number)
        monkeypatch.setenv("MORTAL_AT", str(dies_at))
        victim = rig.controller(module="tests.controller.kubernetes.run.mortal", **QUICK)
        died = dies(victim, rig, number)
        if died:
            heir = rig.controller(**QUICK)
            converged(rig, heir, number)
            assert heir.end(signal.SIGTERM) == 0
        tokens.append(token(rig))
        if not died:
            break
    else:
        raise AssertionError(f"a reconcile of more than {MOST_WRITES} writes")
    assert dies_at > 8, "it died in many places"
    assert tokens == sorted(set(tokens)), "each leader wrote under a token of its own, above all before"
    last = rig.controller(RESYNC_S="0.3", **QUICK)
    converged(rig, last, number)
    until(lambda: last.metric("reconciles_total", result="done") >= 2)
    before, passes = versions(rig), last.metric("reconciles_total", result="done")
    until(lambda: last.metric("reconciles_total", result="done") >= passes + 5)
    assert versions(rig) == before, "no needless writes afterwards"


def dies(victim: ControllerProcess, rig: Rig, number: int) -> bool:
    """Wait for the victim's death and return whether it died; a reconcile with fewer writes converges instead."""

    def over() -> bool:
        if victim.process.poll() is not None:
            return True
        try:
            return rig.budgets() == ["base-a", f"pool-{number}"] and victim.metric("pending_status_writes") == 0
        except (httpx.TransportError, AssertionError):
            return False

    while True:
        until(over, f"it dies or converges; {victim.log}", timeout_s=120)
        try:
            status = victim.process.wait(8)
        except subprocess.TimeoutExpired:
            if over():
                converged(rig, victim, number)
                assert victim.end(signal.SIGTERM) == 0
                return False
        else:
            assert status == -signal.SIGKILL, victim.log
            return True
