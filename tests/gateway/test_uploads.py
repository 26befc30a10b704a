"""Large bodies on their way share what they may hold; small ones, and other tenants, do not suffer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import TenantId
from functions.gateway.errors import Refused
from functions.gateway.http.uploads import FREE_BYTES, Upload, Uploads
from tests.gateway.client_rig import CHAT_BODY, Wire, post
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing
from tests.gateway.lane_steps import answered
from tests.gateway.test_quotas import both_lanes, new_wire
from tests.gateway.world import ACME_KEY, GLOBEX_KEY, limits

MIB = 1024 * 1024
ROOM = limits(uploads_bytes=8 * MIB)
A, B, C = (TenantId(name) for name in "abc")


def uploads(limit_bytes: int = 256 * MIB) -> tuple[Uploads, list[None]]:
    refused: list[None] = []
    return Uploads(limit_bytes, lambda: refused.append(None)), refused


def test_a_tenant_has_at_most_as_much_as_it_leaves_free() -> None:
    room, refused = uploads()
    most = []
    for tenant in (A, B, C):
        had: list[Upload] = []
        with pytest.raises(Refused):
            while True:
                had.append(room.begin(tenant, 4 * MIB, "r"))
                had[-1].came(4 * MIB)
        most.append(sum(upload.held_bytes for upload in had) // MIB)
    assert most == [128, 64, 32]
    assert len(refused) == 3
    assert room.held_bytes == 224 * MIB


def test_what_is_announced_takes_no_room_before_it_comes() -> None:
    room, refused = uploads()
    bodies = [room.begin(A, MIB, "r") for _ in range(256)]
    assert room.held_bytes == 0
    for upload in bodies:
        upload.came(MIB)
        upload.end()
    assert not refused


def test_the_refusal_says_when_to_come_again_and_what_is_taken_now() -> None:
    room, _ = uploads(8 * MIB)
    room.begin(A, 4 * MIB, "r").came(4 * MIB)
    with pytest.raises(Refused) as refused:
        room.begin(A, 4 * MIB, "r")
    answer = refused.value.answer
    assert (answer.status, answer.code) == (503, "overloaded")
    assert answer.retry_after_s in (2, 3)
    assert f"Send it again in {answer.retry_after_s} s" in answer.message and "64 KiB" in answer.message


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.none() | st.integers(0, 4 * MIB), st.integers(0, 4 * MIB)), max_size=12
    ),
    st.data(),
)
def test_whatever_comes_and_ends_what_is_held_is_counted_and_bounded(
    bodies: list[tuple[TenantId, int | None, int]], data: st.DataObject
) -> None:
    room, _ = uploads(16 * MIB)
    held: list[Upload] = []
    for tenant, announced_bytes, came_bytes in bodies:
        try:
            upload = room.begin(tenant, announced_bytes, "r")
            held.append(upload)
            if came_bytes > upload.bound_bytes:
                upload.came(came_bytes)
                assert upload.bound_bytes >= came_bytes
        except Refused:
            assert room.held_bytes > 0
        assert room.held_bytes == sum(each.held_bytes for each in held) <= 16 * MIB
        one_ends: bool = data.draw(st.booleans())
        if held and one_ends:
            ended = held.pop(data.draw(st.integers(0, len(held) - 1)))
            ended.end()
            ended.end()
    for upload in held:
        upload.end()
    assert room.held_bytes == 0


# on the wire


def held(p: Play) -> float | None:
    p.world.gauges.scrape()
    return p.gateway.services.metrics.registry.get_sample_value("shoal_upload_bytes")


async def begun(p: Play, lane: str, size_bytes: int, key: str = ACME_KEY) -> Wire:
    """A body of which all but the last byte has come."""
    wire = await new_wire(p, lane)
    wire >> post(b"", length=size_bytes, key=key) >> b" " * (size_bytes - 1)
    await p.settle()
    return wire


@both_lanes
async def test_what_comes_has_room_or_is_refused_and_holds_none(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    first = await begun(p, lane, 3 * MIB)
    assert held(p) == 3 * MIB
    second = await begun(p, lane, 3 * MIB)
    assert held(p) == 3 * MIB
    assert (second.answer.status, second.answer.code) == (503, "overloaded")
    assert second.answer.headers["retry-after"] in ("2", "3")
    shed = p.gateway.services.metrics.registry.get_sample_value("shoal_shed_total", {"reason": "uploads_full"})
    assert shed == 1
    other = await begun(p, lane, 2 * MIB, GLOBEX_KEY)
    assert not other.answers, "another tenant's has room"
    first >> b" "
    await p.settle()
    assert first.statuses == [400], "it was whole, and is no JSON"
    assert held(p) == 2 * MIB
    other.leaves()
    await p.settle()
    assert held(p) == 0
    third = await begun(p, lane, 3 * MIB)
    assert not third.answers


@both_lanes
async def test_what_is_announced_is_refused_before_it_comes_where_nothing_of_it_has_room(
    play: Playing, lane: str
) -> None:
    p = play("r0", limits=ROOM)
    for _ in range(4):  # whoever announces keeps nobody out
        silent = await new_wire(p, lane)
        silent >> post(b"", length=4 * MIB)
    await begun(p, lane, 4 * MIB)
    wire = await new_wire(p, lane)
    wire >> post(b"", length=4 * MIB)
    await p.settle()
    assert (wire.answer.status, wire.answer.code) == (503, "overloaded")
    assert not silent.answers and held(p) == 4 * MIB


@both_lanes
async def test_small_bodies_pass_while_there_is_no_room(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    await begun(p, lane, 4 * MIB)
    slow = await begun(p, lane, FREE_BYTES)
    assert not slow.answers and held(p) == 4 * MIB
    wire = await new_wire(p, lane)
    await answered(wire)
    await p.settle()
    assert wire.statuses == [200]


@both_lanes
async def test_a_body_without_a_length_takes_room_as_it_comes(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    wire = await new_wire(p, lane)
    wire >> post(b"", transfer_encoding="chunked")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    wire >> chunk
    await p.settle()
    assert held(p) == 0, "64 KiB are free"
    for _ in range(60):
        wire >> chunk
        await p.settle()
    assert held(p) == 61 * 0x10000
    other = await new_wire(p, lane)
    other >> post(b"", transfer_encoding="chunked")
    for _ in range(4):
        other >> chunk
        await p.settle()
    assert (other.answer.status, other.answer.code) == (503, "overloaded"), "of 8 MiB half are the tenant's"
    wire >> b"0\r\n\r\n"
    await p.settle()
    assert wire.statuses == [400] and held(p) == 0


async def test_a_body_that_is_given_up_holds_nothing(play: Playing) -> None:
    p = play("r0", limits=ROOM)
    wire = await begun(p, "fast", 4 * MIB)
    assert held(p) == 4 * MIB
    wire.after(30.0)
    assert wire.answer.code == "request_timeout", "whatever trickles has 30 s"
    assert held(p) == 0
    assert len(wire.lane._body) == 0, "it is let go at once, not with its connection"


async def test_an_expected_body_is_not_asked_for_where_it_has_no_room(play: Playing) -> None:
    p = play("r0", limits=ROOM)
    await begun(p, "fast", 4 * MIB)
    wire = Wire(p) >> post(b"", length=4 * MIB, expect="100-continue")
    assert wire.statuses == [503], "no 100 Continue"
    wire = Wire(p) >> post(b"", length=len(CHAT_BODY), expect="100-continue") >> CHAT_BODY
    await p.connects()
    assert wire.statuses == [100]
