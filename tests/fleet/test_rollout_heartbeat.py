"""Rollout heartbeats: valid ones round-trip, invalid ones are refused whole."""

import msgspec
import pytest

from functions.api.ids import RolloutId
from functions.decisions.quantile_sketch import FIRST_BUCKET, LAST_BUCKET
from functions.decisions.rollout.evidence import EncodedGroup, GroupStats, encoded_group
from functions.fleet import rollout_heartbeat
from functions.fleet.rollout_heartbeat import (
    HEARTBEAT_MAX_BYTES,
    MAX_STAGES_PER_HEARTBEAT,
    RolloutHeartbeat,
    RolloutHeartbeatInvalid,
    StageStats,
)

ROLLOUT = RolloutId("ro-00000001")


def group(requests: int = 3, errors: int = 1, *ttft_ms: float) -> EncodedGroup:
    stats = GroupStats(requests, errors)
    for value_ms in ttft_ms:
        stats.ttft_ms.add(value_ms)
    return encoded_group(stats)


def beat(**changes: object) -> RolloutHeartbeat:
    made = RolloutHeartbeat("gw-1", 1000, 1, 5.0, (StageStats(ROLLOUT, 0, group(3, 1, 20.0, 30.0), group()),))
    return msgspec.structs.replace(made, **changes)


def test_a_beat_comes_back_as_it_was() -> None:
    assert rollout_heartbeat.decode(rollout_heartbeat.encode(beat())) == beat()


def test_a_stage_at_its_worst_fits_its_estimate() -> None:
    """Six sketches with every bucket in use; the size limit of a heartbeat allows five such stages."""
    full = dict.fromkeys(range(FIRST_BUCKET, LAST_BUCKET + 1), 10**6)
    worst = EncodedGroup(10**12, 0, full, full, full)
    encoded = rollout_heartbeat.encode(beat(rollouts=(StageStats(ROLLOUT, 0, worst, worst),)))
    assert len(encoded) < HEARTBEAT_MAX_BYTES / 5
    rollout_heartbeat.decode(encoded)


@pytest.mark.parametrize(
    "changes",
    [
        {"gateway_id": ""},
        {"gateway_id": "a b"},
        {"gateway_id": "a\n"},
        {"sequence": -1},
        {"sent_unix_s": -1.0},
        {"schema_version": 2},
        {"rollouts": (StageStats(RolloutId("x"), 0, group(), group()),)},
        {"rollouts": (StageStats(ROLLOUT, -1, group(), group()),)},
        {"rollouts": (StageStats(ROLLOUT, 0, group(1, 2), group()),)},
        {"rollouts": (StageStats(ROLLOUT, 0, group(1, 0, 5.0, 6.0), group()),)},
        {"rollouts": (StageStats(ROLLOUT, 0, EncodedGroup(2, 0, {LAST_BUCKET + 1: 1}), group()),)},
        {"rollouts": (StageStats(ROLLOUT, 0, EncodedGroup(2, 0, {5: 0}), group()),)},
        {"rollouts": (StageStats(ROLLOUT, 0, group(), group()),) * (MAX_STAGES_PER_HEARTBEAT + 1)},
    ],
)
def test_invalid_rollout_heartbeat_is_refused_whole(changes: dict[str, object]) -> None:
    with pytest.raises(RolloutHeartbeatInvalid):
        rollout_heartbeat.decode(rollout_heartbeat.encode(beat(**changes)))


@pytest.mark.parametrize(
    "message",
    [b"", b"{}", b"null", b"\xff", b"[" * 100_000, b" " * (HEARTBEAT_MAX_BYTES + 1), b'{"gateway_id":"a","x":1}'],
)
def test_bytes_that_are_no_beat(message: bytes) -> None:
    with pytest.raises(RolloutHeartbeatInvalid):
        rollout_heartbeat.decode(message)
