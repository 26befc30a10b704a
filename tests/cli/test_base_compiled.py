"""`shoal base compiled`: upload an engine's compilation cache beside its weights; invalid input is rejected."""

import json
from pathlib import Path

import pytest

from functions.artifacts import compiled
from functions.artifacts.base_push import push as push_base
from functions.artifacts.base_sources import FolderSource
from functions.artifacts.locations import parse_weights_name
from functions.artifacts.s3 import S3Settings, S3Store
from functions.cli import base_push
from functions.cli.base_push import Bucket
from functions.cli.refused import CommandRefused
from tests.artifacts.conftest import s3_settings, store
from tests.artifacts.test_base_folder import model

__all__ = ["s3_settings", "store"]
pytestmark = pytest.mark.servers

TARGET = "llama-3-8b@v1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    graph = tmp_path / "root" / compiled.CACHE_FOLDER / "torch_aot_compile" / "261b6a" / "model"
    graph.parent.mkdir(parents=True)
    graph.write_bytes(b"graph")
    return tmp_path / "root"


@pytest.fixture
def to(s3_settings: S3Settings, tmp_path: Path) -> Bucket:
    keys = s3_settings.credentials
    file = tmp_path / "s3.json"
    file.write_text(json.dumps({"access_key_id": keys.access_key_id, "secret_access_key": keys.secret_access_key}))
    return Bucket(s3_settings.endpoint_url, file, s3_settings.bucket)


def test_what_was_compiled_comes_beside_its_weights(
    root: Path, to: Bucket, store: S3Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cache is stored under the digest of the weights and the engine's arguments, by which nodes look it up."""
    weights = FolderSource(model(tmp_path / "llama"))
    digest = push_base(store, weights, parse_weights_name(TARGET), weights.files()).digest
    base_push.push_compiled(TARGET, root, to, engine="0.32.0", accelerator="cpu", as_json=True)
    told = json.loads(capsys.readouterr().out)
    (companion,) = compiled.read_index(store, digest).companions
    assert (told["weights"], told["digest"], told["keys"]) == (digest, companion.digest, ["261b6a"])
    assert companion.fits("0.32.0/cpu") and not companion.fits("0.32.0/h100")
    base_push.push_compiled(TARGET, root, to, engine="0.32.0", accelerator="cpu", as_json=False)
    shown = capsys.readouterr().out
    assert f"✓ {TARGET} for 0.32.0 on cpu: 0.0 MB, 1 cache keys" in shown
    assert compiled.read_index(store, digest).companions == (companion,), "pushed again it is the same one"


def test_compile_cache_of_unpushed_weights_is_rejected(root: Path, to: Bucket) -> None:
    with pytest.raises(CommandRefused, match="unknown@v1"):
        base_push.push_compiled("unknown@v1", root, to, engine="0.32.0", accelerator="cpu", as_json=False)


def test_a_folder_that_no_engine_has_compiled_in_is_refused(tmp_path: Path, to: Bucket) -> None:
    """The error comes before any read or upload: the folder is probably the wrong one."""
    with pytest.raises(CommandRefused, match="has no folder torch_compile_cache: name the VLLM_CACHE_ROOT"):
        base_push.push_compiled(TARGET, tmp_path, to, engine="0.32.0", accelerator="cpu", as_json=False)


def test_words_that_are_none_are_refused(root: Path, to: Bucket, store: S3Store, tmp_path: Path) -> None:
    weights = FolderSource(model(tmp_path / "llama"))
    push_base(store, weights, parse_weights_name(TARGET), weights.files())
    with pytest.raises(CommandRefused, match="is not a name of an engine or accelerator"):
        base_push.push_compiled(TARGET, root, to, engine="0.32.0", accelerator="../h100", as_json=False)
