"""Adapters that vLLM would refuse are refused earlier, and adapters that it serves pass. See also test_hostile."""

from pathlib import Path
from typing import Any

import pytest

from functions.artifacts.adapters import TEXT_MAX_BYTES, check_adapter
from functions.artifacts.errors import ArtifactRefused
from tests.artifacts.adapter_files import make_adapter, safetensors_bytes, tensors
from tests.artifacts.hostile import pair


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
        ({"init_lora_weights": "olora"}, "olora"),
        ({"init_lora_weights": "loftq"}, "loftq"),
        ({"use_bdlora": {"nblocks": 2}}, "block-diagonal"),
        ({"use_qalora": True}, "QALoRA"),
        ({"alpha_pattern": {"(a|a)*b": 4.0}}, "not expressions"),
    ],
)
def test_refuses_the_configuration(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtifactRefused, match=words):
        check_adapter(make_adapter(tmp_path, **changes))


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ArtifactRefused, match=r"over the limit of.*DoRA.*lora_bias"):
        check_adapter(make_adapter(tmp_path, r=64, use_dora=True, lora_bias=True))


def test_ranks_may_differ_by_module(tmp_path: Path) -> None:
    make_adapter(tmp_path, rank_pattern={"v_proj": 8})
    content = {**tensors(rank=4), **pair("model.layers.0.self_attn.v_proj", 8, 8, rank=8)}
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors_bytes(content))
    assert check_adapter(tmp_path).rank == 8


def test_text_limit_exempts_large_training_files(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    text = b"x" * (TEXT_MAX_BYTES + 1)
    for name in ("tokenizer.json", "tokenizer_config.json", "trainer_state.json"):
        (adapter / name).write_bytes(text)
    assert check_adapter(adapter, text_max_bytes=TEXT_MAX_BYTES).rank == 4
    (adapter / "notes.json").write_bytes(text)
    with pytest.raises(ArtifactRefused, match=r"notes\.json is over 1048576 bytes"):
        check_adapter(adapter, text_max_bytes=TEXT_MAX_BYTES)


def test_large_text_without_a_limit_passes(tmp_path: Path) -> None:
    """Agents check every artifact that they fetch, and a version never changes."""
    adapter = make_adapter(tmp_path / "adapter")
    (adapter / "notes.json").write_bytes(b"x" * (TEXT_MAX_BYTES + 1))
    assert check_adapter(adapter).rank == 4
