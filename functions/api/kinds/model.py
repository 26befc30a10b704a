"""`Model`: something that can be called, its versions (each one artifact), and the channels that point at them.

A `lora` is an adapter over a base, named `tenant/name`. A `base` is the pool's own model, named like the pool; it has
exactly one version, since a pool's replicas all hold the same weights.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from functions.api.ids import NAME_PATTERN
from functions.api.kinds.base import DigestText, ModelIdText, Name, ShoalObject, Strict

_ARTIFACT = re.compile(rf"(?:s3|pvc)://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9](?:/{NAME_PATTERN}){{1,8}}")


def _checked_artifact(text: str) -> str:
    if _ARTIFACT.fullmatch(text) is None:
        raise ValueError("s3://bucket/path or pvc://volume/path, up to 8 segments of a-z 0-9 . _ -")
    return text


class Version(Strict):
    """`digest` pins the artifact; without it, the controller asks the store what the address holds."""

    name: Name
    artifact: Annotated[str, AfterValidator(_checked_artifact)]
    digest: DigestText | None = None


class ModelSpec(Strict):
    id: ModelIdText
    type: Literal["lora", "base"]
    base: Name | None = None  # of a lora: the pool whose base model it adapts
    versions: tuple[Version, ...]
    channels: dict[Name, Name] = Field(default_factory=dict)
    rollout: Name = "default"


class Model(ShoalObject):
    kind: Literal["Model"]
    spec: ModelSpec
