"""Ship trace files to a receiver: each row once, despite kills on either side, full disks and bad rows."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.telemetry.trace_files import PartlyWritten, TraceFiles, try_lock
from functions.telemetry.trace_row import decode, encode, rows
from functions.telemetry.trace_shipping import PieceRefused, ReceiverAway, Shipping
from functions.telemetry.trace_sink import TraceSink
from tests.telemetry.test_traces import Ready, row


class Killed(BaseException):
    """The shipping process ends here."""


class Remembering:
    """Receiver like the trace store: it ignores a piece whose name it already has."""

    def __init__(self) -> None:
        self.pieces: dict[str, bytes] = {}
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def receive(self, lines: bytes, name: str) -> None:
        self.before()
        if b"bad" in lines:
            raise PieceRefused("a bad row")
        self.pieces.setdefault(name, lines)
        self.after()

    @property
    def ids(self) -> list[str]:
        return [decode(line).request_id for piece in self.pieces.values() for line in piece.splitlines()]


def lines(*ids: str) -> list[bytes]:
    return [encode(row(each)) for each in ids]


def files(directory: Path, **changes: int) -> TraceFiles:
    return TraceFiles(directory, **{"file_bytes": 1 << 20, "max_bytes": 1 << 24, **changes})


def raising(error: BaseException, times: int) -> Callable[[], None]:
    left = [error] * times

    def act() -> None:
        if left:
            raise left.pop()

    return act


def test_rows_arrive_once_while_they_are_being_written(tmp_path: Path) -> None:
    writing, receiver = files(tmp_path), Remembering()
    shipping = Shipping(tmp_path, "store", receiver)
    for number in range(5):
        writing.write(lines(f"a{number}", f"b{number}"), 1.0)
        shipping.ship()
        shipping.ship()
    assert receiver.ids == [f"{letter}{number}" for number in range(5) for letter in "ab"]
    assert (shipping.written_total, shipping.waiting_bytes) == (10, 0)


@given(st.lists(st.sampled_from(["before", "after", "away", "fine"]), max_size=12), st.integers(300, 3000))
def test_kills_between_any_two_steps_lose_and_double_nothing(
    tmp_path_factory: pytest.TempPathFactory, fates: list[str], piece_bytes: int
) -> None:
    """If the position were written only after the receiver's answer, the same rows would be sent as another piece."""
    directory, receiver = tmp_path_factory.mktemp("kills"), Remembering()
    writing = files(directory, file_bytes=4000)
    written = []
    for number, fate in enumerate([*fates, "fine"]):
        ids = [f"{number}-{each}" for each in range(3)]
        written += ids
        writing.write(lines(*ids), float(number))  # the file grows between a kill and the next try
        errors = {"before": Killed(), "after": Killed(), "away": ReceiverAway("")}
        receiver.before = raising(errors[fate], 1) if fate in ("before", "away") else lambda: None
        receiver.after = raising(errors[fate], 1) if fate == "after" else lambda: None
        try:
            Shipping(directory, "store", receiver, piece_bytes=max(piece_bytes, len(lines("x")[0]) + 20)).ship()
        except (Killed, ReceiverAway):
            continue
    assert sorted(receiver.ids) == sorted(written)


def test_partial_line_waits_for_its_writer_and_is_dropped_without_one(tmp_path: Path) -> None:
    path, receiver = tmp_path / "requests-0000000000001-1.ndjson", Remembering()
    path.write_bytes(b"".join(line + b"\n" for line in lines("whole")) + lines("half")[0][:40])
    shipping = Shipping(tmp_path, "store", receiver)
    with try_lock(path):
        shipping.ship()
        assert (receiver.ids, shipping.dropped_total["torn"], shipping.waiting_bytes) == (["whole"], 0, 40)
    shipping.ship()
    shipping.ship()
    assert (receiver.ids, shipping.dropped_total["torn"], shipping.waiting_bytes) == (["whole"], 1, 0)


def test_a_bad_row_does_not_hold_up_the_others(tmp_path: Path) -> None:
    writing, receiver = files(tmp_path), Remembering()
    writing.write(lines("a", "b", "bad", "c", "d"), 1.0)
    shipping = Shipping(tmp_path, "store", receiver)
    shipping.ship()
    assert sorted(receiver.ids) == ["a", "b", "c", "d"]
    assert (shipping.dropped_total["refused"], shipping.written_total, shipping.waiting_bytes) == (1, 4, 0)


def test_unsent_rows_dropped_for_space_are_counted(tmp_path: Path) -> None:
    receiver = Remembering()
    shipping = Shipping(tmp_path, "store", receiver)
    size = len(lines("0")[0]) + 1
    writing = TraceFiles(tmp_path, file_bytes=1, max_bytes=3 * size + 1, before_removal=shipping.count_lost)
    writing.write(lines("0"), 0.0)
    shipping.ship()
    for number in range(1, 7):
        writing.write(lines(str(number)), float(number))
    shipping.ship()
    lost = shipping.dropped_total["spool"]
    assert lost > 0 and len(receiver.ids) == 7 - lost and receiver.ids[0] == "0"


def test_one_process_ships_a_directory_at_a_time(tmp_path: Path) -> None:
    writing, receiver = files(tmp_path), Remembering()
    writing.write(lines("a"), 1.0)
    with try_lock(tmp_path / "store.lock"):
        Shipping(tmp_path, "store", receiver).ship()
        assert receiver.ids == []
    Shipping(tmp_path, "store", receiver).ship()
    assert receiver.ids == ["a"]


def test_receivers_of_one_directory_do_not_wait_for_each_other(tmp_path: Path) -> None:
    writing, away, well = files(tmp_path), Remembering(), Remembering()
    away.before = raising(ReceiverAway("down"), 100)
    writing.write(lines("a"), 1.0)
    with pytest.raises(ReceiverAway):
        Shipping(tmp_path, "store", away).ship()
    Shipping(tmp_path, "otlp", well).ship()
    assert well.ids == ["a"]


def test_a_position_that_cannot_be_read_sends_all_again(tmp_path: Path) -> None:
    writing, receiver = files(tmp_path), Remembering()
    writing.write(lines("a"), 1.0)
    (tmp_path / "store.position").write_bytes(b"{half")
    Shipping(tmp_path, "store", receiver).ship()
    assert receiver.ids == ["a"]


def test_full_disk_keeps_only_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial line in the middle of a file would merge two rows into one unreadable row."""
    writing, some = files(tmp_path), lines("a", "b", "c")
    room, real = [len(some[0]) + 30], os.write

    def full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(descriptor, data[: room[0]])
        room[0] -= taken
        return taken

    writing.write(lines("first"), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(PartlyWritten) as caught:
            writing.write(some, 1.0)
    assert caught.value.lines == 1
    writing.write(some[1:], 1.0)
    assert [one.request_id for one in rows(tmp_path)] == ["first", "a", "b", "c"]


def test_rows_wait_in_memory_while_the_disk_is_full_and_none_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, tried, real = threading.Event(), threading.Event(), os.write

    def write(descriptor: int, data: bytes) -> int:
        if is_full.is_set():
            tried.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    sink = TraceSink(tmp_path, lambda: 1.0)
    is_full.set()
    monkeypatch.setattr(os, "write", write)
    sink.start()
    for number in range(2000):
        sink.offer(Ready(str(number)))
    assert tried.wait(10)
    is_full.clear()
    sink.close(60.0)
    assert [one.request_id for one in rows(tmp_path)] == [str(number) for number in range(2000)]
    assert (sink.dropped_total, sink.spooled_total) == (0, 2000)
