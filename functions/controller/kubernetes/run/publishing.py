"""Publisher whose writes are fenced by the term, with the registry client and the artifact store of this process.

A publication outside a term is refused here, before anything is sent. The registry refuses one that is under way when
the term ends, because it has seen the next leader's token by then.
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
    """Publisher of the process, owned by one event loop. Resolved artifacts are remembered over terms."""

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
        `on_rows` is called when the rows change, `outranked` with the registry's highest token if ours is below it.
        `staged` returns the bases that move in stages; without it none does."""
        self._client = registry_http(settings.registry_ca_file)
        self._guard = guard
        token = partial(credentials_of(settings).bearer, "publish")
        self.registry = RegistryClient(
            self._client, settings.registry_url, token, fence=self._fence, outranked=outranked
        )
        self.last_epoch = 0
        self.published: tuple[str, Loaded] | None = None  # revision in force, to this process's knowledge
        self.rows = RowsFollower(self.rollout_client, settings.registry_rows_file, on_rows)
        self.rows.load()
        self.shares: Callable[[], Mapping[RolloutId, int]] = dict  # percent that a base's replicas can serve
        self._published_by = 0  # token of the term of that publication
        resolver = Resolver(DigestReader(_store(settings), settings.models_root))
        shares = self._shares_now if staged is not None else None
        self._publisher = Publisher(
            registry=self.registry, resolver=resolver, rows=self.rows, shares=shares, staged=staged
        )

    @property
    def in_force(self) -> Snapshot | None:
        """Snapshot that the registry holds, or None if this term has not published: another leader may have published
        since."""
        guard = self._guard()
        return self._publisher.published_snapshot if guard is not None and guard.token == self._published_by else None

    async def publish(self, loaded: Loaded, revision: str) -> PublishOutcome:
        """Publish (see `Publisher.publish`), and remember the revision if it is in force."""
        guard = self._guard()
        outcome = await self._publisher.publish(loaded, revision)
        if outcome.kind in ("published", "unchanged"):
            self.published = (revision, loaded)
            self._published_by = guard.token if guard is not None else 0
        self.last_epoch = outcome.epoch or self.last_epoch
        return outcome

    async def follow_rows(self) -> PublishOutcome:
        """Publish changes of the registry's rows (see `Publisher.follow_rows`), and remember the epoch."""
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


def publication_result(outcome: PublishOutcome) -> PassResult:
    """Return a publication's result as a part of a reconcile: a failure that passes is retried, an invalid one is
    stalled. Objects declared through the API are not waited for."""
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
