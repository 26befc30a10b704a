"""Two controllers, one of which leads. A leader stopped past its lease, or killed, never writes beside the next."""

import signal
import time

import httpx
import msgspec
import pytest

from functions.api import snapshot as snapshots
from functions.controller.snapshot.registry_client import FENCE_HEADER
from tests.controller.kubernetes.run.rig import TOKEN, ControllerProcess, Rig, populate, settled, tenant_spec, versions
from tests.controller.kubernetes.run.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(600)]

QUICK = {"LEASE_S": "12", "RENEW_DEADLINE_S": "8", "LEASE_RETRY_S": "0.5"}


def record_token(rig: Rig) -> int:
    return int(rig.record()["data"]["fencingToken"])


def writes_under_a_later_term(rig: Rig, controller: ControllerProcess, than: int) -> bool:
    """Return whether a later term writes, not only the next: on a stalled machine elections may repeat."""
    return record_token(rig) == controller.metric("term_token") > than


def leader_of(first: ControllerProcess, second: ControllerProcess) -> tuple[ControllerProcess, ControllerProcess]:
    until(lambda: first.leads or second.leads, "somebody leads")
    assert not (first.leads and second.leads)
    return (first, second) if first.leads else (second, first)


def test_leader_stopped_during_writes_writes_nothing_after_waking(rig: Rig) -> None:
    """It is stopped while it writes statuses one after the other, with many still to come."""
    populate(rig, tenants=60)
    first = rig.controller(STATUS_WRITES_PER_S="4", **QUICK)
    until(lambda: first.metric("pending_status_writes") > 40, "it is in the middle of its writes")
    term = int(first.metric("term_token"))
    first.send(signal.SIGSTOP)
    second = rig.controller(**QUICK)
    until(lambda: second.leads, "the other takes over")
    settled(rig, second)
    rig.create("Tenant", "t99", tenant_spec(key="k99"))
    settled(rig, second)
    until(lambda: writes_under_a_later_term(rig, second, than=term))
    before = versions(rig)
    rig.create("Tenant", "u0", tenant_spec(key="u0"))  # news for both; only one may write its status
    until(lambda: rig.is_ready("Tenant", "u0"))
    after = versions(rig)
    first.send(signal.SIGCONT)
    until(lambda: first.metric("leader") == 0, "it has noticed")
    writes = first.metric("api_requests", what="writes")
    time.sleep(5)  # time for any write that it might still make
    assert versions(rig) == after
    assert {key for key in after if before.get(key) != after[key]} <= {"record", rig.path("Tenant", "u0")}
    assert first.metric("api_requests", what="writes") == writes
    assert second.leads
    assert f"term {term} is over" in first.log


def test_standby_takes_over_at_once_after_sigterm(rig: Rig) -> None:
    populate(rig)
    pair = rig.controller(LEASE_S="120", RENEW_DEADLINE_S="100"), rig.controller(LEASE_S="120", RENEW_DEADLINE_S="100")
    leader, standby = leader_of(*pair)
    settled(rig, leader)
    assert leader.end(signal.SIGTERM) == 0
    until(lambda: standby.leads, "without waiting for the lease of 120 s")
    rig.create("Tenant", "t9", tenant_spec(key="k9"))
    until(lambda: rig.is_ready("Tenant", "t9"))
    assert record_token(rig) == 2


def test_standby_takes_over_after_sigkill(rig: Rig) -> None:
    populate(rig)
    leader, standby = leader_of(rig.controller(**QUICK), rig.controller(**QUICK))
    settled(rig, leader)
    term = int(leader.metric("term_token"))
    leader.end(signal.SIGKILL)
    rig.create("Tenant", "t9", tenant_spec(key="k9"))
    until(lambda: rig.is_ready("Tenant", "t9"), standby.log)
    until(lambda: writes_under_a_later_term(rig, standby, than=term))


def test_the_registry_refuses_a_publication_of_a_term_that_is_over(rig: Rig) -> None:
    """A deposed leader's delayed request: the registry has seen a later token."""
    populate(rig)
    first = rig.controller(**QUICK)
    settled(rig, first)
    assert first.end(signal.SIGTERM) == 0
    second = rig.controller(**QUICK)
    until(lambda: second.leads)
    rig.create("Tenant", "t9", tenant_spec(key="k9"))
    until(lambda: "t9" in rig.tenants())
    snapshot = rig.snapshot()
    assert snapshot is not None
    late = msgspec.structs.replace(snapshot, epoch=snapshot.epoch + 1, tenants=(), keys=(), models=())
    headers = {"authorization": f"Bearer {TOKEN}", FENCE_HEADER: "1"}
    answer = httpx.put(f"{rig.registry_url}/v1/snapshot", content=snapshots.encode(late), headers=headers, timeout=30)
    assert answer.status_code == 409, answer.text
    assert "t9" in rig.tenants()
