"""The adapter cache's disk: bounded, verified, and reused after a restart."""

import hashlib
import os
from pathlib import Path

from functions.replica.adapter_cache.objects import CachedObjects


def objects(root: Path, max_bytes: int = 1000) -> CachedObjects:
    opened = CachedObjects(root, max_bytes)
    opened.open()
    return opened


def put_object(cache: CachedObjects, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    cache.write("chunks", name, content)
    return name


def test_the_longest_unused_makes_room(tmp_path: Path) -> None:
    cache = objects(tmp_path)
    first, second = put_object(cache, b"a" * 400), put_object(cache, b"b" * 400)
    assert cache.read("chunks", first) == b"a" * 400
    third = put_object(cache, b"c" * 400)
    assert cache.read("chunks", second) is None
    assert cache.read("chunks", first) is not None
    assert cache.read("chunks", third) is not None
    assert (cache.total_bytes, cache.evicted_total) == (800, 1)
    assert len(list((tmp_path / "chunks").iterdir())) == 2


def test_object_larger_than_the_cache_is_not_stored(tmp_path: Path) -> None:
    cache = objects(tmp_path)
    small, large = put_object(cache, b"a" * 10), put_object(cache, b"b" * 1001)
    assert cache.read("chunks", large) is None
    assert cache.read("chunks", small) is not None


def test_corrupt_object_is_missing_and_can_be_stored_again(tmp_path: Path) -> None:
    cache = objects(tmp_path)
    name = put_object(cache, b"a" * 100)
    (tmp_path / "chunks" / name).write_bytes(b"b" * 100)
    assert cache.read("chunks", name) is None
    assert (cache.total_bytes, cache.rotten_total) == (0, 1)
    put_object(cache, b"a" * 100)
    assert cache.read("chunks", name) == b"a" * 100


def test_restart_restores_whole_objects_in_order_of_use(tmp_path: Path) -> None:
    cache = objects(tmp_path)
    names = [put_object(cache, bytes([number]) * 300) for number in range(3)]
    for age, name in enumerate(names):  # the clock is too coarse to order the files
        os.utime(tmp_path / "chunks" / name, (1000 + age, 1000 + age))
    (tmp_path / "coming" / "half").write_bytes(b"what a kill left")
    (tmp_path / "chunks" / "no-digest").write_bytes(b"?")
    again = objects(tmp_path)
    assert list((tmp_path / "coming").iterdir()) == []
    assert (len(again), again.total_bytes) == (3, 900)
    put_object(again, b"x" * 300)
    assert again.read("chunks", names[0]) is None
    assert again.read("chunks", names[1]) is not None
    smaller = objects(tmp_path, 300)
    assert len(smaller) == 1, "a smaller bound holds at once"


def test_a_chunk_and_a_manifest_of_one_name_are_two(tmp_path: Path) -> None:
    cache = objects(tmp_path)
    name = put_object(cache, b"a")
    assert cache.read("manifests", name) is None
