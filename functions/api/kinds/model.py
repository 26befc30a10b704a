"""`Model`: a callable model, its versions (each one artifact), and the channels that point at them.

A `lora` is an adapter over a base, named `tenant/name`. A `base` has its own weights. It is a pool's model, named
like the pool; or a tenant's own, named `tenant/name`, in a pool that is dedicated to that tenant and named
`tenant.name`. Each version of a base has its own replicas, as many as its channels and their rollouts need.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from functions.api.ids import INCOMING, NAME_PATTERN, is_incoming, is_name, pool_of_base
from functions.api.kinds.base import DigestText, Finding, ModelIdText, Name, ShoalObject, Strict, matching
from functions.api.problems import near_miss, shown
from functions.api.snapshot_entries import ModelType

_ARTIFACT = re.compile(rf"(?:s3|pvc)://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9](?:/{NAME_PATTERN}){{1,8}}")


def _checked_artifact(text: str) -> str:
    if _ARTIFACT.fullmatch(text) is None:
        raise ValueError("s3://bucket/path or pvc://volume/path, up to 8 segments of a-z 0-9 . _ -")
    return text


class Version(Strict):
    """One artifact under a permanent name."""

    name: Name
    artifact: Annotated[str, AfterValidator(_checked_artifact), matching(_ARTIFACT.pattern)]
    """Address of the artifact, such as s3://shoal-models/acme/support-bot/v1."""
    digest: DigestText | None = None
    """Digest that pins the artifact; without it, the controller uses what the store has at the address."""


class ModelSpec(Strict):
    id: ModelIdText
    """Id in requests: tenant/name for a lora and for a tenant's own base, the pool's name for other bases."""
    type: ModelType
    """lora: an adapter over a pool's base model; base: its own weights, which a pool with its name serves."""
    base: Name | None = None
    """For a lora: the pool whose base model it adapts."""
    versions: tuple[Version, ...]
    """Versions, at least one; for a base, one of them is the storageUri of its InferenceService."""
    channels: dict[Name, Name] = Field(default_factory=dict)
    """Names that point at versions; requests that name none use `stable`."""
    rollout: Name = "default"
    """The RolloutPolicy by which a channel moves to another version."""


class Model(ShoalObject):
    """A callable model, its versions, and the channels that point at them."""

    kind: Literal["Model"]
    spec: ModelSpec

    @property
    def pool(self) -> str:
        """The pool whose replicas serve it; empty for an adapter without a base."""
        return pool_of_base(self.spec.id) if self.spec.type == "base" else self.spec.base or ""

    @property
    def owner(self) -> str:
        """The tenant that owns it; empty for a shared base model."""
        tenant, slash, _ = self.spec.id.partition("/")
        return tenant if slash else ""

    def findings(self) -> Iterator[Finding]:
        yield from _name_agrees(self)
        yield from _versions_and_channels(self.spec)
        yield from (_lora(self.spec) if self.spec.type == "lora" else _base(self.spec))


def _name_agrees(model: Model) -> Iterator[Finding]:
    id_, name = model.spec.id, model.metadata.name
    expected = id_.replace("/", ".").replace("_", "-")
    if name != expected:
        message = f"found {shown(id_)}; its metadata.name would be {shown(expected)}, but is {shown(name)}"
        yield Finding(("spec", "id"), message)


def _versions_and_channels(spec: ModelSpec) -> Iterator[Finding]:
    if not spec.versions:
        yield Finding(("spec", "versions"), "found an empty list; allowed: at least one version")
    names: dict[str, int] = {}
    for index, version in enumerate(spec.versions):
        if names.setdefault(version.name, index) != index:
            path = ("spec", "versions", index, "name")
            yield Finding(path, f"the version {shown(version.name)} occurs twice")
    for channel, target in spec.channels.items():
        if is_incoming(channel):
            message = (
                f"the name is reserved for versions that are being loaded; allowed: any but {INCOMING}, {INCOMING}-2, …"
            )
            yield Finding(("spec", "channels", channel), message)
        if target not in names:
            message = f"found {shown(target)}; allowed: {', '.join(names) or 'no version is declared'}"
            yield Finding(("spec", "channels", channel), message + near_miss(target, sorted(names)))


def _lora(spec: ModelSpec) -> Iterator[Finding]:
    if "/" not in spec.id:
        yield Finding(("spec", "id"), f"found {shown(spec.id)}; allowed for a lora: tenant/name")
    if spec.base is None:
        yield Finding(("spec", "base"), "is required for a lora: the pool whose base model it adapts")


def _base(spec: ModelSpec) -> Iterator[Finding]:
    pool = pool_of_base(spec.id)
    if not is_name(pool):
        message = f"found {shown(spec.id)}, whose pool would be {shown(pool)}; allowed for a pool: up to 63 characters"
        yield Finding(("spec", "id"), message)
    if spec.base not in {None, pool}:
        yield Finding(("spec", "base"), f"found {shown(spec.base)}; a base adapts nothing: leave this out")
