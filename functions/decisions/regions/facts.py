"""Facts that regions send each other: models of the API with their versions and channels, and keys.

Each fact has the time since which it holds, by the clock of the registry where it was created. Deletions are sent as
well, for as long as the name is stored: a version for ever, a channel until `registry.sql.region_facts` forgets it.
"""

from typing import Annotated

import msgspec

from functions.api.ids import DIGEST_PATTERN, MODEL_ID_PATTERN, NAME_PATTERN
from functions.api.keys import KEY_ID_PATTERN

Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME_PATTERN}\Z")]
UnixS = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class VersionFact(msgspec.Struct, frozen=True):
    name: Name
    digest: Annotated[str, msgspec.Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
    artifact_uri: Annotated[str, msgspec.Meta(max_length=600)]
    deleted: bool
    since_unix_s: UnixS


class ChannelFact(msgspec.Struct, frozen=True):
    name: Name
    version: Name | None  # None means deleted
    since_unix_s: UnixS


class ModelFacts(msgspec.Struct, frozen=True):
    id: Annotated[str, msgspec.Meta(pattern=rf"\A{MODEL_ID_PATTERN}\Z")]
    base: Name
    rollout: Name
    deleted: bool
    versions: tuple[VersionFact, ...]
    channels: tuple[ChannelFact, ...]
    rollout_since_unix_s: UnixS = 0.0  # 0: unknown (set before times were stored), earlier than any other

    @property
    def tenant(self) -> str:
        return self.id.partition("/")[0]


class KeyFact(msgspec.Struct, frozen=True):
    id: Annotated[str, msgspec.Meta(pattern=rf"\A{KEY_ID_PATTERN}\Z")]
    tenant: Name
    hmac_sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    scopes: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)]
    max_class: Annotated[str, msgspec.Meta(max_length=64)]
    expires_unix_s: float | None
    revoked: bool
    limits: dict[str, int] | None

    def __repr__(self) -> str:  # the hash is left out: it is not secret, but useless in logs
        return f"KeyFact(id={self.id!r}, tenant={self.tenant!r}, revoked={self.revoked})"


class FactsPage(msgspec.Struct, frozen=True):
    """Facts changed by writes after some number, up to `change`. `lineage` names the database."""

    region: str
    lineage: str
    change: Annotated[int, msgspec.Meta(ge=0)]
    more: bool
    models: tuple[ModelFacts, ...]
    keys: tuple[KeyFact, ...]
