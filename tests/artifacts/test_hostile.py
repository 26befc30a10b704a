"""Every adapter of the hostile corpus is refused with its message; similar valid adapters pass."""

from pathlib import Path
from typing import Any

import pytest

from functions.artifacts.adapters import check_adapter
from functions.artifacts.errors import ArtifactRefused
from tests.artifacts.adapter_files import make_adapter, safetensors_bytes
from tests.artifacts.hostile import AGAINST_BASE, BASE, HOSTILE, embedding_pair, pair


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_adapter_is_refused_with_its_message(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "adapter"
    directory.mkdir()
    HOSTILE[name].build(directory)
    with pytest.raises(ArtifactRefused, match=HOSTILE[name].words) as refused:
        check_adapter(directory)
    assert len(str(refused.value)) < 2000
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("name", AGAINST_BASE)
def test_misfitting_adapter_is_refused_only_if_the_base_is_known(tmp_path: Path, name: str) -> None:
    AGAINST_BASE[name].build(tmp_path)
    check_adapter(tmp_path)
    with pytest.raises(ArtifactRefused, match=AGAINST_BASE[name].words):
        check_adapter(tmp_path, base=BASE)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"base_model_name_or_path": None},
        {"base_model_name_or_path": ""},
        {"base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        {"base_model_name_or_path": "/home/me/smollm2-135m/"},
        {"target_modules": "all-linear"},
        {"target_modules": ["self_attn.q_proj", "lm_head"]},
    ],
)
def test_a_fitting_configuration_passes(tmp_path: Path, changes: dict[str, Any]) -> None:
    check_adapter(make_adapter(tmp_path, **changes), base=BASE)


@pytest.mark.parametrize(
    "content",
    [
        pair("model.layers.1.self_attn.v_proj", 8, 8),
        pair("model.layers.1.mlp.up_proj", 8, 32),
        pair("lm_head", 8, 64),
        pair("model.layers.0.mlp.experts", 5, 5),
        pair("model.layers.0.mlp.experts.w", 5, 5),
        embedding_pair(64, 8),
    ],
)
def test_the_pair_must_fit_the_base(tmp_path: Path, content: dict[str, tuple[str, list[int], bytes]]) -> None:
    make_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors_bytes(content))
    check_adapter(tmp_path, base=BASE)


def test_transposed_base_weight_fits_too(tmp_path: Path) -> None:
    make_adapter(tmp_path, fan_in_fan_out=True)
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors_bytes(pair("model.layers.0.mlp.up_proj", 32, 8)))
    check_adapter(tmp_path, base=BASE)


def test_a_tokenizer_beside_the_adapter_is_no_harm(tmp_path: Path) -> None:
    make_adapter(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"ä": "€"}' * 300_000)  # letters cut in two by the blocks read
    check_adapter(tmp_path)
