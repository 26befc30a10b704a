"""Publisher whose writes are fenced by the term: the registry and the artifact store of this process.

A publication outside a term is refused here, before anything is sent; one that is under way when the term ends is
refused by the registry, which has seen the next leader's token by then.
"""

from collections.abc import Callable, Mapping
from functools import partial

from functions.api.ids import RolloutId
from functions.api.loader import Loaded
from functions.api.snapshot import Snapshot
from functions.artifacts.s3 import S3Settings, S3Store, load_credentials
from functions.controller.kubernetes.errors import LeadershipLost
from functions.controller.kubernetes.outcome import PassResult
from functions.controller.kubernetes.run.elector import TermGuard
from functions.controller.kubernetes.run.settings import KubernetesSettings, credentials_of
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.following import RowsFollower
from functions.controller.snapshot.publish import Publisher, PublishOutcome, StagedOf
from functions.controller.snapshot.registry_client import RegistryClient, registry_http
from functions.controller.snapshot.resolve import DigestReader, Resolver

_NAMED_MAX = 3


class Publishing:
    """Owned by one event loop. Made once; artifacts that were resolved are remembered over terms."""

    def __init__(
        self,
        settings: KubernetesSettings,
        guard: Callable[[], TermGuard | None],
        outranked: Callable[[int], None],
        on_rows: Callable[[], None] = lambda: None,
        *,
        staged: StagedOf | None = None,
    ) -> None:
        """Blocks: reads the token, the credentials, the certificate authority and the copy of the registry's rows.
        `on_rows` is told when these are others, `outranked` of the registry's highest token where ours is below it.
        `staged` tells which bases go by stages; without it none does."""
        self._client = registry_http(settings.registry_ca_file)
        self._guard = guard
        token = partial(credentials_of(settings).bearer, "publish")
        self.registry = RegistryClient(
            self._client, settings.registry_url, token, fence=self._fence, outranked=outranked
        )
        self.last_epoch = 0
        self.published: tuple[str, Loaded] | None = None  # the revision that is in force, as far as this process knows
        self.rows = RowsFollower(self.rollout_client, settings.registry_rows_file, on_rows)
        self.rows.load()
        self.shares: Callable[[], Mapping[RolloutId, int]] = dict  # of bases' rollouts, as their replicas bear them
        self._published_by = 0  # the token of the term in which that was
        resolver = Resolver(DigestReader(_store(settings), settings.models_root))
        shares = self._shares_now if staged is not None else None
        self._publisher = Publisher(
            registry=self.registry, resolver=resolver, rows=self.rows, shares=shares, staged=staged
        )

    @property
    def in_force(self) -> Snapshot | None:
        """What the registry holds, where this term has published: before that, another leader may have since."""
        guard = self._guard()
        return self._publisher.held if guard is not None and guard.token == self._published_by else None

    async def publish(self, loaded: Loaded, revision: str) -> PublishOutcome:
        """As `Publisher.publish`."""
        guard = self._guard()
        outcome = await self._publisher.publish(loaded, revision)
        if outcome.kind in ("published", "unchanged"):
            self.published = (revision, loaded)
            self._published_by = guard.token if guard is not None else 0
        self.last_epoch = outcome.epoch or self.last_epoch
        return outcome

    async def follow_rows(self) -> PublishOutcome:
        """As `Publisher.follow_rows`."""
        outcome = await self._publisher.follow_rows()
        self.last_epoch = outcome.epoch or self.last_epoch
        return outcome

    async def rollout_client(self) -> RolloutClient:
        return RolloutClient(self.registry)

    async def close(self) -> None:
        await self._client.aclose()

    def _shares_now(self) -> Mapping[RolloutId, int]:
        return self.shares()

    def _fence(self) -> int:
        guard = self._guard()
        if guard is None:
            raise LeadershipLost("not leading: nothing is published")
        return guard.token


def _store(settings: KubernetesSettings) -> S3Store | None:
    if settings.s3_credentials_file is None:
        return None
    credentials = load_credentials(settings.s3_credentials_file)
    return S3Store(S3Settings(settings.s3_endpoint_url, credentials, settings.s3_bucket))


def result_of(outcome: PublishOutcome) -> PassResult:
    """A publication as a part of a reconcile. What the API declares is not what this waits for."""
    match outcome.kind:
        case "unavailable":
            return PassResult("passing", outcome.message)
        case "refused" | "invalid":
            return PassResult("stalled", outcome.message)
    if outcome.complete:
        return PassResult("done", "; ".join([outcome.message, *outcome.left_out[:_NAMED_MAX]]))
    if outcome.held or outcome.problems:
        named = [*outcome.held, *outcome.problems[:_NAMED_MAX], *outcome.refused[:_NAMED_MAX]]
        return PassResult("waiting", "; ".join([outcome.message, *named]))
    return PassResult("refused", "; ".join(outcome.refused[:_NAMED_MAX]))
