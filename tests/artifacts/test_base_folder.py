"""Prepare the folder of any base model, as a download leaves it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from functions.artifacts import directories
from functions.artifacts.base_folder import copy_plain, main, prepare
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME
from tests.artifacts.adapter_files import safetensors_bytes
from tests.manifests.rendering import MANIFESTS, render

WEIGHTS = {"model.layers.0.self_attn.q_proj.weight": ("F32", [4, 4], bytes(64))}


def model(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    told = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, **config}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(WEIGHTS))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def downloaded(cache: Path) -> Path:
    """Build a cache as huggingface_hub does: links into a folder of blobs."""
    blobs, snapshot = cache / "blobs", cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    model(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    (snapshot / ".gitattributes").write_text("")
    return snapshot


def test_a_folder_gets_the_manifest_that_verifies_it(tmp_path: Path) -> None:
    made = prepare(model(tmp_path / "llama"))
    assert (made.architecture, made.layers, made.files, made.was_there) == ("LlamaForCausalLM", 1, 3, False)
    directories.verify_directory(made.directory, made.digest)
    assert made.version_line() == f'- {{name: v1, artifact: "pvc://shoal-models/llama", digest: "{made.digest}"}}'


def test_folder_with_manifest_is_rehashed_only_on_size_change(tmp_path: Path) -> None:
    folder = model(tmp_path / "llama")
    first = prepare(folder)
    assert prepare(folder).was_there
    assert prepare(folder, again=True) == first
    (folder / "tokenizer.json").write_text("{ }")
    assert prepare(folder).digest != first.digest
    (folder / MANIFEST_NAME).write_text("of an earlier build")
    assert not prepare(folder).was_there


@pytest.mark.parametrize("left", [".cache", ".gitattributes", ".git", ".huggingface"])
def test_download_leftovers_are_named_and_deleted_only_on_request(tmp_path: Path, left: str) -> None:
    folder = model(tmp_path / "llama")
    clean = prepare(folder).digest
    (folder / MANIFEST_NAME).unlink()
    if left == ".gitattributes":
        (folder / left).write_text("x")
    else:
        (folder / left / "download").mkdir(parents=True)
    with pytest.raises(ArtifactRefused, match=f"{left} is not part of a model: delete it, or pass --clean"):
        prepare(folder)
    assert prepare(folder, clean=True).digest == clean
    assert not (folder / left).exists()


def test_a_downloads_cache_of_links_is_copied_as_plain_files(tmp_path: Path) -> None:
    snapshot = downloaded(tmp_path / "models--meta--llama")
    with pytest.raises(ArtifactRefused):
        prepare(snapshot, clean=True)
    copy_plain(downloaded(tmp_path / "again"), tmp_path / "llama")
    made = prepare(tmp_path / "llama")
    assert made.files == 3
    directories.verify_directory(tmp_path / "llama", made.digest)
    with pytest.raises(ArtifactRefused, match="exists already"):
        copy_plain(snapshot, tmp_path / "llama")


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "has no safetensors file"),
    ],
)
def test_folder_without_a_model_is_refused(tmp_path: Path, spoilt: str, words: str) -> None:
    folder = model(tmp_path / "llama")
    (folder / spoilt).unlink()
    with pytest.raises(ArtifactRefused, match=words):
        prepare(folder)
    assert not (folder / MANIFEST_NAME).exists()


def test_volume_is_prepared_and_failures_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "copy the weights there first" in capsys.readouterr().out
    one = model(tmp_path / "one")
    (model(tmp_path / "two") / ".gitattributes").write_text("")
    (tmp_path / "lost+found").mkdir()
    assert main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "one: LlamaForCausalLM, 1 layers, 3 files" in told
    assert "two: .gitattributes is not part of a model" in told
    assert main(["--clean", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "; manifest existed" in told and "; manifest written" in told
    assert f'digest: "{prepare(one).digest}"' in told


def test_the_jobs_command_is_this_module(tmp_path: Path) -> None:
    """Run the command of the manifests' Job on a test folder."""
    model(tmp_path / "llama")
    (container,) = render(MANIFESTS / "jobs" / "base-manifest").one("Job", "base-manifest")["spec"]["template"]["spec"][
        "containers"
    ]
    python, *arguments = [str(tmp_path) if each == "/models" else each for each in container["command"]]
    assert python == "python"
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "llama: LlamaForCausalLM" in done.stdout
    assert (tmp_path / "llama" / MANIFEST_NAME).is_file()
