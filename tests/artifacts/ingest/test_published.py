"""The hostile corpus, as a client with write access to the bucket could have published it."""

from pathlib import Path

import pytest

from functions.api.ids import TenantId
from functions.artifacts.adapters import TEXT_MAX_BYTES
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.ingest import Expectation, Ingest
from functions.artifacts.publish import publish_directory
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.hostile import AGAINST_BASE, BASE, HOSTILE
from tests.artifacts.memory_store import MemoryStore

URI = "s3://shoal-models/acme/bot/v1"
EXPECT = Expectation(tenant=TenantId("acme"), base=BASE)
CORPUS = {**HOSTILE, **AGAINST_BASE}
_NO_PLAIN_FILES = ("link", "pipe", "linked weights")  # no manifest is ever made of them
_NO_NAMES_FOR_MANIFESTS = ("hidden file",)


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    return Ingest(MemoryStore(), tmp_path / "staging")


def refused(ingest: Ingest, words: str) -> None:
    before = dict(ingest.store.objects)
    with pytest.raises(ArtifactRefused, match=words):
        ingest.from_uri(URI, EXPECT)
    assert ingest.store.objects == before
    assert list(ingest.staging_root.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in CORPUS if name not in _NO_PLAIN_FILES + _NO_NAMES_FOR_MANIFESTS])
def test_published_adapter_gets_all_checks(ingest: Ingest, tmp_path: Path, name: str) -> None:
    source = tmp_path / "hostile"
    source.mkdir()
    CORPUS[name].build(source)
    publish_directory(ingest.store, source, URI)
    words = "is in a folder" if name == "folder" else CORPUS[name].words
    refused(ingest, f"{words}|does not belong in an adapter")


@pytest.mark.parametrize("name", _NO_PLAIN_FILES)
def test_links_and_pipes_are_not_published(ingest: Ingest, tmp_path: Path, name: str) -> None:
    source = tmp_path / "hostile"
    source.mkdir()
    CORPUS[name].build(source)
    with pytest.raises(ArtifactRefused, match="only plain files are allowed"):
        publish_directory(ingest.store, source, URI)
    assert ingest.store.objects == {}


@pytest.mark.parametrize(
    "key", ["../adapter_model.safetensors", "../../../etc/x.json", "/etc/x.json", "a\x00.json", "", ".hidden.json"]
)
def test_keys_that_climb_out_of_the_prefix(ingest: Ingest, key: str) -> None:
    """Most stores refuse such keys, but an attacker could control this store."""
    ingest.store.put(f"acme/bot/v1/{key}", b"{}")
    refused(ingest, "is not allowed")


def test_large_text_is_refused_on_ingest_but_accepted_if_published(ingest: Ingest, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "adapter")
    (source / "notes.txt").write_bytes(b"x" * (TEXT_MAX_BYTES + 1))
    for path in source.iterdir():
        ingest.store.put(f"acme/bot/v1/{path.name}", path.read_bytes())
    anywhere = Expectation(tenant=TenantId("acme"))
    with pytest.raises(ArtifactRefused, match=r"notes\.txt is over 1048576 bytes"):
        ingest.from_uri(URI, anywhere)
    published = publish_directory(ingest.store, source, URI)
    assert ingest.from_uri(URI, anywhere).digest == published
