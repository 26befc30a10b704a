"""Facts that are read from a base model's directory, and directories that are refused."""

import json
import os
import struct
from pathlib import Path

import pytest

from functions.artifacts.base_facts import (
    FACTS_NAME,
    UNKNOWN_FEATURES,
    BaseFacts,
    decode,
    encode,
    facts_of,
)
from functions.artifacts.errors import ArtifactRefused

LINEAR = "model.layers.0.self_attn.k_proj"


def shard(directory: Path, name: str, shapes: dict[str, tuple[str, list[int]]]) -> None:
    """Write a safetensors file that consists of a header only, since nothing else may be read."""
    header = {
        tensor: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for tensor, (dtype, shape) in shapes.items()
    }
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (directory / name).write_bytes(struct.pack("<Q", len(encoded)) + encoded)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    directory.mkdir()
    config = {"num_hidden_layers": 2, "tie_word_embeddings": True, "_name_or_path": "HuggingFaceTB/SmolLM2-135M"}
    (directory / "config.json").write_text(json.dumps(config))
    shard(
        directory,
        "model-00001-of-00002.safetensors",
        {
            "model.embed_tokens.weight": ("BF16", [49152, 576]),
            f"{LINEAR}.weight": ("BF16", [192, 576]),
            f"{LINEAR}.bias": ("BF16", [192]),
            "model.norm.weight": ("BF16", [576]),
        },
    )
    shard(
        directory,
        "model-00002-of-00002.safetensors",
        {
            "model.layers.1.mlp.down_proj.weight": ("F8_E4M3", [576, 1536]),
            "model.layers.1.mlp.down_proj.weight_scale_inv": ("F32", [5, 12]),
            "model.layers.1.mlp.up_proj.qweight": ("I32", [72, 1536]),
            "model.layers.1.mlp.up_proj.qzeros": ("I32", [4, 192]),
            "model.layers.1.mlp.gate_proj.weight": ("U8", [442368, 1]),
            "model.layers.1.mlp.experts.gate_up_proj": ("BF16", [8, 576, 3072]),
        },
    )
    return directory


def test_worked_example(model: Path) -> None:
    """A Linear of 576 inputs and 192 outputs is stored as [192, 576]; an embedding of 49152 tokens as it is read."""
    facts = facts_of(model, names=("tiny",))
    assert facts.features_of(LINEAR) == (576, 192)
    assert facts.features_of("model.embed_tokens") == (49152, 576)
    assert facts.features_of("lm_head") == (576, 49152)  # tied: a module without a tensor of its own
    assert facts.layers == 2


def test_packed_weights_are_listed_without_shapes(model: Path) -> None:
    facts = facts_of(model, names=("tiny",))
    mlp = "model.layers.1.mlp"
    assert facts.features_of(f"{mlp}.down_proj") == (1536, 576)
    for packed in ("up_proj", "gate_proj", "experts.gate_up_proj"):
        assert facts.features_of(f"{mlp}.{packed}") == UNKNOWN_FEATURES
    assert facts.features_of("model.norm") is None
    assert len(facts.modules) == 7


def test_targets_match_whole_last_parts(model: Path) -> None:
    facts = facts_of(model, names=("tiny",))
    assert facts.has_target("k_proj")
    assert facts.has_target("self_attn.k_proj")
    assert facts.has_target(LINEAR)
    assert not facts.has_target("_proj")
    assert not facts.has_target("q_proj")
    assert "k_proj" in facts.targets()


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("tiny", True),
        ("HuggingFaceTB/SmolLM2-135M", True),
        ("smollm2-135m", True),
        ("/home/trainer/models/SmolLM2-135M/", True),
        ("SmolLM2-360M", False),
        ("tiny2", False),
        ("", False),
    ],
)
def test_base_names_are_recognized(model: Path, name: str, known: bool) -> None:
    assert facts_of(model, names=("tiny",)).has_name(name) is known


def test_facts_travel_as_one_document(model: Path, tmp_path: Path) -> None:
    facts = facts_of(model, names=("tiny",))
    assert decode(encode(facts)) == facts
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / FACTS_NAME).write_bytes(encode(facts))
    assert facts_of(shipped, names=("alias",)).names == ("alias", "tiny", "HuggingFaceTB/SmolLM2-135M")
    assert facts_of(shipped, names=()).modules == facts.modules


def test_multimodal_model_has_nested_layer_config(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 7}}))
    facts = facts_of(model, names=("tiny",))
    assert facts.layers == 7
    assert facts.features_of("lm_head") is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"", "not a model's configuration"),
        ("config.json", b"[]", "not a model's configuration"),
        ("config.json", b"{}", "how many layers"),
        ("config.json", b'{"num_hidden_layers": -1}', "how many layers"),
        ("config.json", b'{"num_hidden_layers": true}', "how many layers"),
        ("config.json", b" " * (1024 * 1024 + 1), "is over"),
        ("config.json", b'{"a":' * 100_000, "not a model's configuration"),
        ("z.safetensors", b"", "shorter than 8 bytes"),
        ("z.safetensors", struct.pack("<Q", 2**63), "header of"),
        ("z.safetensors", struct.pack("<Q", 100) + b"{", "is not JSON"),
        ("z.safetensors", struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        ("z.safetensors", struct.pack("<Q", 200_000) + b'{"a":' * 40_000, "is not JSON"),
        ("z.safetensors", struct.pack("<Q", 23) + b'{"a.w": {"shape": [-1]}}'[:23], "is not JSON"),
        ("z.safetensors", struct.pack("<Q", 24) + b'{"a.w": {"shape": [-1]}}', "impossible shape"),
        (FACTS_NAME, b"{}", "is not a document of base facts"),
        (FACTS_NAME, b'{"names":[],"layers":1,"modules":{"a":[1]}}', "is not a document of base facts"),
        (FACTS_NAME, b'{"names":[],"layers":1,"modules":{"a":[1,-2]}}', "is not a document of base facts"),
    ],
)
def test_invalid_model_directories_are_refused(model: Path, name: str, content: bytes, words: str) -> None:
    (model / name).write_bytes(content)
    with pytest.raises(ArtifactRefused, match=words):
        facts_of(model, names=("tiny",))


def test_weights_or_facts_must_be_there(model: Path, tmp_path: Path) -> None:
    for path in model.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ArtifactRefused, match="no safetensors file and no"):
        facts_of(model, names=("tiny",))
    with pytest.raises(ArtifactRefused, match=r"config\.json is missing"):
        facts_of(tmp_path / "nowhere", names=("tiny",))


def test_a_bare_document_of_facts_is_bounded() -> None:
    with pytest.raises(ArtifactRefused, match="is over"):
        decode(b" " * (32 * 1024 * 1024 + 1))


@pytest.mark.engine
def test_the_real_base_model() -> None:
    directory = os.environ.get("SHOAL_BASE_MODEL_DIR")
    if directory is None:
        pytest.skip("set SHOAL_BASE_MODEL_DIR to the directory of SmolLM2-135M (`make up` prepares one)")
    facts = facts_of(Path(directory), names=("smollm2-135m",))
    assert facts.layers == 30
    assert len(facts.modules) == 30 * 7 + 2
    assert facts.features_of("model.layers.29.self_attn.k_proj") == (576, 192)
    assert facts.features_of("model.layers.0.mlp.down_proj") == (1536, 576)
    assert facts.features_of("lm_head") == (576, 49152)
    assert isinstance(facts, BaseFacts)
    assert len(encode(facts)) < 16_000
