"""Driver of rollouts: judge every active rollout each second, and send its next event to the registry.

All decisions follow from the rows and the evidence, so a restarted controller, or two at the same time, come to the
same conclusion. If two send the same event, the registry accepts one. The driver stores only texts for people, the
replica counts that targets aim at (and repeat), and since when no replica has a base's new version. After a restart
this time starts at zero, so a version without replicas is rolled back later, never sooner. Neighbours:
`functions.decisions.rollout.evaluation` judges; `following` has the rows and receives the answers.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from functions.api.ids import RolloutId, engine_name
from functions.api.snapshot import ModelEntry
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.following import RowsFollower
from functions.controller.snapshot.registry_client import LastHeartbeat, RegistryRefused, RegistryUnavailable, RowMoved
from functions.decisions.rollout.codec import Command
from functions.decisions.rollout.evaluation import Residency, RolloutTimeouts, RolloutVerdict, evaluate
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import finding_text, rollout_text
from functions.decisions.rollout.replica_shares import VersionShares, candidate_targets, share_percent
from functions.fleet.heartbeat import Heartbeat

# Residency of a rollout's two versions, from the heartbeats of the pool's replicas. Pure.


def residency_of(rollout: Rollout, heartbeats: Iterable[Heartbeat]) -> Residency:
    control = engine_name(rollout.model, rollout.from_digest)
    candidate = engine_name(rollout.model, rollout.to_digest)
    ready = [heartbeat for heartbeat in heartbeats if heartbeat.phase == "ready" and heartbeat.pool == rollout.pool]
    since_unix_s = min((heartbeat.incarnation / 1000 for heartbeat in ready), default=0.0)
    if rollout.is_of_base:
        loaded = [heartbeat.weights_digest for heartbeat in ready]
        control_count, candidate_count = loaded.count(rollout.from_digest), loaded.count(rollout.to_digest)
        refusals = adapter_refusals(rollout, ready)
        first = next(iter(refusals), "")
        where = Residency(len(ready), control_count, candidate_count, since_unix_s=since_unix_s)
        return replace(where, refusing=len(refusals), refusal=first)
    refusals = [
        heartbeat.adapter_failures[candidate]
        for heartbeat in ready
        if candidate in heartbeat.adapter_failures and candidate not in heartbeat.adapters
    ]
    return Residency(
        ready=len(ready),
        with_control=sum(control in heartbeat.adapters for heartbeat in ready),
        with_candidate=sum(candidate in heartbeat.adapters for heartbeat in ready),
        with_both=sum(control in heartbeat.adapters and candidate in heartbeat.adapters for heartbeat in ready),
        refusing=len(refusals),
        refusal=next(iter(refusals), ""),
        since_unix_s=since_unix_s,
    )


def adapter_refusals(rollout: Rollout, ready: Iterable[Heartbeat]) -> list[str]:
    """Return, for a base's rollout, adapters that replicas of the new version cannot load although the old version's
    have them: one line, with the first such adapter, for each replica that has any."""
    replicas = tuple(ready)
    loaded = {name for each in replicas if each.weights_digest == rollout.from_digest for name in each.adapters}
    failed = [sorted(each.adapter_failures.items()) for each in replicas if each.weights_digest == rollout.to_digest]
    missing = [[f"{name}: {reason}" for name, reason in failures if name in loaded] for failures in failed]
    return [lines[0] for lines in missing if lines]


INTERVAL_S = 1.0
_CONCURRENT = 8  # concurrent requests to the registry

_log = logging.getLogger(__name__)


class RolloutDriver:
    """Owned by one event loop."""

    def __init__(
        self,
        rows: RowsFollower,
        client: Callable[[], Awaitable[RolloutClient]],
        fleet: Callable[[], Awaitable[tuple[LastHeartbeat, ...] | str]],
        *,
        patience: RolloutTimeouts | None = None,
        interval_s: float = INTERVAL_S,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        may_go_on: Callable[[], bool] = lambda: True,
        on_share: Callable[[], None] = lambda: None,
    ) -> None:
        """If `may_go_on()` is False, bad rollouts are still rolled back and nothing else happens. `on_share` is called
        when the share of traffic that a base's versions bear has changed."""
        self.verdicts: dict[RolloutId, RolloutVerdict] = {}  # last verdicts of the active rollouts
        self.shares: dict[RolloutId, int] = {}  # percent that the replicas of bases' rollouts bear
        self.trouble = ""
        self._passed: dict[RolloutId, int] = {}  # passed stages of bases' rollouts that wait for replicas
        self._aims: dict[RolloutId, int] = {}  # intended replicas of the new version, for bases' rollouts
        self._rows = rows
        self._client = client
        self._fleet = fleet
        self._patience = patience or RolloutTimeouts()
        self._interval_s = interval_s
        self._wall_clock = wall_clock
        self._clock = clock
        self._lost_s: dict[RolloutId, float] = {}  # time since when no replica has a base's new version
        self._may_go_on = may_go_on
        self._on_share = on_share

    async def run(self) -> None:
        """Judge all active rollouts every `interval_s` until cancelled."""
        while True:
            await self.judge_rollouts()
            await asyncio.sleep(self._interval_s)

    async def judge_rollouts(self) -> None:
        """Judge all active rollouts once, and forget what is known of ended ones. Raises no temporary error: that
        becomes `trouble`."""
        active = self._rows.book.active
        self.verdicts = {row.id: self.verdicts[row.id] for row in active if row.id in self.verdicts}
        self.shares = {row.id: self.shares[row.id] for row in active if row.id in self.shares}
        self._aims = {row.id: self._aims[row.id] for row in active if row.id in self._aims}
        self._passed = {row.id: row.stage for row in active if self._passed.get(row.id) == row.stage}
        self._lost_s = {row.id: self._lost_s[row.id] for row in active if row.id in self._lost_s}
        if not active:
            self.trouble = ""
            return
        try:
            await self._judge_all(active)
        except (RegistryUnavailable, RegistryRefused, OSError) as error:
            self._set_trouble(str(error))

    async def _judge_all(self, active: Sequence[Rollout]) -> None:
        heard = await self._fleet()
        if isinstance(heard, str):
            self._set_trouble(heard)
            return
        heartbeats = [each.heartbeat for each in heard if not each.is_silent]
        client, limit, troubles = await self._client(), asyncio.Semaphore(_CONCURRENT), list[str]()

        async def one(row: Rollout) -> None:
            async with limit:
                try:
                    await self._judge(row, heartbeats, client)
                except (RegistryUnavailable, RegistryRefused) as error:
                    troubles.append(str(error))

        async with asyncio.TaskGroup() as group:
            for row in active:
                group.create_task(one(row))
        self._set_trouble(troubles[0] if troubles else "")

    async def _judge(self, row: Rollout, heartbeats: Sequence[Heartbeat], client: RolloutClient) -> None:
        evidence = await client.evidence(row.id) if row.percent else TrialEvidence()
        where = self._with_time(row, residency_of(row, heartbeats))
        where = replace(where, aim=self._aims.get(row.id, 1))
        verdict = evaluate(row, evidence, where, self._wall_clock(), self._patience)
        self.verdicts[row.id] = verdict
        if verdict.widens:
            self._passed[row.id] = row.stage
        elif verdict.kind == "halt" or row.state == "paused":  # its share must not grow
            self._passed.pop(row.id, None)
        if row.is_of_base:
            self._set_share(row, share_percent(row, where.with_candidate, where.with_control, widens=verdict.widens))
        event = verdict.event
        if event is None or not (verdict.kind == "halt" or self._may_go_on()):
            return
        try:
            after = await client.post_event(row.id, Command(event, row.lock_version))
        except RowMoved as error:
            _log.info("another writer was faster: %s", error)
            await self._rows.fetch_changes()
            return
        _log.info("%s %s: %s (%s)", row.id, after.state, verdict.reason, after.model)
        await self._rows.add_rows(after)

    def _with_time(self, row: Rollout, where: Residency) -> Residency:
        """Return `where` with the seconds for which replicas were ready and none had the new version, for a base's
        rollout that was loaded. If one has it or none is ready, the time starts anew and `where` is unchanged, as for
        any other rollout."""
        if not (row.is_of_base and row.loaded and where.lacks_candidate):
            self._lost_s.pop(row.id, None)
            return where
        return replace(where, without_s=self._clock() - self._lost_s.setdefault(row.id, self._clock()))

    @property
    def widening(self) -> frozenset[RolloutId]:
        """Bases' rollouts whose stage has passed and that wait for replicas. They are listed even while one of the
        replicas is lost or unknown to the registry. Otherwise starting replicas would be ended, and fewer would be
        enough to go on."""
        return frozenset(self._passed)

    def set_aim(self, base: ModelEntry, shares: VersionShares) -> None:
        """Record the replicas that a target's pool should have of each version, before the target changes them."""
        # may be called from a thread
        self._aims = {**self._aims, **candidate_targets(base, self._rows.book.active, shares)}

    def _set_share(self, row: Rollout, percent: int) -> None:
        if self.shares.get(row.id, row.percent) != percent:
            self.shares[row.id] = percent
            self._on_share()

    def _set_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("rollouts are held: %s", trouble)
        self.trouble = trouble


SHOWN = 100


def rollouts_in_words(rows: RowsFollower, driver: RolloutDriver, rollouts: tuple[Rollout, ...]) -> dict[str, Any]:
    """Return the rollouts, at most SHOWN, and the troubles as plain values for the control channel; `rollouts` are
    those active or halted when last published."""
    return {
        "registry": {"change": rows.book.change, "trouble": rows.trouble, "contradiction": rows.contradiction},
        "trouble": driver.trouble,
        "count": len(rollouts),
        "listed": [_shown(row, driver.verdicts.get(row.id)) for row in rollouts[:SHOWN]],
    }


def _shown(row: Rollout, verdict: RolloutVerdict | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "model": row.model,
        "channel": row.channel,
        "pool": row.pool,
        "from": row.from_version,
        "to": row.to_version,
        "state": row.state,
        "stage": row.stage,
        "stages": len(row.policy.stages),
        "percent": row.percent,
        "attempt": row.attempt,
        "stage_began_unix_s": row.stage_began_unix_s,
        "words": rollout_text(row),
        "verdict": verdict.reason if verdict is not None else row.reason,
        "conditions": [finding_text(finding) for finding in verdict.findings] if verdict is not None else [],
    }
