"""Versions of bases on a cluster, for the git source: replicas of each version move step by step with the rollouts.

A pass runs every two seconds while something moves, this process leads and is not suspended:
    1  list the services of pools whose base has versions, and their Deployments
    2  decide the replicas of each version, and of each service now (`versions.plan`)
    3  store the wanted totals (`versions.counts_store`) before acting on them
    4  write services that lose replicas, then those that gain some; then remove services that are no longer needed

From the first step to the last, the pool's number is written here alone: the autoscaler sets the total
(`request_total`), and git's number is left out (`applicable`). `turn` serialises the three writers of a pool's service.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from functions.api.declared import policy_minima
from functions.api.ids import PoolName
from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import Loaded
from functions.api.snapshot import ModelEntry, Snapshot
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict, Gone, KindMissing, LeadershipLost, Retryable, Terminal
from functions.controller.kubernetes.objects import INFERENCE_SERVICE, Body
from functions.controller.kubernetes.render import Desired, DesiredObject
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.kubernetes.scaling import ReplicaWrite
from functions.controller.kubernetes.versions.cluster import PoolWriter, SeenPool, observe_pools
from functions.controller.kubernetes.versions.counts_store import CountsStore, PoolCount
from functions.controller.kubernetes.versions.holding_back import is_held_back, with_live_model, without_number
from functions.controller.kubernetes.versions.plan import PoolStep, pool_step
from functions.controller.kubernetes.versions.second_service import pool_of, uri_of
from functions.controller.kubernetes.versions.staged import StagedBase, staged_bases, weights_uri
from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.rollouts.following import RowsFollower
from functions.decisions.capacity.service import accelerators_of
from functions.decisions.rollout.replica_shares import VersionShares, wanted_shares

LOOK_EVERY_S = 2.0
REST_S = 10.0  # while nothing moves: a commit's change is a rollout by then, or can wait so long
_KUBE_ERRORS = (Retryable, Conflict, Terminal, KindMissing, Gone)  # not LeadershipLost: that ends the term

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Declarations:
    """The parts of one revision that determine how many replicas a pool has."""

    revision: str
    staged: Mapping[str, StagedBase]
    replicas: Mapping[str, int]  # by pool, as its service declares
    scaled: Collection[str]  # pools with an AutoscalingPolicy

    @classmethod
    def of(cls, revision: str, loaded: Loaded) -> "_Declarations":
        services = [service.value for service in loaded.objects_of(InferenceService) if service.value.pool]
        replicas = {str(service.pool): service.bounds_under(None)[0] for service in services}
        return cls(revision, staged_bases(loaded.objects), replicas, policy_minima(loaded.objects).keys())


class VersionReconciler:
    """Reconciler for all terms, owned by one event loop. The state of a term is read anew."""

    def __init__(
        self,
        settings: KubernetesSettings,
        rows: RowsFollower,
        *,
        wanted: Callable[[], tuple[str, Loaded] | None],
        published: Callable[[], Snapshot | None],
        driver: Callable[[], RolloutDriver],
        is_suspended: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        """`wanted` returns the revision in force and its objects, `published` the registry's snapshot. `wake` is
        called when git's version of a pool's own service may be written again."""
        self.turn = asyncio.Lock()
        self._settings = settings
        self._rows = rows
        self._wanted = wanted
        self._published = published
        self._driver = driver
        self._is_suspended = is_suspended
        self._wake = wake
        self._counts: dict[str, PoolCount] = {}  # by moving pool, as stored on the cluster
        self._asked: dict[str, int] = {}  # by moving pool, the autoscaler's current number
        self._declared: dict[str, Body] = {}  # the pools' own services as git has them
        self._declarations = _Declarations("", {}, {}, ())
        self._writer: PoolWriter | None = None  # for the current term
        self._store: CountsStore | None = None  # for the current term
        self._woken: dict[str, str] = {}  # by pool, the weights for which `wake` was called
        self._said: dict[str, str] = {}

    # -- for the other writers of these services -----------------------------------------------------------------------

    def load(self, api: KubeApi) -> None:
        """Read which pools move and their totals, once for each term (each `api`). Blocks."""
        if self._writer is None or self._writer.api is not api:
            store = CountsStore(api, self._settings.namespace)
            self._counts, self._asked, self._woken = store.read(), {}, {}
            self._store, self._writer = store, PoolWriter(api, self._settings.conflicts, set())

    def total_of(self, pool: str) -> int | None:
        """Return the wanted total of replicas of a moving pool; None for any other, whose service has its number."""
        count = self._counts.get(pool)
        return None if count is None else self._asked.get(pool, count.total)

    def request_total(self, pool: str, total: int) -> ReplicaWrite:
        """Set the wanted total of a moving pool, from the next pass on; return it as a write, changed if it was another
        one."""
        changed = self.total_of(pool) != total
        self._asked[pool] = total
        return ReplicaWrite(total, changed=changed)

    @property
    def surges(self) -> Mapping[str, int]:
        """Number of replicas that each moving pool may have beyond its wanted total; pools without any are left out."""
        return {pool: count.surge for pool, count in self._counts.items() if count.surge}

    def applicable(self, api: KubeApi, loaded: Loaded, desired: Desired) -> Desired:
        """Return git's desired objects as they may be applied now: a service keeps its live weights while it has
        replicas of a version that the base has or had, and a moving pool's has no number of its own. Blocks."""
        self.load(api)
        staged = staged_bases(loaded.objects)
        services = [each for each in desired.objects if each.ref.kind == INFERENCE_SERVICE.kind]
        self._declared = {pool_of(each.body): each.body for each in services}
        if not staged and not self._counts:
            return desired
        seen = observe_pools(api, self._settings.models_namespace, {*staged, *self._counts})
        return replace(desired, objects=tuple(self._applicable(each, staged, seen) for each in desired.objects))

    def _applicable(
        self, wanted: DesiredObject, staged: Mapping[str, StagedBase], seen: Mapping[str, SeenPool]
    ) -> DesiredObject:
        pool = pool_of(wanted.body)
        there = seen.get(pool) if wanted.ref.kind == INFERENCE_SERVICE.kind else None
        if there is None or there.found.service != wanted.ref.name:
            return wanted
        own, applied = there.found.own, wanted
        known = self._uris_of(pool, staged[pool], own.uri) if pool in staged else set()
        words = ""
        if is_held_back(wanted, there.own, known, max(own.asked, own.pods)):
            applied = with_live_model(wanted, there.own)
            words = f"{wanted.ref.name} has replicas of {own.uri}: {uri_of(wanted.body)} waits until it has none"
        self._log_trouble(f"{pool} is held back", words, logging.INFO)
        total = self.total_of(pool)
        return applied if total is None else without_number(applied, total)

    def _uris_of(self, pool: str, staged: StagedBase, live: str) -> set[str]:
        """Return the `shoal://` weights that the base declares or is published with. Before a snapshot is known, the
        live ones count."""
        snapshot = self._published()
        base = _base(snapshot, pool)
        published = _uris(base).values() if base is not None else [live] if snapshot is None else []
        return {*staged.uris.values(), *published} - {""}

    # -- passes -------------------------------------------------------------------------------------------------------

    async def run(self, api: KubeApi) -> None:
        """Run passes until the term ends with LeadershipLost: frequent ones while a pool moves or a rollout is active,
        otherwise one every REST_S; none while suspended."""
        rested_s = REST_S
        while True:
            is_due = bool(self._counts) or bool(self._rows.book.active) or rested_s >= REST_S
            if is_due and not self._is_suspended():
                await self._attempt(api)
                rested_s = 0.0
            await asyncio.sleep(LOOK_EVERY_S)
            rested_s += LOOK_EVERY_S

    async def _attempt(self, api: KubeApi) -> None:
        """Run a pass. Only LeadershipLost is raised: other errors are logged, unexpected ones with their traceback, and
        must not end the term."""
        try:
            await self.run_pass(api)
            self._log_trouble("the cluster", "")
        except LeadershipLost:
            raise
        except _KUBE_ERRORS as error:
            self._log_trouble("the cluster", f"versions of bases stay as they are: {error}")
        except Exception:
            _log.exception("unexpected error in a pass over the versions of bases")

    async def run_pass(self, api: KubeApi) -> None:
        """Run one pass, and wake the source if git's objects may be applied."""
        async with self.turn:
            may_be_applied = await asyncio.to_thread(self._run_pass, api)
        if may_be_applied:
            self._wake()

    def _run_pass(self, api: KubeApi) -> bool:
        """Run one pass. Return True if git's objects may be applied that could not be before. Blocks."""
        self.load(api)
        revision, snapshot = self._wanted(), self._published()
        if revision is None or snapshot is None or not self._rows.book.is_known:
            return False
        if revision[0] != self._declarations.revision:
            self._declarations = _Declarations.of(*revision)
        pools = {*self._declarations.staged, *self._counts}
        counted = self._declarations.scaled if self._settings.max_accelerators is not None else ()
        seen = observe_pools(api, self._settings.models_namespace, {*pools, *counted}) if pools else {}
        steps = {pool: self._step(pool, seen, snapshot) for pool in sorted(pools & seen.keys())}
        former = self._counts
        self._save_counts(seen, {pool: step for pool, step in steps.items() if step is not None})
        for pool, decided in steps.items():
            if decided is not None and pool in {*former, *self._counts} and self._writer is not None:
                trouble = self._writer.carry_out(seen[pool], decided[1], self._declared.get(pool))
                self._log_trouble(pool, f"{pool}: {trouble}" if trouble else "")
        return self._may_be_applied(former.keys() - self._counts.keys(), seen)

    def _step(self, pool: str, seen: Mapping[str, SeenPool], snapshot: Snapshot) -> tuple[PoolCount, PoolStep] | None:
        """Return the pool's wanted total and surge, and its next step, or None while they are unknown."""
        there, base = seen[pool], _base(snapshot, pool)
        if not _has_versions(there):
            return None
        total = self._total(pool, there)
        surge = self._counts[pool].surge if pool in self._counts else 0
        decided = self._decided(base, there, total, surge)
        if decided is not None and not decided.is_settled and not surge and self._may_surge(pool, there, seen):
            surge = 1
            decided = self._decided(base, there, total, surge)
        if decided is None:
            return None
        return PoolCount(total, 0 if decided.is_settled else surge), decided

    def _total(self, pool: str, there: SeenPool) -> int:
        if pool in self._declarations.scaled:
            known = self.total_of(pool)
            return there.found.own.asked if known is None else known
        return self._declarations.replicas.get(pool, there.found.own.asked)

    def _decided(self, base: ModelEntry | None, there: SeenPool, total: int, surge: int) -> PoolStep | None:
        """Return the pool's step, or None while its shares are unknown. If the base is no longer declared, all replicas
        return to the pool's own service."""
        if base is None:
            return pool_step(there.found, total, surge, VersionShares(there.found.own.uri, {}), {}, by_version=False)
        driver, active = self._driver(), self._rows.book.active
        shares = wanted_shares(base, active, driver.widening, total, surge if total else 0)
        if shares is None:
            return None
        driver.set_aim(base, shares)
        return pool_step(there.found, total, surge, shares, _uris(base), by_version=len(base.versions) > 1)

    def _may_surge(self, pool: str, there: SeenPool, seen: Mapping[str, SeenPool]) -> bool:
        """Return True if the service and the accelerator limit of all scaled pools allow one more replica."""
        staged, most = self._declarations.staged.get(pool), self._settings.max_accelerators
        if staged is None or not staged.may_surge:
            return False
        if most is None or pool not in self._declarations.scaled:
            return True
        used = sum(_accelerators(seen[each]) for each in seen if each in self._declarations.scaled)
        return used + (accelerators_of(there.own) or 1) <= most

    def _save_counts(self, seen: Mapping[str, SeenPool], steps: Mapping[str, tuple[PoolCount, PoolStep]]) -> None:
        """Store the totals before anything is done by them. A pool whose service is gone or names no `shoal://`
        weights any more is forgotten; a pool whose step is unknown stays. Blocks."""
        unsaid = {pool for pool in self._counts.keys() & seen.keys() - steps.keys() if _has_versions(seen[pool])}
        counts = {pool: self._counts[pool] for pool in unsaid}
        for pool, (count, step) in steps.items():
            is_under_way = bool(seen[pool].seconds or step.makes) or not step.is_settled
            if is_under_way and (pool in self._counts or pool in self._declarations.staged):
                counts[pool] = count
        if counts != self._counts and self._store is not None:
            self._store.write(counts)
        self._counts = counts
        self._asked = {pool: asked for pool, asked in self._asked.items() if pool in counts}

    def _may_be_applied(self, over: Iterable[str], seen: Mapping[str, SeenPool]) -> bool:
        """Return True if a pool no longer moves (`over`), so that its number is git's again, or if, once for each of
        its weights, a service of git's has no replica to lose."""
        emptied = {
            pool: uri_of(self._declared[pool])
            for pool, there in seen.items()
            if pool in self._declared
            and not max(there.found.own.asked, there.found.own.pods)
            and uri_of(self._declared[pool]) != there.found.own.uri
        }
        is_due = bool(set(over)) or any(self._woken.get(pool) != uri for pool, uri in emptied.items())
        self._woken = emptied
        return is_due

    def _log_trouble(self, about: str, trouble: str, level: int = logging.WARNING) -> None:
        if trouble and self._said.get(about) != trouble:
            _log.log(level, "%s", trouble)
        self._said[about] = trouble


def _has_versions(seen: SeenPool) -> bool:
    return bool(seen.found.own.uri or seen.seconds)


def _base(snapshot: Snapshot | None, pool: str) -> ModelEntry | None:
    """Return the base that bears the pool's name, or None if the snapshot has none or is None."""
    models = snapshot.models if snapshot is not None else ()
    return next((each for each in models if each.type == "base" and each.id == pool == PoolName(each.pool)), None)


def _uris(base: ModelEntry) -> dict[str, str]:
    return {version.name: uri for version in base.versions if (uri := weights_uri(version.artifact_uri))}


def _accelerators(seen: SeenPool) -> int:
    counts = [seen.found.own.asked, *(each.asked for each in seen.found.seconds.values())]
    return sum(counts) * (accelerators_of(seen.own) or 1)
