"""`shoal base`: preparing a folder, and the command's output."""

import json
from pathlib import Path

import pytest

from functions.artifacts.base_facts import decode
from functions.cli import base
from functions.cli.refused import CommandRefused
from tests.artifacts.test_base_folder import downloaded, model


def test_a_manifest_is_written_and_what_a_model_pins_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model(tmp_path / "llama")
    base.manifest(folder, to=None, clean=False, again=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    base.manifest(folder, to=None, clean=False, again=False, as_json=False)
    shown = capsys.readouterr().out
    assert f'- {{name: v1, artifact: "pvc://shoal-models/llama", digest: "{told["digest"]}"}}' in shown
    assert "--again hashes the files again" in shown
    assert told["files"] == 3


def test_links_are_refused_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = downloaded(tmp_path / "cache")
    with pytest.raises(CommandRefused, match="--to DIR copies them as plain files"):
        base.manifest(snapshot, to=None, clean=True, again=False, as_json=False)
    base.manifest(downloaded(tmp_path / "other"), to=tmp_path / "llama", clean=False, again=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["version"].startswith(
        '- {name: v1, artifact: "pvc://shoal-models/llama"'
    )


def test_facts_are_one_document(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    base.facts(model(tmp_path / "llama"), names=["meta-llama/Llama-3.1-8B"])
    facts = decode(capsysbinary.readouterr().out)
    assert facts.has_name("llama-3.1-8b")
    assert facts.features_of("model.layers.0.self_attn.q_proj") == (4, 4)


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_what_is_no_folder_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandRefused, match="is not a folder"):
        base.manifest(tmp_path / name, to=None, clean=False, again=False, as_json=False)
