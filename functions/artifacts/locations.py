"""Keys of the store, and the artifact URIs that are followed.

    chunks/sha256/<hex>           one chunk's bytes
    manifests/sha256/<hex>        one manifest's canonical bytes
    compiled/sha256/<hex>/…       compile caches of engines, by the base's digest (`compiled`)
    tokenizers/sha256/<hex>/…     a base's tokenizer, by the base's digest (`tokenizers`)
    <prefix>/shoal-manifest.json  the pointer: the same manifest bytes, under the name in a version's URI
    bases/<name>/<version>/…      such a prefix: the weights of a base, which replicas name shoal://<name>@<version>

`blobs/sha256/` held whole files before chunks were introduced and is no longer read. Only `s3://<our
bucket>/<prefix>` is followed: a model cannot name another bucket, scheme or host.
"""

import re
from dataclasses import dataclass

from functions.api.ids import NAME_PATTERN
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME

_SEGMENT = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"
_URI = re.compile(rf"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9])/(?P<prefix>{_SEGMENT}(?:/{_SEGMENT}){{0,7}})")
CHUNKS_PREFIX = "chunks/sha256/"
MANIFESTS_PREFIX = "manifests/sha256/"
TOKENIZERS_PREFIX = "tokenizers/sha256/"
SWEEPING_KEY = "manifests/sweeping"  # exists while a collector sweeps
COMPILED_PREFIX = "compiled/sha256/"
_RESERVED = ("blobs", "chunks", "compiled", "manifests", "tokenizers")
URI_MAX_CHARS = 600


@dataclass(frozen=True, slots=True)
class ArtifactLocation:
    bucket: str
    prefix: str

    @property
    def pointer_key(self) -> str:
        return f"{self.prefix}/{MANIFEST_NAME}"

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def parse_artifact_uri(uri: str, *, bucket: str) -> ArtifactLocation:
    """Return the location of a URI `s3://bucket/tenant/name/version` inside our bucket; raise ArtifactRefused for any
    other, and for the store's own folders."""
    match = _URI.fullmatch(uri) if len(uri) <= URI_MAX_CHARS else None
    if match is None:
        raise ArtifactRefused(f"artifact {uri[:200]!r} is not of the form s3://{bucket}/tenant/name/version")
    if match["bucket"] != bucket:
        raise ArtifactRefused(f"artifact {uri} lies in bucket {match['bucket']}; only {bucket} is allowed")
    if match["prefix"].split("/")[0] in _RESERVED:
        raise ArtifactRefused(f"artifact {uri}: {', '.join(_RESERVED)} are the store's own folders")
    return ArtifactLocation(bucket=match["bucket"], prefix=match["prefix"])


def chunk_key(sha256_hex: str) -> str:
    return CHUNKS_PREFIX + sha256_hex


def tokenizer_key(base_hex: str, name: str) -> str:
    return f"{TOKENIZERS_PREFIX}{base_hex}/{name}"


def compiled_prefix(base_hex: str) -> str:
    return COMPILED_PREFIX + base_hex


def manifest_key(sha256_hex: str) -> str:
    return MANIFESTS_PREFIX + sha256_hex


# Base weights by name: `shoal://NAME@VERSION` in an InferenceService's storageUri.
WEIGHTS_SCHEME = "shoal://"
_WEIGHTS = re.compile(rf"(?P<name>{NAME_PATTERN})@(?P<version>{NAME_PATTERN})")


@dataclass(frozen=True, slots=True)
class WeightsName:
    """One version of one base model, with its pool's name."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def uri(self) -> str:
        return WEIGHTS_SCHEME + str(self)

    def location(self, bucket: str) -> ArtifactLocation:
        """Return the location in the bucket of the pointer that `shoal base push` writes for this version."""
        return ArtifactLocation(bucket, f"bases/{self.name}/{self.version}")


def parse_weights_name(text: str) -> WeightsName:
    """Return the name in `NAME@VERSION`, with or without `shoal://` before it; raise ArtifactRefused for anything
    else."""
    match = _WEIGHTS.fullmatch(text.removeprefix(WEIGHTS_SCHEME))
    if match is None:
        raise ArtifactRefused(f"{text[:160]!r} is not of the form {WEIGHTS_SCHEME}name@version, such as llama-3-8b@v1")
    return WeightsName(match["name"], match["version"])


def weights_at(uri: str) -> WeightsName | None:
    """Return the base weights that a storageUri (`shoal://…`) or an artifact URI (`s3://<bucket>/bases/…`) names, or
    None.
    """
    if not uri.startswith(WEIGHTS_SCHEME):
        bucket, _, path = uri.removeprefix("s3://").partition("/")
        name, _, version = path.removeprefix("bases/").partition("/")
        if not uri.startswith("s3://") or not bucket or not path.startswith("bases/"):
            return None
        uri = f"{name}@{version}"
    match = _WEIGHTS.fullmatch(uri.removeprefix(WEIGHTS_SCHEME))
    return None if match is None else WeightsName(match["name"], match["version"])
