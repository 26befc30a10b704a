"""The snapshot document: canonical bytes, a name for its content, and refusal of what cannot be used."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.snapshot import SnapshotInvalid

DIGEST = "sha256:" + "a" * 64
DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "epoch": 3,
    "revision": "local",
    "compiled_unix_s": 1.5,
    "tenants": [{"name": "acme", "tier": "t", "models": ["acme/*"]}],
    "keys": [
        {"key_id": "ci", "tenant": "acme", "hmac_sha256": "0" * 64, "scopes": ["inference"], "max_class": "batch"}
    ],
    "models": [
        {
            "id": "acme/bot",
            "pool": "base",
            "type": "lora",
            "versions": [{"name": "v1", "digest": DIGEST, "engine_name": "acme/bot@x", "artifact_uri": "s3://b/acme"}],
            "channels": {"stable": "v1"},
        }
    ],
    "pools": [{"name": "base", "context_window_tokens": 2048}],
}


def with_(path: list[Any], value: object) -> bytes:
    """The document with one thing changed."""
    document: Any = json.loads(json.dumps(DOCUMENT))
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    return json.dumps(document).encode()


def test_a_round_trip_keeps_everything() -> None:
    snapshot = snapshots.decode(json.dumps(DOCUMENT).encode())
    assert snapshots.decode(snapshots.encode(snapshot)) == snapshot


def test_equal_content_has_equal_bytes_however_it_was_written() -> None:
    backwards = {key: DOCUMENT[key] for key in reversed(DOCUMENT)}
    first = snapshots.decode(json.dumps(DOCUMENT).encode())
    second = snapshots.decode(json.dumps(backwards, indent=2).encode())
    assert snapshots.encode(first) == snapshots.encode(second)


@settings(deadline=None)
@given(st.integers(0, snapshots.EPOCH_MAX), st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False))
def test_the_hash_names_the_content_not_its_publication(epoch: int, revision: str, compiled_unix_s: float) -> None:
    first = snapshots.decode(json.dumps(DOCUMENT).encode())
    again = msgspec.structs.replace(first, epoch=epoch, revision=revision, compiled_unix_s=compiled_unix_s)
    assert snapshots.content_hash(again) == snapshots.content_hash(first)


@pytest.mark.parametrize(
    "change",
    [
        (["tenants", 0, "tier"], "u"),
        (["keys", 0, "hmac_sha256"], "1" * 64),
        (["models", 0, "channels"], {}),
        (["pools", 0, "max_replicas"], 9),
    ],
)
def test_any_change_of_content_changes_the_hash(change: tuple[list[Any], object]) -> None:
    original = snapshots.content_hash(snapshots.decode(json.dumps(DOCUMENT).encode()))
    assert snapshots.content_hash(snapshots.decode(with_(*change))) != original


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["schema_version"], 2, "schema version 2; this build reads 1"),
        (["epoch"], -1, "Expected `int` >= 0"),
        (["epoch"], 10**9 + 1, "Expected `int` <= 1000000000"),
        (["surprise"], 1, "unknown field `surprise`"),
        (["keys", 0, "tenant"], "globex", "belongs to tenant globex, which is not in the snapshot"),
        (["keys", 0, "hmac_sha256"], "0" * 63, "hmac_sha256"),
        (["keys", 0, "hmac_sha256"], "0" * 64 + "\n", "hmac_sha256"),
        (["keys", 0, "scopes"], ["root"], "Invalid enum value 'root'"),
        (["models", 0, "pool"], "gone", "served by pool gone, which is not in the snapshot"),
        (["models", 0, "channels"], {"stable": "v9"}, "points at version v9, which does not exist"),
        (["models", 0, "versions", 0, "digest"], "sha256:a", "digest"),
        (["models", 0, "id"], "../acme", "id"),
        (["pools", 0, "context_window_tokens"], 0, "Expected `int` >= 1"),
        (["tenants"], DOCUMENT["tenants"] * 2, "the tenant acme occurs twice"),
        (["keys"], DOCUMENT["keys"] * 2, "the key ci occurs twice"),
        (["models"], DOCUMENT["models"] * 2, "the model acme/bot occurs twice"),
        (["pools"], DOCUMENT["pools"] * 2, "the pool base occurs twice"),
        (["models", 0, "versions"], DOCUMENT["models"][0]["versions"] * 2, "the version of acme/bot v1 occurs twice"),
    ],
)
def test_what_cannot_be_used_is_refused(path: list[Any], value: object, says: str) -> None:
    with pytest.raises(SnapshotInvalid, match=says.replace("[", r"\[")):
        snapshots.decode(with_(path, value))


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"epoch":NaN}', b"{}" * 2])
def test_rubbish_is_refused_not_raised(document: bytes) -> None:
    with pytest.raises(SnapshotInvalid):
        snapshots.decode(document)


def test_a_document_over_the_limit_is_not_even_parsed() -> None:
    with pytest.raises(SnapshotInvalid, match="over the limit"):
        snapshots.decode(b" " * (snapshots.SNAPSHOT_MAX_BYTES + 1))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_decoding_raise_anything_else(document: bytes) -> None:
    with pytest.raises(SnapshotInvalid):
        snapshots.decode(document)
