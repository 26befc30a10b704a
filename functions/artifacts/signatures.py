"""Signatures over an adapter's files (OpenSSF model signing, elliptic keys), which prove the author of the weights.

    verify_signed(directory, tenant, policy)   at publish, and again before an engine may see the files

The signature is stored with the files as `model.sig`: a Sigstore bundle around an in-toto statement that lists every
other file with its sha256, as `model_signing sign key` writes it. No network is used. The bundle is checked by a
strict schema (bounded, no duplicate keys) before the library reads it. It must list every file: a signature that
leaves files out (`ignore_paths`) is rejected.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from functions.api.ids import TenantId
from functions.artifacts import directories
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME

SIGNATURE_NAME = "model.sig"
SIGNATURE_MAX_BYTES = 256 * 1024  # 16 files take 4 kB
_KEY_MAX_BYTES = 16 * 1024
_MAX_RESOURCES = 1024
_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"

# verified: signed with a key of the tenant. unsigned: no signature, and none required. unchecked: there is a signature,
# but the policy has no key for this tenant and requires none.
Finding = Literal["verified", "unsigned", "unchecked"]


class SigningUnavailable(ArtifactError):
    """The library or a key for a required signature check is missing: correct the installation."""


@dataclass(frozen=True, slots=True)
class SignaturePolicy:
    """Keys whose signatures count, as PEM public keys on a NIST curve: a tenant's own and those for all tenants."""

    keys: tuple[Path, ...] = ()  # for every tenant
    tenant_keys: Mapping[TenantId, tuple[Path, ...]] = field(default_factory=dict)
    required: bool = False

    def keys_for(self, tenant: TenantId | None) -> tuple[Path, ...]:
        own = self.tenant_keys.get(tenant, ()) if tenant is not None else ()
        return (*own, *self.keys)


class _Key(msgspec.Struct):
    hint: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Material(msgspec.Struct, rename="camel"):
    public_key: _Key


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: Literal["application/vnd.in-toto+json"]
    signatures: Annotated[list[dict[str, str]], msgspec.Meta(min_length=1, max_length=1)]


class _Bundle(msgspec.Struct, rename="camel"):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verification_material: _Material
    dsse_envelope: _Envelope


class _Resource(msgspec.Struct):
    name: str
    algorithm: Literal["sha256"]


class _Serialization(msgspec.Struct):
    method: Literal["files"]
    hash_type: Literal["sha256"]


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: Annotated[list[_Resource], msgspec.Meta(max_length=_MAX_RESOURCES)]


class _Statement(msgspec.Struct, rename="camel"):
    predicate_type: Literal["https://model_signing/signature/v1.0"]
    predicate: _Predicate


def verify_signed(directory: Path, tenant: TenantId | None, policy: SignaturePolicy) -> Finding:
    """Verify the signature in `directory` and return "verified", "unsigned" if there is none, or "unchecked" if no key
    is known. Raise ArtifactRefused if it is invalid, or if one is required but missing or not verifiable;
    SigningUnavailable if the model-signing library is needed but not installed. Hashes every file: blocks on the disk.
    """
    keys = policy.keys_for(tenant)
    document = _read_signature(directory)
    if document is None:
        if policy.required:
            raise ArtifactRefused(f"there is no {SIGNATURE_NAME}, and only signed adapters are accepted: sign it")
        return "unsigned"
    if not keys:
        if policy.required:
            raise ArtifactRefused("no public key of this tenant is known, and only signed adapters are accepted")
        return "unchecked"
    bundle, statement = _parse(document)
    _check_lists_everything(directory, statement)
    _verify(directory, _key_of(bundle, keys))
    return "verified"


def _read_signature(directory: Path) -> bytes | None:
    try:
        with directories.open_plain(directory / SIGNATURE_NAME) as file:
            document = file.read(SIGNATURE_MAX_BYTES + 1)
    except ArtifactMissing:
        return None
    if len(document) > SIGNATURE_MAX_BYTES:
        raise ArtifactRefused(f"{SIGNATURE_NAME} is over {SIGNATURE_MAX_BYTES} bytes")
    return document


def _parse(document: bytes) -> tuple[_Bundle, _Statement]:
    try:
        bundle = msgspec.convert(_strict(document), _Bundle)
        payload = base64.b64decode(bundle.dsse_envelope.payload, validate=True)
        return bundle, msgspec.convert(_strict(payload), _Statement)
    except (ValueError, RecursionError) as error:  # includes msgspec's errors
        raise ArtifactRefused(f"{SIGNATURE_NAME} is not what `model_signing sign key` writes: {error}") from error


def _strict(document: bytes) -> Any:
    return json.loads(document.decode("utf-8"), object_pairs_hook=_no_duplicates)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):  # parsers could disagree on the value
        raise ValueError("a key occurs twice")
    return document


def _check_lists_everything(directory: Path, statement: _Statement) -> None:
    signed = {resource.name for resource in statement.predicate.resources}
    present = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    for name in sorted((present - {SIGNATURE_NAME, MANIFEST_NAME}) - signed):
        raise ArtifactRefused(f"{SIGNATURE_NAME} does not cover {name[:200]}: sign all files of the adapter")
    for name in sorted(signed - present):
        raise ArtifactRefused(f"{SIGNATURE_NAME} covers {name[:200]}, which is not there: it signs other content")


def _key_of(bundle: _Bundle, keys: tuple[Path, ...]) -> Path:
    """Return the key among `keys` that the signature names by its hint, the sha256 of the key's PEM form; raise
    ArtifactRefused if none matches."""
    hint = bundle.verification_material.public_key.hint
    for path in keys:
        if _hint_of(path) == hint:
            return path
    raise ArtifactRefused(f"{SIGNATURE_NAME} was made with a key that this tenant does not sign with")


def _hint_of(path: Path) -> str:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise _not_installed(error) from error
    try:
        with path.open("rb") as file:
            key = serialization.load_pem_public_key(file.read(_KEY_MAX_BYTES))
    except (OSError, ValueError) as error:
        raise SigningUnavailable(f"the public key {path.name} cannot be read: {error}") from error
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def _verify(directory: Path, key: Path) -> None:
    """Let the library verify the signature over the statement, and every listed file against its sha256. Raise
    ArtifactRefused if either is wrong, SigningUnavailable if the library is not installed."""
    try:
        from cryptography.exceptions import InvalidSignature
        from model_signing import hashing, verifying
    except ImportError as error:
        raise _not_installed(error) from error
    beside = (SIGNATURE_NAME, MANIFEST_NAME)
    hashed = hashing.Config()  # type: ignore[no-untyped-call]
    hashed.use_file_serialization(hashing_algorithm="sha256", allow_symlinks=False)
    hashed.set_ignored_paths(paths=beside, ignore_git_paths=False)
    try:
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)  # type: ignore[no-untyped-call]
        verifier.set_hashing_config(hashed)
        verifier.verify(directory, directory / SIGNATURE_NAME)
    except InvalidSignature as error:
        raise ArtifactRefused(f"{SIGNATURE_NAME} is not a signature by {key.name}: sign again") from error
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ArtifactRefused(f"{SIGNATURE_NAME} is not valid: {error}") from error


def _not_installed(error: ImportError) -> SigningUnavailable:
    return SigningUnavailable(f"signatures are required but shoal[signing] is not installed ({error})")
