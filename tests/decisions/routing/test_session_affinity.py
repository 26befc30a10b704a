"""Where a session went before: for its time, per tenant and pool, and bounded."""

from functions.api.ids import PoolName, ReplicaId, TenantId
from functions.decisions.routing.sessions import SessionAffinity
from tests.gateway.world import Clock

POOL, ACME, GLOBEX = PoolName("base"), TenantId("acme"), TenantId("globex")
A, B = ReplicaId("a"), ReplicaId("b")


def test_a_session_is_remembered_for_its_time() -> None:
    clock = Clock()
    homes = SessionAffinity(clock)
    homes.sent(POOL, ACME, "s", A, 300.0)
    clock.forward(200.0)
    assert homes.replica_of(POOL, ACME, "s") == "a"
    homes.sent(POOL, ACME, "s", A, 300.0)
    clock.forward(299.0)
    assert homes.replica_of(POOL, ACME, "s") == "a"
    clock.forward(1.0)
    assert homes.replica_of(POOL, ACME, "s") is None
    homes.expire()
    assert len(homes) == 0


def test_sessions_of_other_tenants_and_pools_are_others() -> None:
    homes = SessionAffinity(Clock())
    homes.sent(POOL, ACME, "s", A, 300.0)
    homes.sent(POOL, GLOBEX, "s", B, 300.0)
    assert (homes.replica_of(POOL, ACME, "s"), homes.replica_of(POOL, GLOBEX, "s")) == ("a", "b")
    assert homes.replica_of(PoolName("other"), ACME, "s") is None


def test_a_policy_without_session_time_remembers_nothing() -> None:
    homes = SessionAffinity(Clock())
    homes.sent(POOL, ACME, "s", A, 0.0)
    assert len(homes) == 0


def test_a_tenant_with_many_sessions_drives_out_its_own() -> None:
    homes = SessionAffinity(Clock(), max_sessions=64)
    homes.sent(POOL, GLOBEX, "s", B, 300.0)
    for number in range(1000):
        homes.sent(POOL, ACME, f"s{number}", A, 300.0)
    assert len(homes) <= 64 and homes.replica_of(POOL, GLOBEX, "s") == "b"
