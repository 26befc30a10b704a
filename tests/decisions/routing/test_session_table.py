"""SessionTable: bounded, and each tenant displaces only its own sessions."""

from functions.api.ids import TenantId
from functions.decisions.routing.sessions import SessionTable, session_hash

Table = SessionTable[str, int]


def key(tenant: str, number: int, name: str = "it") -> tuple[str, bytes]:
    return name, session_hash(TenantId(tenant), f"s{number}")


def test_a_tenant_with_many_sessions_loses_its_own() -> None:
    table = Table(4)
    table.put(key("globex", 1), 1)
    for number in range(5):
        table.put(key("acme", number), number)
    assert [table.get(key("acme", number)) for number in range(5)] == [None, None, 2, 3, 4]
    assert (table.get(key("globex", 1)), len(table)) == (1, 4)


def test_tenants_with_many_sessions_lose_equally() -> None:
    table = Table(640)
    for number in range(1000):
        for tenant in ("acme", "globex"):
            table.put(key(tenant, number), number)
        assert len(table) <= 640
    held = [sum(table.get(key(tenant, number)) is not None for number in range(1000)) for tenant in ("acme", "globex")]
    assert sum(held) == len(table) and abs(held[0] - held[1]) <= 10 and sum(held) >= 620
    assert table.get(key("acme", 999)) == table.get(key("globex", 999)) == 999


def test_a_renewed_session_outlives_an_older_one() -> None:
    table = Table(2)
    for number in (0, 1, 0, 2):
        table.put(key("acme", number), number)
    assert [table.get(key("acme", number)) for number in range(3)] == [0, None, 2]


def test_expired_and_dropped_sessions_are_removed() -> None:
    table = Table(100)
    for number in range(10):
        table.put(key("acme", number), number)
        table.put(key("globex", number, "other"), number)
    table.expire(lambda value: value < 5)
    assert len(table) == 10 and table.get(key("acme", 4)) is None and table.get(key("acme", 5)) == 5
    table.drop({"other"})
    assert len(table) == 5 and table.get(key("globex", 9, "other")) is None
    table.expire(lambda value: True)
    assert len(table) == 0
    table.put(key("globex", 1), 7)
    assert len(table) == 1


def test_expiry_scans_many_tenants_in_parts() -> None:
    table = Table(5000)
    for number in range(1200):
        table.put(key(f"t{number}", 1), number)
    left = []
    for _ in range(3):
        table.expire(lambda value: True)
        left.append(len(table))
    assert left[0] > left[1] > left[2] == 0
