"""Evidence of rollouts at this gateway: every ended request is counted once, in its stage and group.

A request counts if it named a channel and ended with an answer or a failure of the platform:

    answered    status 200, complete
    failed      500 and above, or an error inside a stream that had begun
    neither     4xx (caller's mistake), 499 (client left), 504 by the caller's own deadline, and 503 for lack of
                capacity: they show nothing about the version

All failures caused by one lost replica count as one (`decisions.rollout.losses`), in either group: broken streams,
and requests on that replica that the old version then answered.

If no replica has the candidate, that is a failure of the candidate only if the candidate is an adapter. A base's
replicas had the version when the stage began, so a replica was lost or ejected, which is counted already. The
controller decides how long the version may be missing. There is one exception: after BLAMED_AFTER failures without
any complete answer here, a missing base counts as a failure. An engine that dies of its first requests is thus found
at its second death. A control version that no replica has is lack of capacity. Worked example
(test_share_of_a_restarting_replica_is_no_evidence): the only replica with v2 is killed with 12
streams. v1 answers 40 requests of v2's share until it is back: 1 failure of v2.

Time to first token counts whenever a first token came. Token gaps and total time count only for complete answers,
without the time in which the client did not read.

A tenant chooses what it sends, and by its sessions the group. If several tenants call a model, one of them counts for
at most as many requests of a group as all others together plus FREE_REQUESTS. Its further requests are not counted.
Worked example (test_one_tenants_share_is_capped): of 1,000 requests of one tenant and 50 of another, 150 and 50
count.

Counts are cumulative since this process first saw the stage. `heartbeats` sends the registry the changes each second
and everything every `WHOLE_EVERY_S` (`functions.fleet.rollout_heartbeat`). Worked example (test_evidence_by_status):
200, 200, 502, 499, 404, 503 `no_capacity` are 3 requests with 1 error.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from functions.api.ids import ModelId, ReplicaId, RolloutId, TenantId
from functions.decisions.catalogue import Catalogue
from functions.decisions.rollout.evidence import EncodedGroup, GroupStats, encoded_group
from functions.decisions.rollout.losses import LOST, Losses
from functions.decisions.rollout.split import Group
from functions.decisions.routing.retry import AttemptFailure
from functions.fleet.rollout_heartbeat import MAX_STAGES_PER_HEARTBEAT, RolloutHeartbeat, StageStats
from functions.gateway.request.request import Admitted, Ended, Timeline
from functions.gateway.routing.splits import Splits, SplitUse
from functions.telemetry.gap_histogram import SKETCH_BUCKETS, GapCounts

WHOLE_EVERY_S = 15.0
MAX_STAGES = 1024  # limit on stages; beyond it the stage that was quiet for longest starts from nothing
FREE_REQUESTS = 100  # free requests of one tenant per group and stage: twice a rollout's default minimum
BLAMED_AFTER = 2  # failures without any answer; a single one may be a machine that was removed
MAX_TENANTS = 256  # tenants per stage with a recorded share; with more tenants, shares are small
FORGET_AFTER_S = 1800.0  # for a passed stage; half of it is longer than any request of that stage may take
_MESSAGE_BUCKETS = 30_000  # about 14 bytes each, so the message stays below a heartbeat's bound

# Error codes of a 503 for lack of capacity, independent of the version.
_WANT_OF_ROOM = frozenset({"no_capacity", "overloaded", "restarting", "not_ready"})
_NOT_LOADED = frozenset({"model_not_ready"})


class Attempted(NamedTuple):
    """Last attempt of a request."""

    replica_id: ReplicaId
    sent_s: float  # monotonic
    failure: AttemptFailure | None = None


class _Failed(NamedTuple):
    use: SplitUse
    tenant: TenantId
    ttft_ms: float | None


_Place = tuple[RolloutId, int, Group]


def judge(status: int, code: str, group: Group) -> Literal["answered", "failed"] | None:
    """Return what an exchange that ended with this status and code shows about the version of its group.

    None means nothing: errors below 500, want of room, or for control a model that is not loaded.
    """
    if status == 200:
        return "answered"
    if status < 500 or code in _WANT_OF_ROOM or (code in _NOT_LOADED and group == "control"):
        return None
    return "failed"


@dataclass(slots=True)
class _Stage:
    model: ModelId
    touched_s: float
    candidate: GroupStats = field(default_factory=GroupStats)
    control: GroupStats = field(default_factory=GroupStats)
    changed: bool = True
    shares: dict[Group, dict[TenantId, int]] = field(default_factory=lambda: {"candidate": {}, "control": {}})

    def try_count(self, group: Group, tenant: TenantId) -> bool:
        """Return True if one more request of this tenant counts, and add it to the tenant's share.

        A tenant that has as many as all others and FREE_REQUESTS does not count, unless it is the only one.
        """
        shares = self.shares[group]
        own = shares.get(tenant, 0)
        others = self.group(group).requests - own
        if own >= others + FREE_REQUESTS and not self._is_only(tenant):
            return False
        if own or len(shares) < MAX_TENANTS:
            shares[tenant] = own + 1
        return True

    def _is_only(self, tenant: TenantId) -> bool:
        return all(shares.keys() <= {tenant} for shares in self.shares.values())

    def group(self, group: Group) -> GroupStats:
        return self.candidate if group == "candidate" else self.control

    @property
    def has_answered(self) -> bool:
        """True if at least one counted request of the candidate was answered without an error."""
        return self.candidate.requests > self.candidate.errors

    @property
    def has_only_failed(self) -> bool:
        return self.candidate.errors >= BLAMED_AFTER and not self.has_answered


class RolloutEvidence:
    """Counted requests per rollout stage and group. Owned by one event loop."""

    def __init__(
        self,
        gateway_id: str,
        incarnation: int,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        heard_s: Callable[[ReplicaId], float],
    ) -> None:
        """Start without stages. `heard_s` returns the time of the last bytes from a replica with requests."""
        self._gateway_id = gateway_id
        self._incarnation = incarnation
        self._clock = clock
        self._wall_clock = wall_clock
        self._heard_s = heard_s
        self._losses: Losses[_Place, _Failed] = Losses()
        self._stages: OrderedDict[tuple[RolloutId, int], _Stage] = OrderedDict()  # ordered by last change, oldest first
        self._sequence = 0
        self._whole_s = float("-inf")

    def ended(
        self,
        use: SplitUse,
        tenant: TenantId,
        answer: tuple[int, str],
        timeline: Timeline,
        *,
        token_gaps: GapCounts = (),
        attempted: Attempted | None = None,
    ) -> None:
        """Count an exchange that its caller did not end, if it says something about its version.

        `answer` is its final status and code.
        """
        verdict = judge(*answer, use.group)
        if verdict is None:
            return
        ttft_ms = (timeline.first_token_s - timeline.received_s) * 1000 if timeline.first_token_s else None
        if verdict == "failed":
            if answer[1] in _NOT_LOADED:
                self.candidate_unavailable(use, tenant)
            else:
                self._failed(_Failed(use, tenant, ttft_ms), attempted)
            return
        if self._losses and attempted is not None:
            self._count(self._losses.answered(attempted.replica_id, attempted.sent_s, self._clock()))
        stats = self._counted(use, use.group, tenant)
        if stats is None:
            return
        stats.requests += 1
        if ttft_ms is not None:
            stats.ttft_ms.add(ttft_ms)
        stats.total_ms.add((timeline.ended_s - timeline.received_s - timeline.paused_s) * 1000)
        if token_gaps:
            stats.add_gaps([(SKETCH_BUCKETS[gap], times) for gap, times in token_gaps])

    def candidate_unavailable(self, use: SplitUse, tenant: TenantId) -> None:
        """Count a failure of the candidate because no replica has it; for base weights only if all its requests failed.

        The request then counts for control too, or is rejected.
        """
        stage = self._stages.get((use.rollout, use.stage))
        if not _is_of_base(use) or (stage is not None and stage.has_only_failed):
            self._failed(_Failed(use, tenant, None), None)

    def candidate_failed(self, use: SplitUse, tenant: TenantId, attempted: Attempted) -> None:
        """Count a failure of the candidate that no other replica has, so that control answers the request.

        The request of a draining replica does not count for a base whose candidate has answered.
        """
        stage = self._stages.get((use.rollout, use.stage))
        is_drained = attempted.failure is AttemptFailure.ABORTED and stage is not None and stage.has_answered
        if is_drained and _is_of_base(use):
            return  # a draining replica (for example on a spot machine) rejects requests that it has not started
        self._failed(_Failed(use, tenant, None), attempted)

    def stats(self, rollout: RolloutId, stage: int) -> tuple[GroupStats, GroupStats] | None:
        """Return this gateway's statistics of candidate and control, or None if the stage is unknown."""
        found = self._stages.get((rollout, stage))
        return (found.candidate, found.control) if found is not None else None

    def heartbeats(self) -> list[RolloutHeartbeat]:
        """Return the heartbeats with the stages that have changed, or every WHOLE_EVERY_S with all.

        The list is empty without stages; otherwise it has at least a heartbeat without stages, as a sign of life.
        """
        now_s = self._clock()
        self._decide(now_s)
        whole = now_s - self._whole_s >= WHOLE_EVERY_S
        if whole:
            self._whole_s = now_s
        said = [self._stage_stats(key, stage) for key, stage in self._stages.items() if whole or stage.changed]
        if not self._stages:
            return []
        return [self._heartbeat(part) for part in _parts(said)] or [self._heartbeat(())]

    def forget_passed(self, is_split: Callable[[RolloutId, ModelId, int], bool]) -> None:
        """Drop stages that are not in the snapshot and have had no ended request for a while.

        A current stage is refreshed even if quiet: restarted counts would take back what was reported.
        """
        now_s = self._clock()
        for (rollout, number), stage in list(self._stages.items()):
            if now_s - stage.touched_s <= FORGET_AFTER_S / 2:
                return  # the remaining stages are younger
            if is_split(rollout, stage.model, number):
                stage.touched_s = now_s
                self._stages.move_to_end((rollout, number))
            elif now_s - stage.touched_s > FORGET_AFTER_S:
                del self._stages[rollout, number]

    def resend_all(self) -> None:
        """Let the next `heartbeats` return all stages, because earlier ones may be lost."""
        self._whole_s = float("-inf")

    # internals

    def _failed(self, failed: _Failed, attempted: Attempted | None) -> None:
        """Count a failure. If its replica was lost, `Losses` decides later how many failures the loss counts as.

        `attempted` is None if no replica was tried.
        """
        place = failed.use.rollout, failed.use.stage, failed.use.group
        if attempted is None or attempted.failure not in LOST:
            self._count([(place, failed)])
            return
        now_s = self._clock()
        self._decide(now_s)
        replica_id, sent_s, begun = attempted.replica_id, attempted.sent_s, failed.ttft_ms is not None
        self._count(self._losses.failed(replica_id, sent_s, place, failed, now_s, begun=begun))

    def _decide(self, now_s: float) -> None:
        if self._losses:
            self._count(self._losses.collect_decided(now_s, self._heard_s))

    def _count(self, failures: list[tuple[_Place, _Failed]]) -> None:
        for (_, _, group), (use, tenant, ttft_ms) in failures:
            stats = self._counted(use, group, tenant)
            if stats is not None:
                stats.requests += 1
                stats.errors += 1
                if ttft_ms is not None:
                    stats.ttft_ms.add(ttft_ms)

    def _counted(self, use: SplitUse, group: Group, tenant: TenantId) -> GroupStats | None:
        """Return the group's statistics for one more request of this tenant, or None if its share is used up.

        An unknown stage is added; beyond MAX_STAGES the least recently used one is dropped.
        """
        key = (use.rollout, use.stage)
        stage = self._stages.get(key)
        if stage is None:
            stage = self._stages[key] = _Stage(use.model, self._clock())
            while len(self._stages) > MAX_STAGES:
                self._stages.popitem(last=False)
        stage.touched_s = self._clock()
        self._stages.move_to_end(key)
        if not stage.try_count(group, tenant):
            return None
        stage.changed = True
        return stage.group(group)

    def _stage_stats(self, key: tuple[RolloutId, int], stage: _Stage) -> StageStats:
        stage.changed = False
        return StageStats(key[0], key[1], encoded_group(stage.candidate), encoded_group(stage.control))

    def _heartbeat(self, said: tuple[StageStats, ...]) -> RolloutHeartbeat:
        self._sequence += 1
        return RolloutHeartbeat(self._gateway_id, self._incarnation, self._sequence, self._wall_clock(), said)


class Rollouts:
    """Rollouts of the current snapshot: the version for each request, and the evidence."""

    def __init__(
        self,
        gateway_id: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        heard_s: Callable[[ReplicaId], float],
    ) -> None:
        self.splits = Splits(clock)
        self.evidence = RolloutEvidence(gateway_id, int(wall_clock() * 1000), clock, wall_clock, heard_s)
        self._catalogue: Catalogue | None = None

    def swap(self, catalogue: Catalogue) -> None:
        """Apply a new snapshot. A rollout that is not in it has ended: its session pins are dropped."""
        self._catalogue = catalogue
        self.splits.forget_ended(self.is_split)

    def sweep(self) -> None:
        self.splits.expire()
        self.evidence.forget_passed(self.is_split)

    def is_split(self, rollout: RolloutId, model: ModelId, stage: int | None = None) -> bool:
        """Return True if the current snapshot sends part of the model's requests to this rollout (and stage)."""
        entry = self._catalogue.models.get(model) if self._catalogue is not None else None
        splits = entry.splits if entry is not None else ()
        return any(split.rollout == rollout and stage in (None, split.stage) for split in splits)

    def may_fall_back(self, admitted: Admitted) -> bool:
        """Return True if the old version of a model in rollout may answer this request instead of the new one."""
        use = admitted.split
        return self.splits.may_fall_back(use) or (use is not None and self._is_rolled_back(use, admitted))

    def falls_back(self, admitted: Admitted, attempted: Attempted | None) -> None:
        """Record that the old version is used, because no other replica than those that failed has the new one.

        Requests outside a rollout or without output are ignored.
        """
        if admitted.split is None or admitted.route.output is None:
            return
        if attempted is None:
            self.evidence.candidate_unavailable(admitted.split, admitted.caller.tenant)
        else:
            self.evidence.candidate_failed(admitted.split, admitted.caller.tenant, attempted)

    def answering(self, admitted: Admitted) -> None:
        """Pin the session of a request in rollout to the version whose stream now begins at the client."""
        if admitted.split is not None:
            self.splits.answering(admitted.split)

    def ended(self, ended: Ended) -> None:
        """If the request was for a channel in rollout, pin its session to the version that answered, and count the
        request if its outcome says something about that version.
        """
        split = ended.admitted.split
        if split is None:
            return
        if ended.status == 200 or ended.begun:
            self.splits.answering(split)
        if ended.admitted.route.output is not None and not ended.gave_up:
            tenant = ended.admitted.caller.tenant
            answer, last = (ended.status, ended.code), ended.prediction
            failure = ended.failures[-1] if ended.failures else None
            attempted = Attempted(last.replica.id, ended.sent_s, failure) if last is not None else None
            self.evidence.ended(split, tenant, answer, ended.timeline, token_gaps=ended.token_gaps, attempted=attempted)

    def _is_rolled_back(self, use: SplitUse, admitted: Admitted) -> bool:
        """Return True if the rollout of a candidate's request has ended with the channel at the old version."""
        if self._catalogue is None or use.group == "control" or self.is_split(use.rollout, use.model):
            return False
        model = self._catalogue.resolve(admitted.caller.tenant, use.control.requested)
        return model is not None and model.digest == use.control.digest and model.weights in (None, use.control.weights)


def _is_of_base(use: SplitUse) -> bool:
    """Return True if the rollout is of a pool's base weights; the request may be for an adapter of these."""
    return use.model == ModelId(use.control.pool)


def _parts(said: list[StageStats]) -> Iterator[tuple[StageStats, ...]]:
    """Split the stages into parts that each fit into one heartbeat."""
    part: list[StageStats] = []
    buckets = 0
    for stats in said:
        weight = _buckets(stats.candidate) + _buckets(stats.control)
        if part and (len(part) >= MAX_STAGES_PER_HEARTBEAT or buckets + weight > _MESSAGE_BUCKETS):
            yield tuple(part)
            part, buckets = [], 0
        part.append(stats)
        buckets += weight
    if part:
        yield tuple(part)


def _buckets(group: EncodedGroup) -> int:
    return len(group.ttft_ms) + len(group.gap_shares) + len(group.total_ms)
