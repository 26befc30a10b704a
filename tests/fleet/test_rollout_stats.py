"""EvidenceBook: reports of many gateways, each counted once."""

import random

import pytest

from functions.api.ids import RolloutId
from functions.decisions.rollout.evidence import GroupStats, encoded_group
from functions.fleet import rollout_stats
from functions.fleet.rollout_heartbeat import RolloutHeartbeat, StageStats, encode
from functions.fleet.rollout_stats import FORGET_AFTER_S, SILENT_S, EvidenceBook

ROLLOUT = RolloutId("ro-00000001")
OTHER = RolloutId("ro-00000002")
EMPTY = encoded_group(GroupStats())


def said(requests: int, errors: int = 0, rollout: RolloutId = ROLLOUT, stage: int = 0) -> StageStats:
    stats = GroupStats(requests, errors)
    for number in range(requests):
        stats.total_ms.add(10.0 + number)
    return StageStats(rollout, stage, encoded_group(stats), EMPTY)


def beat(gateway: str, sequence: int, *stages: StageStats, incarnation: int = 1) -> bytes:
    return encode(RolloutHeartbeat(gateway, incarnation, sequence, 1.0, stages))


def requests(book: EvidenceBook, rollout: RolloutId = ROLLOUT, stage: int = 0) -> int:
    evidence = book.evidence(rollout, stage)
    assert evidence.candidate.total_ms.count == evidence.candidate.requests
    return evidence.candidate.requests


def test_unknown_stage_has_no_evidence() -> None:
    evidence = EvidenceBook().evidence(ROLLOUT, 0)
    assert evidence.heard_unix_s is None and evidence.candidate.requests == 0


def test_gateways_add_up_and_each_ones_last_word_counts() -> None:
    book = EvidenceBook()
    assert book.receive_message(beat("a", 1, said(10, 1)), 100.0)
    assert book.receive_message(beat("b", 1, said(5)), 101.0)
    assert book.receive_message(beat("a", 2, said(12, 2)), 102.0)
    evidence = book.evidence(ROLLOUT, 0)
    assert (evidence.candidate.requests, evidence.candidate.errors, evidence.heard_unix_s) == (17, 2, 102.0)
    assert requests(book, stage=1) == 0 and requests(book, OTHER) == 0


def test_duplicate_or_late_heartbeats_change_nothing() -> None:
    book = EvidenceBook()
    assert book.receive_message(beat("a", 2, said(10)), 1.0)
    assert not book.receive_message(beat("a", 2, said(10)), 2.0)
    assert not book.receive_message(beat("a", 1, said(3)), 3.0)
    assert requests(book) == 10
    assert book.evidence(ROLLOUT, 0).heard_unix_s == 1.0


def test_a_beat_without_stages_says_that_the_gateway_is_there() -> None:
    book = EvidenceBook()
    book.receive_message(beat("a", 1, said(10)), 1.0)
    book.receive_message(beat("b", 1), 50.0)
    assert book.evidence(ROLLOUT, 0).heard_unix_s == 1.0, "b has not seen this stage"
    book.receive_message(beat("a", 2), 60.0)
    assert book.evidence(ROLLOUT, 0).heard_unix_s == 60.0
    assert requests(book) == 10


def test_evidence_of_a_restarted_gateway_stays() -> None:
    book = EvidenceBook()
    book.receive_message(beat("a", 9, said(100)), 1.0)
    book.receive_message(beat("a", 1, said(20), incarnation=2), 2.0)
    book.receive_message(beat("b", 1, said(50)), 3.0)
    assert requests(book) == 170


def test_draining_gateway_still_counts_beside_its_successor() -> None:
    book = EvidenceBook()
    book.receive_message(beat("a", 9, said(100)), 1.0)
    book.receive_message(beat("a", 1, said(20), incarnation=2), 2.0)
    assert book.receive_message(beat("a", 10, said(103)), 3.0)
    assert requests(book) == 123


def test_a_gateway_that_restarts_again_and_again_is_counted_once_each_time() -> None:
    book = EvidenceBook()
    for life in range(1, 51):
        assert book.receive_message(beat("a", 1, said(2), incarnation=life), float(life))
        assert book.receive_message(beat("a", 2, said(3), incarnation=life), float(life))
    assert requests(book) == 150
    assert not book.receive_message(beat("a", 3, said(4), incarnation=1), 60.0), "its words are part of the sum"
    assert requests(book) == 150
    assert book.size_bytes < 10 * len(beat("a", 1, said(3)))


def test_a_gateway_whose_clock_was_set_back_is_heard_once_its_former_processes_are_silent() -> None:
    book = EvidenceBook()
    for number, incarnation in enumerate((1_000_000, 1_100_000)):
        assert book.receive_message(beat("a", 1, said(1), incarnation=incarnation), 1000.0 + number)
    assert not book.receive_message(beat("a", 1, said(7), incarnation=500_000), 1010.0), "its predecessor may be alive"
    assert book.receive_message(beat("a", 2, said(100), incarnation=500_000), 1002.0 + SILENT_S)
    assert book.receive_message(beat("a", 3, said(120), incarnation=500_000), 1003.0 + SILENT_S)
    assert requests(book) == 1 + 1 + 120
    assert not book.receive_message(beat("a", 9, said(50), incarnation=1_000_000), 2000.0), "it is part of the sums"
    assert book.receive_message(beat("a", 1, said(10), incarnation=1_200_000), 1004.0 + SILENT_S)
    assert book.receive_message(beat("a", 4, said(130), incarnation=500_000), 1005.0 + SILENT_S), (
        "it drains beside its successor"
    )
    assert requests(book) == 1 + 1 + 130 + 10


def test_any_order_of_any_beats_ends_in_the_same_sums() -> None:
    rng = random.Random(7)
    words = [(f"g{number % 3}", sequence, sequence * (number + 1)) for number in range(3) for sequence in range(1, 8)]
    for _ in range(20):
        rng.shuffle(words)
        book = EvidenceBook()
        for gateway, sequence, count in words + words[:5]:
            book.receive_message(beat(gateway, sequence, said(count)), 1.0)
        assert requests(book) == 7 * (1 + 2 + 3)


@pytest.mark.parametrize("message", [b"", b"nonsense", b"x" * 600_000])
def test_what_is_no_beat_is_dropped_and_counted(message: bytes) -> None:
    book = EvidenceBook()
    assert not book.receive_message(message, 1.0)
    assert book.refused_total == 1 and len(book) == 0


def test_unreported_stage_is_forgotten() -> None:
    book = EvidenceBook()
    book.receive_message(beat("a", 1, said(1)), 0.0)
    book.receive_message(beat("a", 2, said(1, rollout=OTHER)), FORGET_AFTER_S + 1)
    assert requests(book) == 0 and requests(book, OTHER) == 1


def test_stages_are_bounded_and_the_quietest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_stats, "MAX_STAGES", 3)
    book = EvidenceBook()
    for stage in range(5):
        book.receive_message(beat("a", stage + 1, said(1, stage=stage)), float(stage))
    assert [requests(book, stage=stage) for stage in range(5)] == [0, 0, 1, 1, 1]


def test_bytes_are_bounded_and_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    book = EvidenceBook()
    for stage in range(20):
        book.receive_message(beat("a", stage + 1, said(50, stage=stage)), float(stage))
    monkeypatch.setattr(rollout_stats, "MAX_BYTES", book.size_bytes // 2)
    book.receive_message(beat("b", 1), 20.0)
    assert 9 <= len(book) <= 10 and requests(book, stage=19) == 50
    book.forget(ROLLOUT)
    assert (len(book), book.size_bytes) == (0, 0)


def test_gateways_are_bounded_and_a_long_silent_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_stats, "MAX_GATEWAYS", 2)
    book = EvidenceBook()
    book.receive_message(beat("a", 1, said(1)), 0.0)
    book.receive_message(beat("b", 1, said(2)), 80_000.0)
    assert not book.receive_message(beat("c", 1, said(4)), 80_001.0)
    assert book.receive_message(beat("c", 2, said(4)), FORGET_AFTER_S + 1)
    assert requests(book) == 7, "what the silent one said stays"
