"""Digests from the stores, cached for a while; if a store does not answer, its last answer counts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, StoreUnavailable
from functions.artifacts.manifest import FileEntry, Manifest
from functions.controller.snapshot.resolve import FRESH_S, DigestReader, Resolver

D1, D2 = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
A, B, PVC = "s3://shoal-models/a/x/v1", "s3://shoal-models/b/x/v1", "pvc://shoal-models/base"


class Store:
    """Returns a prepared digest or raises a prepared error, and counts its calls."""

    def __init__(self) -> None:
        self.answers: dict[str, Digest | Exception] = {A: D1, B: D2, PVC: D1}
        self.asked: list[str] = []
        self.now_s = 0.0
        self.resolver = Resolver(self, clock=lambda: self.now_s)

    def __call__(self, artifact_uri: str) -> Digest:
        self.asked.append(artifact_uri)
        answer = self.answers.get(artifact_uri, ArtifactMissing(f"the store has no {artifact_uri}"))
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_every_address_gets_its_digest() -> None:
    resolved = await Store().resolver.resolve([A, B, A])
    assert (resolved.digests, resolved.problems) == ({A: D1, B: D2}, ())


async def test_digest_is_cached_for_a_while() -> None:
    store = Store()
    await store.resolver.resolve([A])
    store.answers[A] = D2
    store.now_s = FRESH_S - 0.1
    assert (await store.resolver.resolve([A])).digests == {A: D1}
    store.now_s = FRESH_S
    assert (await store.resolver.resolve([A])).digests == {A: D2}
    assert store.asked == [A, A]


async def test_missing_digest_is_requested_each_time() -> None:
    store = Store()
    store.answers[A] = ArtifactMissing("the store has no such pointer")
    missing = await store.resolver.resolve([A, B])
    assert missing.digests == {B: D2}
    assert missing.problems == (f"{A}: the store has no such pointer",)
    store.answers[A] = D1
    assert (await store.resolver.resolve([A, B])).digests == {A: D1, B: D2}


FAILURES: list[Callable[[str], Exception]] = [StoreUnavailable, ArtifactMissing, ArtifactRefused, ArtifactCorrupt]


@pytest.mark.parametrize("failure", FAILURES)
async def test_unknown_digest_keeps_the_last_one(failure: Callable[[str], Exception]) -> None:
    store = Store()
    await store.resolver.resolve([A])
    store.now_s, store.answers[A] = FRESH_S, failure("no")
    resolved = await store.resolver.resolve([A])
    assert resolved.digests == {A: D1}
    assert resolved.problems == (f"{A}: no; the last known digest {D1} stays",)


async def test_previously_known_digest_is_only_a_fallback() -> None:
    store = Store()
    await store.resolver.resolve([B])
    store.answers[A] = StoreUnavailable("away")
    store.resolver.add_known({A: D2, B: D1})
    assert (await store.resolver.resolve([A, B])).digests == {A: D2, B: D2}


async def test_unreachable_store_is_not_queried_for_every_address() -> None:
    store = Store()
    addresses = [f"s3://shoal-models/t/m{number}/v1" for number in range(100)]
    store.answers = dict.fromkeys(addresses, StoreUnavailable("timed out")) | {PVC: D1}
    resolved = await store.resolver.resolve([*addresses, PVC])
    assert len(store.asked) <= 8 + 1, "those who were under way when it was learnt, and the other store"
    assert len(resolved.problems) == 100
    assert resolved.digests == {PVC: D1}


async def test_only_requested_digests_are_remembered() -> None:
    store = Store()
    await store.resolver.resolve([A])
    await store.resolver.resolve([B])
    store.answers[A] = StoreUnavailable("away")
    assert (await store.resolver.resolve([A])).digests == {}


def put_model(root: Path, name: str) -> Digest:
    document = manifests.encode(Manifest(files=(FileEntry("config.json", 2, "a" * 64, ("a" * 64,)),)))
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "shoal-manifest.json").write_bytes(document)
    return manifests.digest_of(document)


def test_a_models_folder_has_the_digest_of_its_manifest(tmp_path: Path) -> None:
    digest = put_model(tmp_path, "smollm2-135m")
    assert DigestReader(None, tmp_path)("pvc://shoal-models/smollm2-135m") == digest


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("pvc://shoal-models/none", ArtifactMissing),
        ("pvc://shoal-models/../secret", ArtifactRefused),
        ("pvc://shoal-models/", ArtifactRefused),
        ("pvc://shoal-models", ArtifactRefused),
        ("pvc://shoal-models/a//b", ArtifactRefused),
        ("s3://shoal-models/a/b/v1", ArtifactRefused),
    ],
)
def test_no_folder_is_no_digest(tmp_path: Path, uri: str, error: type[Exception]) -> None:
    (tmp_path / "models").mkdir()
    put_model(tmp_path, "secret")
    with pytest.raises(error):
        DigestReader(None, tmp_path / "models")(uri)


def test_invalid_manifest_is_refused(tmp_path: Path) -> None:
    put_model(tmp_path, "m")
    (tmp_path / "m" / "shoal-manifest.json").write_bytes(b"{}")
    with pytest.raises(ArtifactRefused):
        DigestReader(None, tmp_path)("pvc://shoal-models/m")
