"""The snapshot document: canonical bytes, content hash, and rejection of unusable documents."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import PoolName
from functions.api.snapshot import SnapshotInvalid

DIGEST = "sha256:" + "a" * 64
DOCUMENT: dict[str, Any] = {
    "snapshot": [{"schema_version": 3, "epoch": 3, "revision": "local", "compiled_unix_s": 1.5}],
    "admission": [{"name": "default", "pools": ["*"], "bands": [{"name": "batch", "share_ratio": 1.0}]}],
    "autoscaling": [{"name": "base", "pool": "base", "min_replicas": 1, "max_replicas": 4, "scale_down": ["x: -1"]}],
    "key": [{"key_id": "ci", "tenant": "acme", "hmac_sha256": "0" * 64, "scopes": ["inference"], "max_class": "batch"}],
    "model": [
        {
            "id": "acme/bot",
            "pool": "base",
            "type": "lora",
            "versions": [{"name": "v1", "digest": DIGEST, "engine_name": "acme/bot@x", "artifact_uri": "s3://b/acme"}],
            "channels": {"stable": "v1"},
            "rollout": "default",
        }
    ],
    "pool": [{"name": "base", "context_window_tokens": 2048}],
    "quota": [{"name": "t", "weight": 2.0, "limits": {"requests_per_minute": 60}}],
    "rollout": [{"name": "default", "stages": [{"percent": 100}]}],
    "routing": [{"name": "default", "pools": ["*"]}],
    "tenant": [{"name": "acme", "tier": "t", "models": ["acme/*"]}],
}


def lines(document: dict[str, Any]) -> bytes:
    """Return a document as in a file: one entry per line."""
    rows = [{"is": tag, **entry} for tag, entries in document.items() for entry in entries]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def with_(path: list[Any], value: object) -> bytes:
    """Return the document with one value changed."""
    document: Any = json.loads(json.dumps(DOCUMENT))
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    return lines(document)


def test_a_round_trip_keeps_everything() -> None:
    snapshot = snapshots.decode(lines(DOCUMENT))
    assert snapshots.decode(snapshots.encode(snapshot)) == snapshot


def test_equal_content_has_equal_bytes_however_it_was_written() -> None:
    first = snapshots.decode(lines(DOCUMENT))
    backwards = {tag: [dict(reversed(entry.items())) for entry in entries] for tag, entries in DOCUMENT.items()}
    second = snapshots.decode(lines(backwards))
    assert snapshots.encode(first) == snapshots.encode(second)
    two_pools = (*first.pools, snapshots.PoolEntry(PoolName("other"), 4096))
    forwards, reverse = (
        msgspec.structs.replace(first, pools=pools) for pools in (two_pools, tuple(reversed(two_pools)))
    )
    assert snapshots.encode(forwards) == snapshots.encode(reverse)
    assert snapshots.content_hash(forwards) == snapshots.content_hash(reverse)


def test_each_line_is_an_entry_that_says_what_it_is() -> None:
    """docs/explanation/snapshot.md promises this format to other tools."""
    rows = [json.loads(line) for line in snapshots.encode(snapshots.decode(lines(DOCUMENT))).splitlines()]
    assert [row["is"] for row in rows] == list(DOCUMENT)


@settings(deadline=None)
@given(st.integers(0, snapshots.EPOCH_MAX), st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False))
def test_the_hash_names_the_content_not_its_publication(epoch: int, revision: str, compiled_unix_s: float) -> None:
    first = snapshots.decode(lines(DOCUMENT))
    again = msgspec.structs.replace(first, epoch=epoch, revision=revision, compiled_unix_s=compiled_unix_s)
    assert snapshots.content_hash(again) == snapshots.content_hash(first)


@pytest.mark.parametrize(
    "change",
    [
        (["tenant", 0, "tier"], "u"),
        (["key", 0, "hmac_sha256"], "1" * 64),
        (["model", 0, "channels"], {}),
        (["pool", 0, "max_replicas"], 9),
        (["quota", 0, "limits"], {"requests_per_minute": 61}),
        (["quota"], []),
        (["routing", 0, "bounded_load"], 1.5),
        (["admission", 0, "max_queued_tokens"], 5),
        (["rollout", 0, "min_requests"], 5),
        (["rollout", 0, "sticky"], "tenant"),
        (["rollout", 0, "false_alarm_ratio"], 0.02),
        (["autoscaling", 0, "warm"], 1),
    ],
)
def test_any_change_of_content_changes_the_hash(change: tuple[list[Any], object]) -> None:
    original = snapshots.content_hash(snapshots.decode(lines(DOCUMENT)))
    assert snapshots.content_hash(snapshots.decode(with_(*change))) != original


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["snapshot", 0, "schema_version"], 1, "schema version 1; this build reads 3"),
        (["snapshot", 0, "epoch"], -1, "Expected `int` >= 0"),
        (["snapshot", 0, "epoch"], 10**9 + 1, "Expected `int` <= 1000000000"),
        (["snapshot", 0, "surprise"], 1, "unknown field `surprise`"),
        (["snapshot"], [], "not a snapshot"),
        (["tenant", 0, "surprise"], 1, "unknown field `surprise`"),
        (["key", 0, "tenant"], "globex", "belongs to tenant globex, which is not in the snapshot"),
        (["key", 0, "hmac_sha256"], "0" * 63, "hmac_sha256"),
        (["key", 0, "hmac_sha256"], "0" * 64 + "\n", "hmac_sha256"),
        (["key", 0, "scopes"], ["root"], "Invalid enum value 'root'"),
        (["model", 0, "pool"], "gone", "served by pool gone, which is not in the snapshot"),
        (["model", 0, "rollout"], "gone", "rolled out by gone, which is not in the snapshot"),
        (["model", 0, "channels"], {"stable": "v9"}, "points at version v9, which does not exist"),
        (["model", 0, "versions", 0, "digest"], "sha256:a", "digest"),
        (["model", 0, "id"], "../acme", "id"),
        (["pool", 0, "context_window_tokens"], 0, "Expected `int` >= 1"),
        (["autoscaling", 0, "pool"], "gone", "is for pool gone, which is not in the snapshot"),
        (["quota", 0, "weight"], 0.0, "weight"),
        (["quota", 0, "limits"], {"requests_per_minute": -1}, "requests_per_minute"),
        (["routing", 0, "pools"], ["a*b"], "pools"),
        (["admission", 0, "bands", 0, "share_ratio"], 1.5, "share_ratio"),
        (["rollout", 0, "stages", 0, "percent"], 101, "percent"),
        (["tenant"], DOCUMENT["tenant"] * 2, "the tenant acme occurs twice"),
        (["key"], DOCUMENT["key"] * 2, "the key ci occurs twice"),
        (["model"], DOCUMENT["model"] * 2, "the model acme/bot occurs twice"),
        (["pool"], DOCUMENT["pool"] * 2, "the pool base occurs twice"),
        (["pool"], [{"name": "z", "context_window_tokens": 1}, *DOCUMENT["pool"]], "the pool base is out of order"),
        (["model", 0, "versions"], DOCUMENT["model"][0]["versions"] * 2, "the version of acme/bot v1 occurs twice"),
        (["removed"], [{"section": "tenants", "name": "x"}], "removes the tenant x, which is not in its base"),
        (["snapshot", 0, "base"], "sha256:0", "a delta for sha256:0"),
    ],
)
def test_what_cannot_be_used_is_refused(path: list[Any], value: object, says: str) -> None:
    with pytest.raises(SnapshotInvalid, match=says.replace("[", r"\[")):
        snapshots.decode(with_(path, value))


def test_a_section_out_of_order_is_refused() -> None:
    document = {tag: DOCUMENT[tag] for tag in ("snapshot", "tenant", "pool")}
    with pytest.raises(SnapshotInvalid, match="the pool base is out of order"):
        snapshots.decode(lines(document))


def test_a_torn_document_is_refused_wherever_it_ends() -> None:
    """A document cut between two lines parses; only the hash beside it detects that."""
    document = lines(DOCUMENT)
    for length in range(len(document)):
        if document[length - 1 : length] != b"\n":
            with pytest.raises(SnapshotInvalid):
                snapshots.decode(document[:length])


@pytest.mark.parametrize(
    "document", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"epoch":NaN}', b"{}" * 2, b"\n\n"]
)
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


VERSIONS = [{"name": name, "digest": DIGEST, "engine_name": name, "artifact_uri": "s3://b/x"} for name in ("v1", "v2")]
SPLIT = {"channel": "stable", "rollout": "ro-12345678", "stage": 0, "percent": 10, "candidate": "v2"}


def split_into(*splits: dict[str, object]) -> bytes:
    model = {**DOCUMENT["model"][0], "versions": VERSIONS, "splits": splits}
    return with_(["model", 0], model)


def test_a_channel_may_be_split() -> None:
    snapshot = snapshots.decode(split_into(SPLIT))
    (split,) = snapshot.models[0].splits
    assert (split.channel, split.percent, split.candidate, split.sticky) == ("stable", 10, "v2", "session")
    assert snapshots.decode(snapshots.encode(snapshot)) == snapshot
    assert snapshots.content_hash(snapshot) != snapshots.content_hash(snapshots.decode(split_into()))


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        (({**SPLIT, "candidate": "v3"},), "names version v3, which does not exist"),
        (({**SPLIT, "candidate": "v1"},), "needs a channel that points at another version than v1"),
        (({**SPLIT, "channel": "next"},), "needs a channel that points at another version than v2"),
        ((SPLIT, SPLIT), "the split of acme/bot:stable occurs twice"),
        (({**SPLIT, "percent": 100},), "percent"),
        (({**SPLIT, "percent": 0},), "percent"),
        (({**SPLIT, "stage": -1},), "stage"),
        (({**SPLIT, "rollout": "ro-UPPER123"},), "rollout"),
        (({**SPLIT, "sticky": "user"},), "sticky"),
        (({**SPLIT, "more": 1},), "more"),
    ],
)
def test_a_split_that_contradicts_itself_is_refused(splits: tuple[dict[str, object], ...], says: str) -> None:
    with pytest.raises(SnapshotInvalid, match=says):
        snapshots.decode(split_into(*splits))
