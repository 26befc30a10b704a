"""Adapters: what vLLM would refuse, or should never see, is refused before it gets there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from functions.artifacts.adapters import check_adapter
from functions.artifacts.errors import ArtifactRefused
from tests.artifacts.adapter_files import MODULE, config, make_adapter, safetensors_bytes, tensors


def test_a_plain_lora_passes(tmp_path: Path) -> None:
    facts = check_adapter(make_adapter(tmp_path))
    assert (facts.rank, facts.target_modules, facts.tensors) == (4, ("q_proj", "v_proj"), 2)
    assert facts.weights_bytes == 2 * 4 * 4 * 8


@pytest.mark.parametrize(
    "changes", [{"use_rslora": True}, {"init_lora_weights": "gaussian"}, {"target_modules": "q_proj"}]
)
def test_features_that_vllm_serves_pass(tmp_path: Path, changes: dict[str, Any]) -> None:
    check_adapter(make_adapter(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "is not LORA"),
        ({"r": 32}, "max_lora_rank 16"),
        ({"rank_pattern": {"q_proj": 32}}, "rank 32 is over"),
        ({"rank_pattern": {"q_proj": 0}}, "not positive"),
        ({"bias": "all"}, "bias='none'"),
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"init_lora_weights": "olora"}, "olora"),
        ({"init_lora_weights": "loftq"}, "loftq"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"layer_replication": [[0, 4]]}, "layer_replication"),
        ({"use_bdlora": {"nblocks": 2}}, "block-diagonal"),
        ({"use_qalora": True}, "QALoRA"),
        ({"target_modules": []}, "names no module"),
        ({"target_modules": r"(.*)*\.q_proj"}, "not expressions"),
        ({"rank_pattern": {"(a+)+$": 4}}, "not expressions"),
        ({"alpha_pattern": {"(a|a)*b": 4.0}}, "not expressions"),
    ],
)
def test_refuses_the_configuration(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtifactRefused, match=words):
        check_adapter(make_adapter(tmp_path, **changes))


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match=r"max_lora_rank.*DoRA.*lora_bias"):
        check_adapter(make_adapter(tmp_path, r=64, use_dora=True, lora_bias=True))


@pytest.mark.parametrize(
    "document",
    ["", "[]", "{}", json.dumps(config(r="4")), json.dumps(config(r=True)), json.dumps(config(r=1.5)), "[" * 9999],
)
def test_refuses_what_is_no_configuration(tmp_path: Path, document: str) -> None:
    make_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(document)
    with pytest.raises(ArtifactRefused, match="not a PEFT configuration"):
        check_adapter(tmp_path)


def _pickled_readme(directory: Path) -> None:
    (directory / "README.md").write_bytes(b"\x80\x04\x95")


def _nested(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "x.json").write_text("{}")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda made: (made / "adapter_model.safetensors").unlink(), "safetensors is the only format"),
        (lambda made: (made / "adapter_config.json").unlink(), "adapter_config.json is missing"),
        (lambda made: (made / "adapter_model.bin").write_bytes(b"x"), "adapter_model.bin does not belong"),
        (lambda made: (made / "model.pt").write_bytes(b"x"), "model.pt"),
        (lambda made: (made / "model.gguf").write_bytes(b"GGUF"), "model.gguf"),
        (lambda made: (made / "modeling.py").write_text("import os"), "modeling.py"),
        (lambda made: (made / "chat_template.jinja").write_text("{{ x }}"), "chat_template.jinja"),
        (lambda made: (made / "other.safetensors").write_bytes(b"x"), "other.safetensors"),
        (lambda made: (made / "notes.txt").symlink_to("/etc/hostname"), "notes.txt"),
        (_pickled_readme, "README.md is not what its name says"),
        (_nested, "sub does not belong"),
        (lambda made: (made / "adapter_model.safetensors").write_bytes(b"\x80\x04" + bytes(40)), "header length"),
    ],
)
def test_refuses_the_files(tmp_path: Path, harm: Callable[[Path], object], words: str) -> None:
    make_adapter(tmp_path)
    harm(tmp_path)
    with pytest.raises(ArtifactRefused, match=words):
        check_adapter(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tensors(rank=8), "has rank 8"),
        ({"base_model.model.lm_head.weight": ("F32", [1, 1], bytes(4))}, "is not a LoRA weight"),
        ({f"{MODULE}.lora_A.weight": ("F32", [4, 8], bytes(128))}, "has no"),
        ({f"{MODULE}.lora_B.weight": ("F32", [8, 4], bytes(128))}, "has no"),
        ({f"{MODULE}.lora_magnitude_vector": ("F32", [8], bytes(32))}, "is not a LoRA weight"),
    ],
)
def test_refuses_the_weights(tmp_path: Path, content: dict[str, tuple[str, list[int], bytes]], words: str) -> None:
    make_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors_bytes(content))
    with pytest.raises(ArtifactRefused, match=words):
        check_adapter(tmp_path)
