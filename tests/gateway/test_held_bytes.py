"""Large bodies and answers share a memory bound; small ones and other tenants are unaffected."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import TenantId
from functions.gateway.errors import RequestRejected
from functions.gateway.http.held_bytes import FREE_BYTES, HeldBytes, Hold
from tests.gateway import sse
from tests.gateway.client_rig import CHAT_BODY, Connection, post
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing
from tests.gateway.lane_steps import answered
from tests.gateway.rig import ACME_KEY, BOT_V1, GLOBEX_KEY, limits
from tests.gateway.test_quotas import both_lanes, new_connection

MIB = 1024 * 1024
ROOM = limits(uploads_bytes=8 * MIB)
A, B, C = (TenantId(name) for name in "abc")


class Room(HeldBytes):
    """HeldBytes with its own clock that records its reports."""

    def __init__(self, limit_bytes: int = 256 * MIB) -> None:
        self.now_s = 0.0
        self.refused: list[str] = []
        self.cut = 0
        self.occupied = 0
        super().__init__(
            limits(uploads_bytes=limit_bytes),
            lambda: self.now_s,
            on_refused=self.refused.append,
            on_cut=self._on_cut_one,
            occupy=self._occupied,
        )

    def _on_cut_one(self) -> None:
        self.cut += 1

    def _occupied(self, tenant: TenantId) -> Callable[[], None]:
        self.occupied += 1

        def leave() -> None:
            self.occupied -= 1

        return leave


@dataclass(eq=False)
class Reading:
    """A client whose reading the test controls."""

    unread_bytes: int
    closed: bool = False

    def give_way(self) -> None:
        self.closed = True


def uploads(limit_bytes: int = 256 * MIB) -> tuple[Room, list[str]]:
    room = Room(limit_bytes)
    return room, room.refused


def test_tenant_holds_at_most_what_it_leaves_free() -> None:
    room, refused = uploads()
    most = []
    for tenant in (A, B, C):
        had: list[Hold] = []
        with pytest.raises(RequestRejected):
            while True:
                had.append(room.body(tenant, 4 * MIB, "r"))
                had[-1].reserve_up_to(4 * MIB)
        most.append(sum(upload.held_bytes for upload in had) // MIB)
    assert most == [128, 64, 32]
    assert len(refused) == 3
    assert room.held_bytes == 224 * MIB


def test_announced_body_takes_no_room_before_it_arrives() -> None:
    room, refused = uploads()
    bodies = [room.body(A, MIB, "r") for _ in range(256)]
    assert room.held_bytes == 0
    for upload in bodies:
        upload.reserve_up_to(MIB)
        upload.end()
    assert not refused


def test_rejection_names_retry_after_and_the_accepted_size() -> None:
    room, _ = uploads(8 * MIB)
    room.body(A, 4 * MIB, "r").reserve_up_to(4 * MIB)
    with pytest.raises(RequestRejected) as refused:
        room.body(A, 4 * MIB, "r")
    answer = refused.value.answer
    assert (answer.status, answer.code) == (503, "overloaded")
    assert answer.retry_after_s in (2, 3)
    assert f"Send the request again in {answer.retry_after_s} s" in answer.message and "64 KiB" in answer.message


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.none() | st.integers(0, 4 * MIB), st.integers(0, 4 * MIB)), max_size=12
    ),
    st.data(),
)
def test_held_bytes_are_counted_and_bounded_for_any_sequence(
    bodies: list[tuple[TenantId, int | None, int]], data: st.DataObject
) -> None:
    room, _ = uploads(16 * MIB)
    held: list[Hold] = []
    for tenant, announced_bytes, came_bytes in bodies:
        try:
            upload = room.body(tenant, announced_bytes, "r")
            held.append(upload)
            if came_bytes > upload.bound_bytes:
                upload.reserve_up_to(came_bytes)
                assert upload.bound_bytes >= came_bytes
        except RequestRejected:
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


# answers and clients that read them slowly


def test_bodies_and_answers_share_the_room() -> None:
    room, refused = uploads(16 * MIB)
    room.body(A, 4 * MIB, "r").reserve_up_to(4 * MIB)
    answer = room.answer(A, "r")
    answer.reserve_up_to(4 * MIB)
    with pytest.raises(RequestRejected) as over:
        answer.reserve_up_to(5 * MIB)
    assert (over.value.answer.status, over.value.answer.code) == (503, "no_room_for_answer")
    assert over.value.answer.retry_after_s in (2, 3) and refused == ["answers_full"]
    room.answer(B, "r").reserve_up_to(4 * MIB)


def test_unread_bytes_count_until_they_are_read() -> None:
    room, _ = uploads(16 * MIB)
    reader = Reading(12 * MIB)
    room.add_waiting(reader, A)
    room.add_waiting(reader, A)
    assert (room.held_bytes, room.unread_bytes, room.occupied) == (12 * MIB, 12 * MIB, 1)
    room.remove_waiting(reader)
    room.remove_waiting(reader)
    assert (room.held_bytes, room.unread_bytes, room.occupied) == (0, 0, 0)


def test_small_unread_answers_are_not_counted() -> None:
    room, _ = uploads()
    room.add_waiting(Reading(FREE_BYTES), A)
    assert room.held_bytes == 0 and room.occupied == 0


def test_slow_reader_is_closed_only_when_others_need_its_memory() -> None:
    """64 KiB a second of 8 MiB; at 128 KiB/s it would stay."""
    room, refused = uploads(16 * MIB)
    slow, fast = Reading(8 * MIB), Reading(6 * MIB)
    room.add_waiting(slow, A)
    room.add_waiting(fast, B)
    room.now_s, slow.unread_bytes, fast.unread_bytes = 60.0, 8 * MIB - 60 * 65536, 0
    room.body(B, None, "r").reserve_up_to(MIB)
    assert not slow.closed, "there was room: what the fast one has read counts no more"
    room.body(B, None, "r").reserve_up_to(5 * MIB)
    assert slow.closed and not fast.closed and (room.cut, refused, room.occupied) == (1, [], 1)


def test_largest_slow_reader_is_closed_first_and_no_more_than_needed() -> None:
    room, refused = uploads(16 * MIB)
    small, large, third = Reading(2 * MIB), Reading(9 * MIB), Reading(3 * MIB)
    for reader, tenant in ((small, A), (large, B), (third, C)):
        room.add_waiting(reader, tenant)
    room.now_s = 10.0
    room.body(C, None, "r").reserve_up_to(MIB)
    assert [reader.closed for reader in (small, large, third)] == [False, True, False] and refused == []


def test_new_reader_is_not_closed() -> None:
    room, refused = uploads(16 * MIB)
    reader = Reading(15 * MIB)
    room.add_waiting(reader, A)
    room.now_s = 1.9
    with pytest.raises(RequestRejected):
        room.body(B, None, "r").reserve_up_to(2 * MIB)
    assert not reader.closed and refused == ["uploads_full"]


# on the wire


def held(p: Play) -> float | None:
    p.rig.gauges.scrape()
    return p.gateway.services.metrics.registry.get_sample_value("shoal_upload_bytes")


async def begun(p: Play, lane: str, size_bytes: int, key: str = ACME_KEY) -> Connection:
    """Send a body except for its last byte."""
    connection = await new_connection(p, lane)
    connection >> post(b"", length=size_bytes, key=key) >> b" " * (size_bytes - 1)
    await p.settle()
    return connection


@both_lanes
async def test_body_without_room_is_rejected_and_holds_nothing(play: Playing, lane: str) -> None:
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
async def test_announced_body_without_any_room_is_rejected_before_it_arrives(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    for _ in range(4):  # an announced length alone takes no room
        silent = await new_connection(p, lane)
        silent >> post(b"", length=4 * MIB)
    await begun(p, lane, 4 * MIB)
    connection = await new_connection(p, lane)
    connection >> post(b"", length=4 * MIB)
    await p.settle()
    assert (connection.answer.status, connection.answer.code) == (503, "overloaded")
    assert not silent.answers and held(p) == 4 * MIB


@both_lanes
async def test_small_bodies_pass_while_there_is_no_room(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    await begun(p, lane, 4 * MIB)
    slow = await begun(p, lane, FREE_BYTES)
    assert not slow.answers and held(p) == 4 * MIB
    connection = await new_connection(p, lane)
    await answered(connection)
    await p.settle()
    assert connection.statuses == [200]


@both_lanes
async def test_chunked_body_takes_room_as_it_arrives(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    connection = await new_connection(p, lane)
    connection >> post(b"", transfer_encoding="chunked")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    connection >> chunk
    await p.settle()
    assert held(p) == 0, "64 KiB are free"
    for _ in range(60):
        connection >> chunk
        await p.settle()
    assert held(p) == 61 * 0x10000
    other = await new_connection(p, lane)
    other >> post(b"", transfer_encoding="chunked")
    for _ in range(4):
        other >> chunk
        await p.settle()
    assert (other.answer.status, other.answer.code) == (503, "overloaded"), "of 8 MiB half are the tenant's"
    connection >> b"0\r\n\r\n"
    await p.settle()
    assert connection.statuses == [400] and held(p) == 0


async def test_abandoned_body_holds_nothing(play: Playing) -> None:
    p = play("r0", limits=ROOM)
    connection = await begun(p, "fast", 4 * MIB)
    assert held(p) == 4 * MIB
    connection.after(30.0)
    assert connection.answer.code == "request_timeout", "whatever trickles has 30 s"
    assert held(p) == 0
    assert len(connection.lane._body) == 0, "it is let go at once, not with its connection"


async def test_expect_continue_without_room_gets_503(play: Playing) -> None:
    p = play("r0", limits=ROOM)
    await begun(p, "fast", 4 * MIB)
    connection = Connection(p) >> post(b"", length=4 * MIB, expect="100-continue")
    assert connection.statuses == [503], "no 100 Continue"
    connection = Connection(p) >> post(b"", length=len(CHAT_BODY), expect="100-continue") >> CHAT_BODY
    await p.connects()
    assert connection.statuses == [100]


# answers on the wire


def large(size_bytes: int) -> bytes:
    return sse.whole(BOT_V1, "x" * size_bytes)


async def unread(p: Play, lane: str, size_bytes: int, key: str = ACME_KEY) -> Connection:
    """Get a whole answer of which the client has read nothing."""
    connection = await new_connection(p, lane)
    connection >> post(CHAT_BODY, key=key)
    await p.settle()
    upstream = await p.connects() if p.dials else p.engine
    connection.transport.unread_bytes = size_bytes
    upstream.answers(200, large(size_bytes))
    await p.settle()
    connection.stops_reading()
    await p.settle()
    return connection


def value(p: Play, name: str, **labels: str) -> float:
    p.rig.gauges.scrape()
    return p.gateway.services.metrics.registry.get_sample_value(name, labels) or 0.0


@both_lanes
async def test_unread_answers_are_bounded_together(play: Playing, lane: str) -> None:
    """70 clients that read 30 MB at 17 KB/s made the gateway hold 2 GB."""
    p = play("r0", limits=ROOM)
    first = await unread(p, lane, 3 * MIB)
    assert held(p) == value(p, "shoal_unread_bytes") == 3 * MIB
    second = await unread(p, lane, 3 * MIB)
    assert second.statuses[-1] == 503 and second.answers[-1].code == "no_room_for_answer"
    assert value(p, "shoal_shed_total", reason="answers_full") == 1
    second.transport.unread_bytes = 0
    second.reads_on()
    p.rig.clock.forward(10.0)
    third = await unread(p, lane, 3 * MIB)
    assert third.statuses[-1] == 200 and first.cut, "who reads nothing gives way"
    assert value(p, "shoal_connections_closed_total", reason="slow_reader") == 1
    for connection in (first, second, third):
        connection.leaves()
    await p.settle()
    assert held(p) == 0


@both_lanes
async def test_unread_answer_keeps_its_concurrency_slot(play: Playing, lane: str) -> None:
    p = play("r0", limits=ROOM)
    connection = await unread(p, lane, MIB)
    quotas = p.gateway.services.quotas
    assert quotas.in_flight(TenantId("acme")) == 1
    connection.transport.unread_bytes = 0
    connection.reads_on()
    assert quotas.in_flight(TenantId("acme")) == 0 and held(p) == 0
    connection.leaves()
    await p.settle()


@both_lanes
async def test_a_large_body_counts_until_an_engine_has_answered(play: Playing, lane: str) -> None:
    """It was no longer counted once complete, though a request may wait with it for minutes."""
    p = play("r0", limits=ROOM)
    connection = await new_connection(p, lane)
    body = CHAT_BODY.replace(b'"hi"', b'"' + b"x" * 3 * MIB + b'"')
    connection >> post(body)
    await p.settle()
    assert held(p) is not None and held(p) >= 3 * MIB
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    await p.settle()
    assert connection.statuses == [200] and held(p) == 0
    connection.leaves()
    await p.settle()
