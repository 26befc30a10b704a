"""Tokenize queue: bounded, each lesson once, and fair between tenants by bytes."""

import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import TenantId
from functions.gateway.prefix import tokenize_queue
from functions.gateway.prefix.tokenize_queue import MAX_BYTES, MAX_JOBS, SHARE_RATIO, TokenizeQueue


class Lesson(msgspec.Struct, frozen=True):
    tenant: TenantId
    text_blocks: tuple[int, ...]
    body: bytes = b"x"


def lesson(tenant: str, number: int, size_bytes: int = 1) -> Lesson:
    return Lesson(TenantId(tenant), (0, number), bytes(size_bytes))


def drain(queue: TokenizeQueue[Lesson]) -> list[Lesson]:
    taken = []
    while len(queue):
        found = queue.next_job()
        assert found is not None
        taken.append(found)
    return taken


def test_long_prompts_of_one_tenant_do_not_delay_others() -> None:
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    for number in range(3):
        assert queue.put(lesson("a", number, 100_000))
    for number in range(3, 6):
        assert queue.put(lesson("b", number, 1_000))
    assert [found.tenant for found in drain(queue)] == ["a", "b", "b", "b", "a", "a"]


def test_idle_tenant_accumulates_no_credit() -> None:
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    for number in range(20):
        queue.put(lesson("a", number, 1000))
    for _ in range(10):
        queue.next_job()
    for number in range(20, 30):
        queue.put(lesson("b", number, 1000))
    assert [found.tenant for found in drain(queue)][:4] == ["a", "b", "a", "b"]


def test_prompt_is_queued_once() -> None:
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    assert queue.put(lesson("a", 7)) and queue.put(lesson("a", 7)) and len(queue) == 1
    assert queue.next_job() is not None and len(queue) == 0
    assert queue.put(lesson("a", 7)) and len(queue) == 1, "it may come again once it was taken"


def test_tenant_share_of_jobs_and_bytes_is_bounded() -> None:
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    assert sum(queue.put(lesson("a", number)) for number in range(1000)) == MAX_JOBS * SHARE_RATIO
    big = MAX_BYTES // 8
    assert sum(queue.put(lesson("b", 1000 + number, big)) for number in range(8)) == 2
    assert queue.put(lesson("c", 3000, MAX_BYTES // 2)), "a first one may be of any size"
    assert not queue.put(lesson("d", 4000, MAX_BYTES)), "that there is room for"
    assert queue.put(lesson("d", 4001))


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 400), st.integers(0, 4_000_000)), max_size=300))
def test_bounds_hold_and_nothing_is_lost(puts: list[tuple[str, int, int]]) -> None:
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    body = memoryview(bytes(4_000_000))
    put = {}
    for tenant, number, size in puts:
        item = Lesson(TenantId(tenant), (number,), body[:size])  # type: ignore[arg-type]
        if number not in put and queue.put(item):
            put[number] = item
    assert len(queue) == len(put) <= MAX_JOBS
    assert sum(len(item.body) for item in put.values()) <= MAX_BYTES
    assert {item.text_blocks for item in drain(queue)} == {(number,) for number in put}


def test_waiting_thread_is_woken_by_a_job_and_by_close() -> None:
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    taken: list[Lesson | None] = []

    def take_two() -> None:
        taken.extend((queue.next_job(), queue.next_job()))

    thread = threading.Thread(target=take_two)
    thread.start()
    queue.put(lesson("a", 1))
    while not taken and len(queue):
        pass
    queue.close()
    thread.join(60)
    assert [item and item.text_blocks for item in taken] == [(0, 1), None]
    assert not queue.put(lesson("a", 2))


@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_tenant_share_follows_its_constant(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize_queue, "SHARE_RATIO", ratio)
    queue: TokenizeQueue[Lesson] = TokenizeQueue()
    taken = sum(queue.put(lesson("a", number)) for number in range(1000))
    assert taken - 1 < MAX_JOBS * ratio <= taken
