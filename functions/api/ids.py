"""Names and references: model references, digests, and the name of an adapter inside an engine.

A model reference is `base` or `tenant/name`, then optionally `:channel`, `@version` or `@sha256:<hex>`. A text has
only one meaning, because names cannot contain `:`, `@` or `/`.
"""

import re
from dataclasses import dataclass
from typing import NewType

TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
ModelId = NewType("ModelId", str)  # `base` or `tenant/name`, without a selector
PoolName = NewType("PoolName", str)
ReplicaId = NewType("ReplicaId", str)
Digest = NewType("Digest", str)  # `sha256:` and 64 hex digits
RolloutId = NewType("RolloutId", str)  # `ro-` and up to 32 letters and digits
EngineName = NewType("EngineName", str)  # name in the engine: the pool's name, or `id@sha256:<16 hex>`

DEFAULT_CHANNEL = "stable"
INCOMING = "incoming"  # channel that names a version while it is loaded; reserved for the controller
NAME_PATTERN = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"
MODEL_ID_PATTERN = rf"{NAME_PATTERN}(?:/{NAME_PATTERN})?"
DIGEST_PATTERN = r"sha256:[0-9a-f]{64}"
ROLLOUT_ID_PATTERN = r"ro-[0-9a-z]{8,32}"
MODEL_REF_MAX_CHARS = 320  # two names, one selector, and separators

# Hex digits of the digest in the engine's name. 64 bits distinguish the versions of one model. Every streamed chunk
# repeats the name, so the whole digest would cost 48 more bytes a token.
ENGINE_NAME_HEX_DIGITS = 16

_NAME = re.compile(NAME_PATTERN)
_REF = re.compile(
    rf"(?P<id>{MODEL_ID_PATTERN})"
    rf"(?::(?P<channel>{NAME_PATTERN})|@(?P<digest>{DIGEST_PATTERN})|@(?P<version>{NAME_PATTERN}))?"
)


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A parsed model reference; at most one of channel, version and digest is set."""

    id: ModelId
    channel: str | None = None
    version: str | None = None
    digest: Digest | None = None


def is_name(text: str) -> bool:
    """Return True if `text` is a valid name for a tenant, a model, a version or a channel."""
    return _NAME.fullmatch(text) is not None


def is_incoming(channel: str) -> bool:
    """Return True if the channel's name is reserved for the controller.

    The names are `incoming`, and `incoming-2` and so on if several channels of a model move at the same time. Their
    versions are loaded ahead and stay loaded, so they cannot be declared.
    """
    name, dash, number = channel.partition("-")
    return name == INCOMING and (not dash or (number.isascii() and number.isdecimal()))


def parse_model_ref(text: str) -> ModelRef | None:
    """Parse a model id with an optional channel, version or digest; None if the text is none."""
    if len(text) > MODEL_REF_MAX_CHARS:
        return None
    match = _REF.fullmatch(text)
    if match is None:
        return None
    digest = match["digest"]
    return ModelRef(
        id=ModelId(match["id"]),
        channel=match["channel"],
        version=match["version"],
        digest=Digest(digest) if digest else None,
    )


def pool_of_base(model_id: str) -> PoolName:
    """Return the pool of a base model: its id for a shared one (`llama-3-8b`), `acme.wiki` for a tenant's own
    `acme/wiki`. Weights, engines and replicas use this name, which has no slash."""
    return PoolName(model_id.replace("/", ".", 1))


def engine_name(model_id: ModelId, digest: Digest) -> EngineName:
    """Return the name of an adapter version inside an engine.

    It is content-addressed, so two versions never share a name, and KV blocks of one are never reused for the
    other: `acme/support-bot` with `sha256:0f3a…` is `acme/support-bot@sha256:0f3a…` cut to 16 hex digits.
    """
    return EngineName(f"{model_id}@{digest[: len('sha256:') + ENGINE_NAME_HEX_DIGITS]}")
