"""Assignment of profiled stacks to stages of a request."""

from loadtests.bench.stages import KERNEL, LOOP, shares, stage_of

LANE = "LaneProtocol.data_received (functions/gateway/http/lane.py:125)"
HANDLE = "Gateway.handle (functions/gateway/gateway.py:180)"
OUTER = "main (functions/gateway/__main__.py:16)"


def test_innermost_shoal_frame_decides_the_stage() -> None:
    parse = "parse_object (functions/gateway/intake/json_body.py:44)"
    assert stage_of([OUTER, LANE, HANDLE, parse, "loads (orjson.c:7)"]) == "body: JSON, fields"
    assert stage_of([OUTER, LANE, HANDLE]) == "request handling: the rest"


def test_system_call_is_its_own_stage() -> None:
    assert stage_of([OUTER, LANE, "uv__try_write (stream.c:1)", "__libc_write (write.c:26)"]) == KERNEL


def test_work_outside_requests_has_its_own_stages() -> None:
    assert stage_of([OUTER, "Loop__run (loop.c:1)", "uv__run_timers (timer.c:2)"]) == LOOP
    assert stage_of([OUTER, "ValkeyBus._messages (functions/fleet/valkey_bus.py:9)"]).startswith("heartbeats")


def test_shares_are_of_all_samples() -> None:
    found = shares([f"{OUTER};{LANE} 3", f"{OUTER};{LANE};{HANDLE} 1", ""])
    assert found == {"client's connection: parse, write": 0.75, "request handling: the rest": 0.25}
    assert shares([]) == {}
