"""Signatures made with the real library: valid ones are accepted, others are refused with a message."""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from functions.api.ids import TenantId
from functions.artifacts import directories
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.signatures import (
    SIGNATURE_MAX_BYTES,
    SIGNATURE_NAME,
    SignaturePolicy,
    SigningUnavailable,
    verify_signed,
)
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.signing import make_key, sign

ACME = TenantId("acme")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return make_key(tmp_path / "keys")


@pytest.fixture
def signed(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    directory = make_adapter(tmp_path / "adapter")
    sign(directory, keys[0])
    return directory


@pytest.fixture
def policy(keys: tuple[Path, Path]) -> SignaturePolicy:
    return SignaturePolicy(tenant_keys={ACME: (keys[1],)}, required=True)


def edit_bundle(directory: Path, change: Callable[[dict], None]) -> None:
    path = directory / SIGNATURE_NAME
    bundle = json.loads(path.read_bytes())
    change(bundle)
    path.write_text(json.dumps(bundle))


def test_a_signed_adapter_is_verified(signed: Path, policy: SignaturePolicy) -> None:
    assert verify_signed(signed, ACME, policy) == "verified"


def test_it_still_holds_with_the_manifest_beside_it(signed: Path, policy: SignaturePolicy) -> None:
    directories.write_manifest(signed)  # as in a node's cache
    assert verify_signed(signed, ACME, policy) == "verified"


def test_any_of_several_keys_will_do(signed: Path, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    other = make_key(tmp_path / "keys", "other")[1]
    policy = SignaturePolicy(keys=(keys[1],), tenant_keys={ACME: (other,)})
    assert verify_signed(signed, ACME, policy) == "verified"


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "README.md"])
def test_a_changed_file_is_refused(signed: Path, policy: SignaturePolicy, name: str) -> None:
    content = (signed / name).read_bytes()
    (signed / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactRefused, match=f"is not valid.*{name}"):
        verify_signed(signed, ACME, policy)


def test_an_added_file_is_not_covered(signed: Path, policy: SignaturePolicy) -> None:
    (signed / "extra.json").write_text("{}")
    with pytest.raises(ArtifactRefused, match=r"does not cover extra\.json"):
        verify_signed(signed, ACME, policy)


def test_a_removed_file_is_missed(signed: Path, policy: SignaturePolicy) -> None:
    (signed / "README.md").unlink()
    with pytest.raises(ArtifactRefused, match=r"covers README\.md, which is not there"):
        verify_signed(signed, ACME, policy)


def test_a_signature_that_ignores_a_file_vouches_for_nothing(
    signed: Path, keys: tuple[Path, Path], policy: SignaturePolicy
) -> None:
    sign(signed, keys[0], ignored=("adapter_config.json",))
    with pytest.raises(ArtifactRefused, match=r"does not cover adapter_config\.json"):
        verify_signed(signed, ACME, policy)


def test_another_key_is_refused(signed: Path, tmp_path: Path, policy: SignaturePolicy) -> None:
    sign(signed, make_key(tmp_path / "keys", "stranger")[0])
    with pytest.raises(ArtifactRefused, match="made with a key that this tenant does not sign with"):
        verify_signed(signed, ACME, policy)


def test_signature_by_another_key_with_a_trusted_name_is_refused(
    signed: Path, tmp_path: Path, policy: SignaturePolicy
) -> None:
    ours = json.loads((signed / SIGNATURE_NAME).read_bytes())["verificationMaterial"]
    sign(signed, make_key(tmp_path / "keys", "stranger")[0])
    edit_bundle(signed, lambda bundle: bundle.update(verificationMaterial=ours))
    with pytest.raises(ArtifactRefused, match=r"is not a signature by signer\.pub"):
        verify_signed(signed, ACME, policy)


def test_another_tenants_key_does_not_count(signed: Path, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    own = make_key(tmp_path / "keys", "globex")[1]
    policy = SignaturePolicy(tenant_keys={ACME: (keys[1],), TenantId("globex"): (own,)}, required=True)
    with pytest.raises(ArtifactRefused, match="made with a key that this tenant does not sign with"):
        verify_signed(signed, TenantId("globex"), policy)
    with pytest.raises(ArtifactRefused, match="no public key of this tenant"):
        verify_signed(signed, TenantId("initech"), policy)


def test_the_signature_of_other_content_is_refused(
    signed: Path, tmp_path: Path, keys: tuple[Path, Path], policy: SignaturePolicy
) -> None:
    other = make_adapter(tmp_path / "other", seed=7)
    (signed / SIGNATURE_NAME).write_bytes(sign(other, keys[0]).read_bytes())
    with pytest.raises(ArtifactRefused, match=r"is not valid.*adapter_model\.safetensors"):
        verify_signed(signed, ACME, policy)


def test_no_signature_where_one_is_required(signed: Path, policy: SignaturePolicy) -> None:
    (signed / SIGNATURE_NAME).unlink()
    with pytest.raises(ArtifactRefused, match=r"there is no model\.sig"):
        verify_signed(signed, ACME, policy)


def test_optional_signature_may_be_absent_but_not_wrong(signed: Path, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    lenient = SignaturePolicy(tenant_keys={ACME: (keys[1],)})
    (signed / "README.md").write_text("changed")
    with pytest.raises(ArtifactRefused):
        verify_signed(signed, ACME, lenient)
    assert verify_signed(signed, TenantId("globex"), lenient) == "unchecked"
    (signed / SIGNATURE_NAME).unlink()
    assert verify_signed(signed, ACME, lenient) == "unsigned"


def _without_hint(bundle: dict) -> None:
    del bundle["verificationMaterial"]["publicKey"]["hint"]


def _two_signatures(bundle: dict) -> None:
    bundle["dsseEnvelope"]["signatures"] *= 2


def _no_base64(bundle: dict) -> None:
    bundle["dsseEnvelope"]["payload"] = "*" * 40


def _old_predicate(bundle: dict) -> None:
    _edit_statement(bundle, predicateType="https://model_signing/Digests/v0.1")


def _edit_statement(bundle: dict, **changes: object) -> None:
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement | changes).encode()).decode()


@pytest.mark.parametrize("change", [_without_hint, _two_signatures, _no_base64, _old_predicate])
def test_a_bundle_of_another_form_is_refused(
    signed: Path, policy: SignaturePolicy, change: Callable[[dict], None]
) -> None:
    edit_bundle(signed, change)
    with pytest.raises(ArtifactRefused, match="is not what `model_signing sign key` writes"):
        verify_signed(signed, ACME, policy)


def test_a_statement_changed_after_signing_is_refused(signed: Path, policy: SignaturePolicy) -> None:
    edit_bundle(signed, lambda bundle: _edit_statement(bundle, subject=[]))
    with pytest.raises(ArtifactRefused, match=r"is not a signature by signer\.pub"):
        verify_signed(signed, ACME, policy)


def test_a_signature_over_shards_is_refused(signed: Path, keys: tuple[Path, Path], policy: SignaturePolicy) -> None:
    sign(signed, keys[0], shards=True)
    with pytest.raises(ArtifactRefused, match="is not what `model_signing sign key` writes"):
        verify_signed(signed, ACME, policy)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not what"),
        (b"\xff\xfe", "is not what"),
        (b"[" * 100_000, "is not what"),
        (b"null", "is not what"),
        (b'{"mediaType": "a", "mediaType": "b"}', "a key occurs twice"),
        (b" " * (SIGNATURE_MAX_BYTES + 1), "is over"),
    ],
    ids=["empty", "not text", "deep", "null", "duplicate", "bomb"],
)
def test_a_hostile_signature_file_is_refused(signed: Path, policy: SignaturePolicy, content: bytes, words: str) -> None:
    (signed / SIGNATURE_NAME).write_bytes(content)
    with pytest.raises(ArtifactRefused, match=words):
        verify_signed(signed, ACME, policy)


def test_a_signature_that_is_a_link_is_refused(signed: Path, policy: SignaturePolicy, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.sig"
    (signed / SIGNATURE_NAME).rename(elsewhere)
    (signed / SIGNATURE_NAME).symlink_to(elsewhere)
    with pytest.raises(ArtifactRefused, match="plain file"):
        verify_signed(signed, ACME, policy)


def test_unusable_key_is_a_configuration_error(signed: Path, tmp_path: Path) -> None:
    with pytest.raises(SigningUnavailable, match=r"nowhere\.pub cannot be read"):
        verify_signed(signed, ACME, SignaturePolicy(keys=(tmp_path / "nowhere.pub",)))
    wrong = tmp_path / "rsa.pub"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    wrong.write_bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ArtifactRefused, match="a key that this tenant does not sign with"):
        verify_signed(signed, ACME, SignaturePolicy(keys=(wrong,)))


def test_missing_library_error_names_the_package(
    signed: Path, policy: SignaturePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(SigningUnavailable, match=r"shoal\[signing\] is not installed"):
        verify_signed(signed, ACME, policy)
