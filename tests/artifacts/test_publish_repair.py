"""Corrupt objects in the store keep their size and name; publishing the content again repairs them."""

from pathlib import Path
from typing import cast

import pytest

from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import ArtifactCorrupt
from functions.artifacts.fetch import fetch
from functions.artifacts.ingest import Expectation, Ingest, IngestPolicy
from functions.artifacts.publish import publish_content
from functions.artifacts.s3 import S3Store
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.memory_store import MemoryStore


def rot(objects: MemoryStore, prefix: str) -> None:
    for key, content in objects.objects.items():
        if key.startswith(prefix):
            objects.objects[key] = bytes([content[0] ^ 1]) + content[1:]


@pytest.mark.parametrize("prefix", ["chunks/", "manifests/"])
def test_publishing_again_repairs_corrupt_objects(tmp_path: Path, prefix: str) -> None:
    objects = MemoryStore()
    store = cast(S3Store, objects)
    adapter = make_adapter(tmp_path / "adapter")
    digest = publish_content(store, adapter)
    sound = dict(objects.objects)
    rot(objects, prefix)
    with pytest.raises(ArtifactCorrupt):
        fetch(store, ArtifactCache(tmp_path / "before"), digest)
    assert publish_content(store, adapter) == digest
    assert objects.objects == sound
    assert fetch(store, ArtifactCache(tmp_path / "after"), digest).is_dir()


def test_uploading_again_repairs_corrupt_objects(tmp_path: Path) -> None:
    objects = MemoryStore()
    ingest = Ingest(cast(S3Store, objects), tmp_path / "staging", IngestPolicy(reserve_free_bytes=0))
    adapter = make_adapter(tmp_path / "adapter")

    def uploaded() -> str:
        with ingest.upload() as upload:
            for path in sorted(adapter.iterdir()):
                with upload.file(path.name) as writer:
                    writer.write(path.read_bytes())
            return upload.finish(Expectation(tenant=None)).digest

    digest = uploaded()
    sound = dict(objects.objects)
    rot(objects, "")
    assert (uploaded(), objects.objects) == (digest, sound)
    assert manifests.digest_of(objects.objects["manifests/sha256/" + digest.removeprefix("sha256:")]) == digest
