"""A pool whose base moves between versions on the real API server, with git, the version reconciler and KServe.

There is no kubelet and no garbage collector: KServe's double sets the Deployments' statuses. The test sets what the
registry holds (rollouts, the snapshot).
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes.dynamic.exceptions import TooManyRequestsError

from functions.api import snapshot as snapshots
from functions.api.ids import EngineName, ModelId, PoolName, RolloutId
from functions.api.loader import Loaded
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, SplitEntry, VersionEntry
from functions.controller.kubernetes.objects import Body, value_at
from functions.controller.kubernetes.outcome import ApplyOutcome
from functions.controller.kubernetes.run.settings import KubernetesSettings
from functions.controller.kubernetes.run.version_reconciler import VersionReconciler
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.replica_shares import VersionShares
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, load
from tests.controller.kubernetes.run.waiting import until
from tests.controller.kubernetes.versions.documents import CAREFUL, base, service
from tests.decisions.rollout.rollouts import digest, rollout

POOL = PoolName("a")


@dataclass
class Book:
    """The registry's rows, as far as they are read here."""

    active: tuple[Rollout, ...] = ()
    is_known: bool = True

    @property
    def book(self) -> "Book":
        return self


@dataclass
class VersionRig:
    space: Space
    folder: Path
    documents: tuple[str, ...] = (service(replicas=4), base("v1", "v2"), CAREFUL)
    stable: str = "v1"
    versions: tuple[str, ...] = ("v1", "v2")
    changes: dict[str, Any] = field(default_factory=dict)
    widening: frozenset[RolloutId] = frozenset()
    aimed: dict[str, int] = field(default_factory=dict)  # desired replicas by version, as last reported
    woken: int = 0
    fewest_ready: int = 10**6  # lowest count seen
    most_asked: int = 0

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.space)
        until(self._is_listed, "the server has set the kind's storage up")
        self.rows = Book()
        self.revision = 0
        self.published = True
        self.start_controller()

    def start_controller(self, client: Any = None) -> None:
        """Replace the controller: the new one knows only the cluster's state."""
        settings = KubernetesSettings(
            namespace=self.space.system,
            models_namespace=self.space.models,
            internal_token_file=self.folder / "token",
            **self.changes,
        )
        self.reconciler = VersionReconciler(
            settings,
            self.rows,  # type: ignore[arg-type]
            wanted=lambda: (f"main@{self.revision}", self.loaded),
            published=lambda: self.snapshot() if self.published else None,
            driver=lambda: self,  # type: ignore[arg-type,return-value]
            is_suspended=lambda: False,
            wake=self._woken,
        )
        self.fleet.make_client = (lambda: client) if client is not None else None
        self.fleet.restart()
        self.fleet.make_client = None

    def set_aim(self, base: ModelEntry, shares: VersionShares) -> None:
        self.aimed = dict(shares.others)

    def _woken(self) -> None:
        self.woken += 1

    @property
    def loaded(self) -> Loaded:
        return load(*self.documents)

    def declare(self, *documents: str) -> None:
        self.documents = documents
        self.revision += 1

    def snapshot(self) -> Snapshot:
        entries = tuple(
            VersionEntry(name, digest(name), EngineName(POOL), f"s3://shoal-models/bases/a/{name}")
            for name in self.versions
        )
        splits = tuple(
            SplitEntry("stable", row.id, row.trial, row.percent, row.to_version)
            for row in self.rows.active
            if row.percent
        )
        model = ModelEntry(ModelId(POOL), POOL, "base", entries, {"stable": self.stable}, splits=splits)
        return Snapshot(snapshots.SCHEMA_VERSION, 1, "r", 0.0, (), (), (model,), (PoolEntry(POOL, 2048),))

    def rolls_out(self, *events: Any, widens: bool = False, start: str = "v1", end: str = "v2") -> None:
        """Set the rollout to the state after these events; it is over if they end it."""
        row = rollout(*events, start=start, end=end, model=POOL)
        self.rows.active = (row,) if row.is_active else ()
        self.widening = frozenset({row.id}) if widens else frozenset()
        if row.state == "completed":
            self.stable = end

    def _is_listed(self) -> bool:
        try:
            self.services()
        except TooManyRequestsError:
            return False
        return True

    # -- what happens -------------------------------------------------------------------------------------------------

    def git(self) -> ApplyOutcome:
        """Run one pass of the git source, restricted to its writes of services."""
        desired = self.fleet.desired(*self.documents, revision=f"main@{self.revision}")
        return self.fleet.applier.reconcile(self.reconciler.applicable(self.fleet.api, self.loaded, desired))

    def run_reconciler(self) -> None:
        asyncio.run(self.reconciler.run_pass(self.fleet.api))
        self._count()

    def step(self) -> None:
        """Run git's pass and then the reconciler's, as after a push, and KServe until nothing changes."""
        outcome = self.git()
        assert not outcome.refusals, outcome
        self.run_reconciler()
        self.fleet.kserve.settle()
        self._count()

    def settle(self) -> None:
        """Step until nothing changes any more."""
        for _ in range(40):
            before = self.counts(), self.woken
            self.step()
            if before == (self.counts(), self.woken) and not self.fleet.kserve.step():
                return
        raise AssertionError(f"still on its way after 40 steps: {self.counts()}")

    # -- what is there ------------------------------------------------------------------------------------------------

    def services(self) -> dict[str, Body]:
        """Return the services that are not being deleted, by name."""
        path = f"/apis/serving.kserve.io/v1beta1/namespaces/{self.space.models}/inferenceservices"
        listed = self.space.client.request("get", path, serializer=lambda _client, data: data)["items"]
        return {each["metadata"]["name"]: each for each in listed if "deletionTimestamp" not in each["metadata"]}

    def counts(self) -> dict[str, tuple[str, int, int]]:
        """Return desired and ready replicas by version of the weights; a second service's version has a `+`."""
        found = {}
        for name, each in self.services().items():
            uri, asked = (
                value_at(each, "spec", "predictor", *path) for path in (("model", "storageUri"), ("minReplicas",))
            )
            found[name if name == POOL else "+" + uri[-2:]] = (uri[-2:], asked, self.ready(name))
        return found

    def shown(self) -> str:
        """Format the counts with the pool's own service first: `v1 4/4, v2 1/0`."""
        counts = self.counts()
        return ", ".join(f"{uri} {asked}/{ready}" for _, (uri, asked, ready) in sorted(counts.items(), reverse=True))

    def ready(self, name: str) -> int:
        deployment = self.fleet.kserve.deployment(name)
        return int(value_at(deployment or {}, "status", "readyReplicas") or 0)

    def stored_versions(self) -> str:
        """Return the versions entry of the controller's ConfigMap."""
        return str(value_at(self.fleet.record() or {}, "data", "versions"))

    def _count(self) -> None:
        counts = self.counts().values()
        if sum(ready for _, _, ready in counts):
            self.fewest_ready = min(self.fewest_ready, sum(min(asked, ready) for _, asked, ready in counts))
        self.most_asked = max(self.most_asked, sum(asked for _, asked, _ in counts))
