"""Client of the registry's rows, as the controller reads and changes them. Only fields that it uses are validated.

Errors are those of `functions.controller.snapshot.registry_client`: RegistryUnavailable (try again), RegistryRefused
(do not) and RowMoved (another writer was faster: read again).
"""

from typing import Annotated

import httpx
import msgspec

from functions.api.ids import RolloutId
from functions.api.snapshot_entries import (
    AnyDigest,
    AnyKeyId,
    AnyModelId,
    Hex64,
    Name,
    QuotaLimitsPart,
    Scope,
    ServiceClass,
)
from functions.controller.snapshot.registry_client import RegistryClient, RegistryUnavailable
from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout import evidence as rollout_evidence
from functions.decisions.rollout.codec import Command, RolloutInvalid
from functions.decisions.rollout.evidence import EvidenceInvalid, TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout, RolloutSpec, id_of

CHANGES_PATH = "/internal/v1/changes"
ROLLOUTS_PATH = "/internal/v1/rollouts"
PAGE_MAX_BYTES = 64 * 1024 * 1024

Change = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ApiVersion(msgspec.Struct, frozen=True):
    name: Name
    digest: AnyDigest
    artifact_uri: Annotated[str, msgspec.Meta(max_length=1000)]


class ApiModel(msgspec.Struct, frozen=True):
    """A model that was declared, or deleted, through the registry's API."""

    id: AnyModelId
    base: str = ""
    rollout: str = ""
    versions: tuple[ApiVersion, ...] = ()
    channels: dict[Name, Name] = {}
    deleted: bool = False


class ApiKeyRow(msgspec.Struct, frozen=True):
    key_id: AnyKeyId
    tenant: Name
    hmac_sha256: Hex64
    scopes: tuple[Scope, ...] = ()
    max_class: ServiceClass = "interactive"
    expires_unix_s: float | None = None
    revoked: bool = False
    limits: QuotaLimitsPart | None = None


class RolloutRow(Rollout, frozen=True, forbid_unknown_fields=False):
    """A rollout row of the feed, which may have further fields."""

    seq: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0  # number in the order in which all rollouts were created

    @property
    def rollout(self) -> Rollout:
        return Rollout(**{name: getattr(self, name) for name in Rollout.__struct_fields__})


class ChangesPage(msgspec.Struct, frozen=True):
    """A page of changes: whole rows in their present state."""

    change: Change
    more: bool = False
    lineage: str = ""  # name of the database: another one does not continue our change numbers
    models: tuple[ApiModel, ...] = ()
    keys: tuple[ApiKeyRow, ...] = ()
    rollouts: tuple[RolloutRow, ...] = ()


_page = msgspec.json.Decoder(ChangesPage)


class RolloutClient:
    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry

    async def changes(self, after: int, wait_s: float) -> ChangesPage:
        """Return a page of the registry's changes (API models, keys, rollouts) after that number: immediately if
        there are any, else after at most `wait_s`, then perhaps empty. Raise RegistryUnavailable also if the answer
        is too large or malformed."""
        params = {"after": after, "wait_s": wait_s}
        timeout = httpx.Timeout(wait_s + 30.0, connect=5.0)
        response = await self._registry.send("GET", CHANGES_PATH, params=params, timeout=timeout)
        if len(response.content) > PAGE_MAX_BYTES:
            raise RegistryUnavailable(f"a page of {len(response.content)} bytes is over {PAGE_MAX_BYTES}")
        try:
            return _page.decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryUnavailable(f"{CHANGES_PATH} does not answer as a registry does: {error}") from error

    async def create(self, spec: RolloutSpec) -> Rollout:
        """Create a rollout; the same spec again returns the same rollout."""
        response = await self._registry.send(
            "PUT", f"{ROLLOUTS_PATH}/{id_of(spec)}", content=rollout_codec.encode(spec)
        )
        return _row(response)

    async def post_event(self, rollout: RolloutId, command: Command) -> Rollout:
        path = f"{ROLLOUTS_PATH}/{rollout}/events"
        return _row(await self._registry.send("POST", path, content=rollout_codec.encode(command)))

    async def evidence(self, rollout: RolloutId) -> TrialEvidence:
        response = await self._registry.send("GET", f"{ROLLOUTS_PATH}/{rollout}/evidence")
        try:
            return rollout_evidence.decode(response.content)
        except EvidenceInvalid as error:
            raise RegistryUnavailable(f"the evidence of {rollout} cannot be read: {error}") from error


def _row(response: httpx.Response) -> Rollout:
    try:
        return rollout_codec.decode_rollout(response.content)
    except RolloutInvalid as error:
        raise RegistryUnavailable(f"{response.url.path} does not answer with a rollout: {error}") from error
