"""Create and check buckets on a real store; a store that lacks a needed feature is reported with that feature."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from functions.artifacts.buckets import try_bucket
from functions.artifacts.errors import StoreRefused, StoreUnfit
from functions.artifacts.s3 import S3Settings, S3Store, StoredObject
from tests.artifacts.conftest import CREDENTIALS


class Kept:
    """Store in a dictionary with the operations that are checked and one defect."""

    bucket = "shoal-models"

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.objects: dict[str, bytes] = {}

    def ensure_bucket(self) -> None:
        if self.wrong == "bucket":
            raise StoreRefused("bucket shoal-models: AccessDenied")

    def put_new(self, key: str, body: bytes) -> bool:
        if self.wrong == "no conditions":
            raise StoreUnfit("shoal-models does not support conditional writes (If-None-Match: *)")
        if self.wrong == "condition unknown" or (key in self.objects and self.wrong != "condition ignored"):
            return False
        self.objects[key] = body
        return True

    def read_small(self, key: str, max_bytes: int) -> bytes:
        return self.objects[key][:max_bytes]

    def list(self, prefix: str) -> list[StoredObject]:
        return [] if self.wrong == "listing" else [StoredObject(key, 1, 0.0) for key in self.objects]

    def delete(self, keys: Sequence[str]) -> None:
        if self.wrong != "versions":
            for key in keys:
                self.objects.pop(key, None)

    def size_of(self, key: str) -> int | None:
        return len(self.objects[key]) if key in self.objects else None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("", ""),
        ("bucket", "grant these credentials all rights on it"),
        ("no conditions", "does not support conditional writes (If-None-Match: *): use a store that does"),
        ("condition unknown", "of a new object is refused"),
        ("condition ignored", "overwrites an existing object"),
        ("listing", "a listing does not show what was written"),
        ("versions", "turn off versioning of the bucket"),
    ],
)
def test_missing_store_feature_is_reported(wrong: str, told: str) -> None:
    problem = try_bucket(Kept(wrong)).problem  # type: ignore[arg-type]
    assert (told in problem) if told else problem == ""


@pytest.mark.parametrize("needs_conditions", [True, False])
def test_store_without_conditional_writes_fails_only_if_needed(
    monkeypatch: pytest.MonkeyPatch, *, needs_conditions: bool
) -> None:
    """A publisher falls back to checking first, since its content is always the same; other writers need conditions."""
    store = S3Store(S3Settings("http://127.0.0.1:9", CREDENTIALS, needs_conditions=needs_conditions))
    written: list[str] = []

    def put_object(**request: Any) -> None:
        if "IfNoneMatch" in request:
            raise ClientError({"Error": {"Code": "NotImplemented"}}, "PutObject")
        written.append(request["Key"])

    def head_object(**request: Any) -> None:
        raise ClientError({"Error": {"Code": "404"}}, "HeadObject")

    monkeypatch.setattr(store.client, "put_object", put_object)
    monkeypatch.setattr(store.client, "head_object", head_object)
    if needs_conditions:
        with pytest.raises(StoreUnfit):
            store.put_new("a", b"1")
    else:
        assert store.put_new("a", b"1")
    assert written == ([] if needs_conditions else ["a"])


@pytest.mark.servers
def test_buckets_are_made_and_nothing_is_left_in_them(s3_settings: S3Settings, tmp_path: Path) -> None:
    """Run the Job's command for two buckets, the second with wrong credentials."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(
        json.dumps({"access_key_id": CREDENTIALS.access_key_id, "secret_access_key": CREDENTIALS.secret_access_key})
    )
    bad.write_text(json.dumps({"access_key_id": "nobody", "secret_access_key": "knows"}))
    command = [sys.executable, "-m", "functions.artifacts.buckets", s3_settings.endpoint_url]
    done = subprocess.run(
        [*command, f"made-here={good}", f"made-there={bad}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("made-here at http://") and first.endswith("exists and supports conditional writes")
    assert "grant these credentials all rights on it" in second
    store = S3Store(replace(s3_settings, bucket="made-here"))
    assert list(store.list("")) == []
    store.close()
    again = subprocess.run([*command, f"made-here={good}"], capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stdout
