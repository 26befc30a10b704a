"""Parameters and KV cache of models, compared with published figures."""

import pytest

from functions.decisions.capacity.model_shape import KNOWN, ModelShape, ShapeUnknown, from_config, known_shape

SMOLLM = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "head_dim": 64,
}


def test_parameters_of_llama_8b() -> None:
    shape = KNOWN["llama-3.1-8b"]
    assert (shape.parameters, shape.active_parameters, shape.kv_values_per_token) == (8_030_261_248,) * 2 + (65_536,)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-3.3-70b", 70.55, 70.55), ("llama-3.1-405b", 405.85, 405.85), ("qwen3-32b", 32.76, 32.76),
        ("qwen3-30b-a3b", 30.53, 3.35), ("qwen2.5-72b", 72.71, 72.71), ("mixtral-8x7b", 46.70, 12.88),
        ("mistral-7b", 7.25, 7.25), ("smollm2-135m", 0.1345, 0.1345), ("deepseek-v3", 671.0, 37.0),
    ],
)  # fmt: skip
def test_parameters_match_published_figures(name: str, billions: float, active: float) -> None:
    assert KNOWN[name].parameters / 1e9 == pytest.approx(billions, rel=0.001)
    assert KNOWN[name].active_parameters / 1e9 == pytest.approx(active, rel=0.005)


def test_a_latent_cache_is_small() -> None:
    assert KNOWN["deepseek-v3"].kv_values_per_token == 61 * 576


def test_encoder_has_no_kv_cache() -> None:
    assert KNOWN["bge-m3"].kv_values_per_token == 0
    assert not from_config(SMOLLM | {"architectures": ["XLMRobertaModel"]}, "bge").has_cache


def test_a_config_is_read() -> None:
    shape = from_config(SMOLLM, "mine")
    assert shape == ModelShape(
        name="mine", layers=30, hidden=576, heads=9, kv_heads=3, head_size=64, mlp=1536, vocabulary=49_152, tied=True,
        window_tokens=8192,
    )  # fmt: skip
    assert shape.parameters == KNOWN["smollm2-135m"].parameters == 134_515_008


def test_expert_and_nested_configs_are_read() -> None:
    experts = SMOLLM | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    assert (from_config(experts, "x").mlp, from_config(experts, "x").experts_a_token) == (768, 8)
    assert from_config({"architectures": ["X"], "text_config": SMOLLM}, "x").layers == 30


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [None, 0, -1, "30", True, 1.5])
def test_config_without_required_keys_is_refused(key: str, value: object) -> None:
    with pytest.raises(ShapeUnknown, match=key):
        from_config(SMOLLM | {key: value}, "x")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-3.3-70b-instruct-fp8", "llama-3.3-70b"), ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("qwen3-30b-a3b-instruct", "qwen3-30b-a3b"), ("smollm2-135m", "smollm2-135m"),
    ],
)  # fmt: skip
def test_known_shape_is_found_by_name(text: str, name: str) -> None:
    assert known_shape(text).name == name


def test_unknown_name_lists_the_options() -> None:
    with pytest.raises(ShapeUnknown, match=r"--model-dir.*shoal.dev/architecture"):
        known_shape("our-own-7b")


def test_adapter_is_split_like_the_layers() -> None:
    shape = KNOWN["llama-3.1-8b"]
    whole = shape.adapter_values(16)
    assert whole == 32 * 16 * (4096 + 4096 + 2 * (4096 + 1024) + 2 * (4096 + 14_336) + 4096 + 4096 + 14_336 + 4096)
    assert whole / 2 < shape.adapter_values(16, 2) < whole
