"""Statistics of each rollout stage over all gateways: the sum of their heartbeats.

For each (rollout, stage) the book stores the last statistics of every gateway process and adds them on request. A
restarted gateway counts from zero, and the counts of its former process remain. The two newest processes of each
gateway are separate, because both may run during a handover. An older process is added to a sum, and its later
heartbeats are ignored. A newer process is one with a later start by its own clock. The clock may have been set back
between two starts: if both known processes have been silent for SILENT_S, one that seems older counts as their
successor.

Gateways, stages and bytes are bounded. A stage without heartbeats for a day is forgotten, and the one that was silent
longest if the book is full. Gateways repeat all stages periodically, so stages that still run return by themselves.

Worked example (test_evidence_of_a_restarted_gateway_stays): gateway A reports 100 requests, restarts and reports 20;
B reports 50. Together: 170.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from functions.decisions.rollout.evidence import EncodedGroup, GroupStats, TrialEvidence, encoded_group, group_of
from functions.fleet.rollout_heartbeat import RolloutHeartbeat, RolloutHeartbeatInvalid, StageStats, decode, encode

__all__ = ["EvidenceBook", "RolloutHeartbeat", "RolloutHeartbeatInvalid", "StageStats", "decode", "encode"]

MAX_GATEWAYS = 1024
MAX_STAGES = 2048
MAX_BYTES = 64 * 1024 * 1024  # a stage of one gateway is about 5 KB in practice, 70 KB at its worst
FORGET_AFTER_S = 86_400.0
_LOOK_INTERVAL_S = 60.0
SILENT_S = 45.0  # three of a gateway's full reports, which come every 15 s
_PROCESSES_PER_GATEWAY = 2
_CLOSED_REMEMBERED = 64  # closed processes per gateway whose late heartbeats would count twice

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StageStats)


@dataclass(slots=True)
class _Process:
    """One gateway process: its last accepted heartbeat."""

    sequence: int
    heard_unix_s: float


@dataclass(slots=True)
class _Gateway:
    processes: dict[int, _Process] = field(default_factory=dict)  # by incarnation
    # incarnations that were added to the sums, the most recent ones
    closed: dict[int, None] = field(default_factory=dict)

    def accepts_process(self, incarnation: int, now_unix_s: float) -> bool:
        """Return True if a process that is not known yet is to be counted: it was not closed, and either started late
        enough to be one of the two newest, or all known ones are silent."""
        if incarnation in self.closed:
            return False
        known = self.processes.values()
        is_newer = incarnation > max(self.closed, default=-1)
        is_newer = is_newer and (len(known) < _PROCESSES_PER_GATEWAY or incarnation > min(self.processes))
        return is_newer or all(now_unix_s - process.heard_unix_s >= SILENT_S for process in known)

    def process_to_close(self, now_unix_s: float) -> int:
        """Return the incarnation of the process to close: of the silent ones, else of all, the one that started
        first."""
        heard = {incarnation: process.heard_unix_s for incarnation, process in self.processes.items()}
        return min(heard, key=lambda incarnation: (now_unix_s - heard[incarnation] < SILENT_S, incarnation))


@dataclass(slots=True)
class _Stage:
    heard_unix_s: float
    said: dict[tuple[str, int], bytes] = field(default_factory=dict)  # (gateway, incarnation) -> StageStats, encoded
    former: StageStats | None = None  # sum of closed processes
    size_bytes: int = 0


class EvidenceBook:
    """Statistics of all stages. Owned by one event loop. Times are Unix seconds, passed as arguments."""

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}
        self._stages: dict[tuple[str, int], _Stage] = {}
        self._size_bytes = 0
        self._looked_unix_s = 0.0
        self.refused_total = 0

    def receive_message(self, message: bytes, now_unix_s: float) -> bool:
        """Record a message from the bus; return False if it is no heartbeat, is outdated or from a closed process, or
        its gateway exceeds MAX_GATEWAYS."""
        try:
            heartbeat = decode(message)
        except RolloutHeartbeatInvalid:
            self.refused_total += 1
            return False
        if not self._accept(heartbeat, now_unix_s):
            return False
        for said in heartbeat.rollouts:
            self._put(heartbeat, said, now_unix_s)
        self._shrink(now_unix_s)
        return True

    def evidence(self, rollout: str, stage: int) -> TrialEvidence:
        """Return the evidence of all gateways about one stage, empty if there is none. `heard_unix_s` is the last
        heartbeat of any gateway process that has reported this stage."""
        found = self._stages.get((rollout, stage))
        if found is None:
            return TrialEvidence()
        told = [_decoder.decode(raw) for raw in found.said.values()]
        if found.former is not None:
            told.append(found.former)
        heard = [self._gateways[id_].processes[incarnation].heard_unix_s for id_, incarnation in found.said]
        return TrialEvidence(
            candidate=_total([said.candidate for said in told]),
            control=_total([said.control for said in told]),
            heard_unix_s=max(heard, default=found.heard_unix_s),
        )

    def forget(self, rollout: str) -> None:
        """Drop the statistics of a rollout that has ended or begins again."""
        for key in [key for key in self._stages if key[0] == rollout]:
            self._size_bytes -= self._stages.pop(key).size_bytes

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    # Helpers.

    def _accept(self, heartbeat: RolloutHeartbeat, now_unix_s: float) -> bool:
        """Return True if this heartbeat is to be counted, and record the time and sequence of its process. False if it
        is outdated, or there is no room for its process or gateway."""
        gateway = self._gateways.get(heartbeat.gateway_id)
        if gateway is None:
            if len(self._gateways) >= MAX_GATEWAYS and not self._drop_silent_gateway(now_unix_s):
                self.refused_total += 1
                return False
            gateway = self._gateways[heartbeat.gateway_id] = _Gateway()
        process = gateway.processes.get(heartbeat.incarnation)
        if process is None:
            if not gateway.accepts_process(heartbeat.incarnation, now_unix_s):
                return False
            gateway.processes[heartbeat.incarnation] = _Process(heartbeat.sequence, now_unix_s)
            self._close_old(heartbeat.gateway_id, gateway, now_unix_s)
            return True
        if heartbeat.sequence <= process.sequence:
            return False
        process.sequence, process.heard_unix_s = heartbeat.sequence, now_unix_s
        return True

    def _put(self, heartbeat: RolloutHeartbeat, said: StageStats, now_unix_s: float) -> None:
        stage = self._stages.setdefault((said.rollout, said.stage), _Stage(now_unix_s))
        key, raw = (heartbeat.gateway_id, heartbeat.incarnation), _encoder.encode(said)
        grown_bytes = len(raw) - len(stage.said.get(key, b""))
        stage.said[key] = raw
        stage.heard_unix_s = now_unix_s
        stage.size_bytes += grown_bytes
        self._size_bytes += grown_bytes

    def _close_old(self, gateway_id: str, gateway: _Gateway, now_unix_s: float) -> None:
        """Close a gateway's processes until two are left: add their counts to the sums, and remember them, because
        their late heartbeats would count twice."""
        while len(gateway.processes) > _PROCESSES_PER_GATEWAY:
            oldest = gateway.process_to_close(now_unix_s)
            del gateway.processes[oldest]
            gateway.closed[oldest] = None
            while len(gateway.closed) > _CLOSED_REMEMBERED:
                del gateway.closed[min(gateway.closed)]
            for stage in self._stages.values():
                self._move_to_former(stage, (gateway_id, oldest))

    def _move_to_former(self, stage: _Stage, key: tuple[str, int]) -> None:
        raw = stage.said.pop(key, None)
        if raw is None:
            return
        said, before = _decoder.decode(raw), stage.former
        stage.former = said if before is None else _sum(before, said)
        grown_bytes = len(_encoder.encode(stage.former)) - len(raw)
        grown_bytes -= len(_encoder.encode(before)) if before is not None else 0
        stage.size_bytes += grown_bytes
        self._size_bytes += grown_bytes

    def _drop_silent_gateway(self, now_unix_s: float) -> bool:
        """Make room for one more gateway: drop the one silent for longest, but keep its counts in the sums. Return
        False and drop none if no gateway is silent for a day."""
        heard = {id_: max(it.heard_unix_s for it in known.processes.values()) for id_, known in self._gateways.items()}
        quietest = min(heard, key=lambda id_: heard[id_])
        if now_unix_s - heard[quietest] < FORGET_AFTER_S:
            return False
        for incarnation in self._gateways.pop(quietest).processes:
            for stage in self._stages.values():
                self._move_to_former(stage, (quietest, incarnation))
        return True

    def _shrink(self, now_unix_s: float) -> None:
        """Forget stages without a heartbeat for FORGET_AFTER_S, and those silent for longest while the stages exceed
        MAX_STAGES or MAX_BYTES."""
        if now_unix_s - self._looked_unix_s > _LOOK_INTERVAL_S:
            self._looked_unix_s = now_unix_s
            for key in [key for key, stage in self._stages.items() if now_unix_s - stage.heard_unix_s > FORGET_AFTER_S]:
                self._size_bytes -= self._stages.pop(key).size_bytes
        while len(self._stages) > MAX_STAGES or (self._size_bytes > MAX_BYTES and len(self._stages) > 1):
            quietest = min(self._stages, key=lambda key: self._stages[key].heard_unix_s)
            self._size_bytes -= self._stages.pop(quietest).size_bytes


def _total(parts: Sequence[EncodedGroup]) -> GroupStats:
    """Return the sum of one group's statistics over all parts; buckets are added first and become sketches once."""
    return group_of(
        EncodedGroup(
            requests=sum(part.requests for part in parts),
            errors=sum(part.errors for part in parts),
            ttft_ms=_added(part.ttft_ms for part in parts),
            inter_token_ms=_added(part.inter_token_ms for part in parts),
            total_ms=_added(part.total_ms for part in parts),
            gap_shares=_added(part.gap_shares for part in parts),
        )
    )


def _added(sketches: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for buckets in sketches:
        for bucket, count in buckets.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def _sum(one: StageStats, other: StageStats) -> StageStats:
    return StageStats(
        rollout=one.rollout,
        stage=one.stage,
        candidate=encoded_group(_total([one.candidate, other.candidate])),
        control=encoded_group(_total([one.control, other.control])),
    )
