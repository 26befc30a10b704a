"""Base of all shoal kinds: strictness, camelCase keys, metadata, and small types that several kinds use.

Keys are written as in Kubernetes (`maxClass`), attributes as in Python (`max_class`). An invalid text raises
ValueError with what is allowed; `validation` adds its location and what was found.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from functions.api.ids import DIGEST_PATTERN, MODEL_ID_PATTERN, NAME_PATTERN, is_name

API_VERSION = "shoal.dev/v1alpha1"

_KUBERNETES_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_MODEL_ID = re.compile(MODEL_ID_PATTERN)
_NAME_RULE = "1 to 63 of a-z 0-9 . _ -, beginning and ending with a letter or digit"
_DIGEST = re.compile(DIGEST_PATTERN)


class Strict(BaseModel):
    """A model that rejects unknown keys, converts nothing, and is immutable. The docstring below a field is its
    description for editors and `kubectl explain` (`functions.api.schema`)."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def _checked_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(_NAME_RULE)
    return text


def _checked_metadata_name(text: str) -> str:
    if _KUBERNETES_NAME.fullmatch(text) is None:
        raise ValueError("1 to 253 of a-z 0-9 . -, beginning and ending with a letter or digit")
    return text


def _checked_model_id(text: str) -> str:
    if _MODEL_ID.fullmatch(text) is None:
        raise ValueError(f"base or tenant/name, where each is {_NAME_RULE}")
    return text


def _checked_digest(text: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("sha256: and 64 hex digits in lower case")
    return text


def matching(pattern: str) -> Any:
    """Return a Field whose pattern is only in the schema, not validated: the validator's own error messages are
    better."""
    return Field(json_schema_extra={"pattern": f"^(?:{pattern})$"})


Name = Annotated[str, AfterValidator(_checked_name), matching(NAME_PATTERN)]
MetadataName = Annotated[str, AfterValidator(_checked_metadata_name), matching(_KUBERNETES_NAME.pattern)]
ModelIdText = Annotated[str, AfterValidator(_checked_model_id), matching(MODEL_ID_PATTERN)]
DigestText = Annotated[str, AfterValidator(_checked_digest), matching(DIGEST_PATTERN)]


class Finding(NamedTuple):
    """A contradiction within an object: the path of keys, and what is wrong there."""

    path: tuple[str | int, ...]
    message: str


class Metadata(Strict):
    """Object metadata. Labels and annotations are for people and tools; shoal does not read them."""

    name: MetadataName
    namespace: MetadataName | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class ShoalObject(Strict):
    """The fields that every shoal kind has."""

    api_version: Literal["shoal.dev/v1alpha1"]
    kind: str
    metadata: Metadata

    def findings(self) -> Iterable[Finding]:
        """Yield contradictions between this object's values; each single value is checked by its type."""
        return ()
