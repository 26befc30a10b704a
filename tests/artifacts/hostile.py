"""Adapters that must be refused: a table of defect → builder → message of the refusal.

Each builder writes an adapter with one defect into an empty directory. `HOSTILE` adapters are always wrong.
`AGAINST_BASE` adapters are valid but do not fit the model `BASE`, which the plain `make_adapter` fits.
"""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from functions.artifacts.base_facts import BaseFacts
from tests.artifacts.adapter_files import MODULE, config, make_adapter, safetensors_bytes, tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAYERS = 2
_ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (8, 8))
BASE = BaseFacts(
    names=("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    layers=LAYERS,
    modules={
        "model.embed_tokens": (64, 8),
        "lm_head": (8, 64),
        "model.layers.0.mlp.experts.w": (0, 0),
        **{
            f"model.layers.{layer}.self_attn.{name}": size
            for layer in range(LAYERS)
            for name, size in _ATTENTION.items()
        },
        **{f"model.layers.{layer}.mlp.up_proj": (8, 32) for layer in range(LAYERS)},
    },
)


@dataclass(frozen=True)
class Hostile:
    build: Callable[[Path], object]
    words: str  # a regular expression


def _configured(**changes: Any) -> Callable[[Path], object]:
    return lambda directory: make_adapter(directory, **changes)


def _with_file(name: str, content: bytes) -> Callable[[Path], object]:
    def build(directory: Path) -> None:
        make_adapter(directory)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return build


def _without(name: str) -> Callable[[Path], object]:
    return lambda directory: (make_adapter(directory) / name).unlink()


def _document(text: str) -> Callable[[Path], object]:
    return _with_file(CONFIG, text.encode())


def _weights(content: dict[str, tuple[str, list[int], bytes]], **changes: Any) -> Callable[[Path], object]:
    def build(directory: Path) -> None:
        make_adapter(directory, **changes)
        (directory / WEIGHTS).write_bytes(safetensors_bytes(content))

    return build


def _header(text: str | bytes, data: bytes = b"") -> Callable[[Path], object]:
    encoded = text.encode() if isinstance(text, str) else text
    return _with_file(WEIGHTS, struct.pack("<Q", len(encoded)) + encoded + data)


def _link(directory: Path) -> None:
    (make_adapter(directory) / "notes.txt").symlink_to("/etc/hostname")


def _pipe(directory: Path) -> None:
    os.mkfifo(make_adapter(directory) / "notes.txt")


def _linked_weights(directory: Path) -> None:
    made = make_adapter(directory) / WEIGHTS
    made.rename(directory.parent / "elsewhere.safetensors")
    made.symlink_to(directory.parent / "elsewhere.safetensors")


def _valued(dtype: str, good: bytes, bad: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    """Return one LoRA pair of rank 4 whose last value is bad."""
    values = good * 31
    return {
        f"{MODULE}.lora_A.weight": (dtype, [4, 8], values + good),
        f"{MODULE}.lora_B.weight": (dtype, [8, 4], values + bad),
    }


def pair(module: str, in_features: int, out_features: int, rank: int = 4) -> dict[str, tuple[str, list[int], bytes]]:
    """One LoRA pair of zeros for one module of a base."""
    return {
        f"base_model.model.{module}.lora_A.weight": ("F32", [rank, in_features], bytes(4 * rank * in_features)),
        f"base_model.model.{module}.lora_B.weight": ("F32", [out_features, rank], bytes(4 * rank * out_features)),
    }


def embedding_pair(vocabulary: int, hidden: int, rank: int = 4) -> dict[str, tuple[str, list[int], bytes]]:
    name = "base_model.model.model.embed_tokens.lora_embedding"
    return {
        f"{name}_A": ("F32", [rank, vocabulary], bytes(4 * rank * vocabulary)),
        f"{name}_B": ("F32", [hidden, rank], bytes(4 * rank * hidden)),
    }


_GOOD_WEIGHTS = safetensors_bytes(tensors())
_ONE = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
_CONFIG_TEXT = json.dumps(config())
_A, _B = f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"

_FILES = {
    "weights missing": Hostile(_without(WEIGHTS), "safetensors is the only format"),
    "config missing": Hostile(_without(CONFIG), "adapter_config.json is missing"),
    "pickle beside": Hostile(_with_file("adapter_model.bin", b"\x80\x04."), r"adapter_model\.bin does not belong"),
    "torch file beside": Hostile(_with_file("model.pt", b"PK\x03\x04"), r"model\.pt does not belong"),
    "gguf beside": Hostile(_with_file("model.gguf", b"GGUF"), r"model\.gguf does not belong"),
    "code beside": Hostile(_with_file("modeling.py", b"import os"), r"modeling\.py does not belong"),
    "template beside": Hostile(_with_file("chat_template.jinja", b"{{ x }}"), "chat_template.jinja does not belong"),
    "second weights": Hostile(_with_file("other.safetensors", _GOOD_WEIGHTS), "other.safetensors does not belong"),
    "archive beside": Hostile(_with_file("weights.zip", b"PK\x03\x04"), r"weights\.zip does not belong"),
    "hidden file": Hostile(_with_file(".env", b"A=1"), r"\.env does not belong"),
    "folder": Hostile(_with_file("sub/x.json", b"{}"), "sub does not belong"),
    "link": Hostile(_link, r"notes\.txt does not belong"),
    "pipe": Hostile(_pipe, r"notes\.txt does not belong"),
    "linked weights": Hostile(_linked_weights, "cannot be opened as a plain file"),
    "pickle as text": Hostile(_with_file("README.md", b"\x80\x04\x95"), "README.md is not what its name says"),
    "zip as json": Hostile(_with_file("more.json", b"PK\x03\x04\0\0"), "more.json is not what its name says"),
    "gguf as text": Hostile(_with_file("notes.txt", b"GGUF\x03\0\0\0"), "notes.txt is not what its name says"),
    "program as text": Hostile(_with_file("notes.txt", b"\x7fELF\x02\x01\0"), "notes.txt is not what its name says"),
    "binary after a MiB of text": Hostile(
        _with_file("vocab.txt", b"a" * 1_100_000 + b"\xff"), "vocab.txt is not what its name says"
    ),
}
_CONFIGS = {
    "config empty": Hostile(_document(""), "not a PEFT configuration"),
    "config no object": Hostile(_document("[]"), "not a PEFT configuration"),
    "config without fields": Hostile(_document("{}"), "not a PEFT configuration"),
    "config deep": Hostile(_document('{"a":' * 9_000), "not a PEFT configuration"),
    "config of many values": Hostile(_document("{" + '"a":[' + "0," * 50_000 + "0]}"), "commas and brackets"),
    "config large": Hostile(_document(" " * 300_000), "over 262144 bytes"),
    "config key twice": Hostile(
        _document(_CONFIG_TEXT[:-1] + ', "r": 8}'), "not strict JSON: the key 'r' occurs twice"
    ),
    "config inner key twice": Hostile(
        _document(_CONFIG_TEXT.replace('"rank_pattern": {}', '"rank_pattern": {"q": 4, "q": 8}')), "'q' occurs twice"
    ),
    "config NaN": Hostile(_document(_CONFIG_TEXT.replace('"lora_alpha": 16', '"lora_alpha": NaN')), "NaN is not JSON"),
    "config infinite": Hostile(_document(_CONFIG_TEXT.replace("16", "1e400")), "not a PEFT configuration"),
    "config in another encoding": Hostile(_with_file(CONFIG, _CONFIG_TEXT.encode("utf-16")), "does not begin with"),
    "rank as text": Hostile(_configured(r=4) and _document(json.dumps(config(r="4"))), "not a PEFT configuration"),
    "rank huge": Hostile(_document(json.dumps(config(r=10**30))), "not a PEFT configuration"),
    "rank over the engine's": Hostile(_configured(r=32), "rank 32 is over the limit of 16: train with r <= 16"),
    "rank zero": Hostile(_document(json.dumps(config(r=0))), "rank 0 is not positive"),
    "rank negative in a pattern": Hostile(_configured(rank_pattern={"q_proj": -1}), "rank -1 is not positive"),
    "rank over in a pattern": Hostile(_configured(rank_pattern={"q_proj": 64}), "rank 64 is over"),
    "another method": Hostile(_configured(peft_type="LOHA"), "is not LORA"),
    "DoRA": Hostile(_configured(use_dora=True), "DoRA"),
    "bias": Hostile(_configured(bias="all"), "bias='none'"),
    "lora_bias": Hostile(_configured(lora_bias=True), "lora_bias"),
    "PiSSA": Hostile(_configured(init_lora_weights="pissa_niter_4"), "alters the base model's weights"),
    "whole modules": Hostile(_configured(modules_to_save=["lm_head"]), r"\['lm_head'\] cannot be served"),
    "activated LoRA": Hostile(_configured(alora_invocation_tokens=[1]), "activated LoRA"),
    "layer replication": Hostile(_configured(layer_replication=[[0, 4]]), "layer_replication"),
    "no target": Hostile(_configured(target_modules=[]), "names no module"),
    "target that is a slow expression": Hostile(_configured(target_modules=r"(.*)*\.q_proj"), "not expressions"),
    "rank pattern that is a slow expression": Hostile(_configured(rank_pattern={"(a+)+$": 4}), "not expressions"),
    "asks for code": Hostile(_configured(auto_map={"AutoModel": "evil.py--X"}), "would run code"),
    "trusts code": Hostile(_configured(trust_remote_code=True), "would run code"),
}
_HEADERS = {
    "pickle as weights": Hostile(_with_file(WEIGHTS, b"\x80\x04\x95" + bytes(40)), "it starts like a pickle"),
    "zip as weights": Hostile(_with_file(WEIGHTS, b"PK\x03\x04" + bytes(40)), "it starts like a zip archive"),
    "gguf as weights": Hostile(_with_file(WEIGHTS, b"GGUF\x03\0\0\0" + bytes(40)), "it starts like a GGUF file"),
    "weights empty": Hostile(_with_file(WEIGHTS, b""), "shorter than 8 bytes"),
    "weights cut": Hostile(_with_file(WEIGHTS, _GOOD_WEIGHTS[:-1]), "the tensors cover 256 of 255"),
    "weights cut in the header": Hostile(_with_file(WEIGHTS, _GOOD_WEIGHTS[:60]), "header length"),
    "bytes behind": Hostile(_with_file(WEIGHTS, _GOOD_WEIGHTS + b"\0"), "the tensors cover 256 of 257"),
    "header longer than the file": Hostile(_with_file(WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), "header length"),
    "header deep": Hostile(_header("{" + '"a":{' * 100_000), "not strict JSON"),
    "header of a million brackets": Hostile(_header('{"a":' + "[" * 1_000_000), "commas and brackets"),
    "header of many values": Hostile(_header('{"a":[' + "0," * 2_000_000 + "0]}"), "commas and brackets"),
    "header over the bound": Hostile(_header(b"{" + b" " * 17_000_000), "header length"),
    "tensor twice": Hostile(_header(f'{{"{_A}":{_ONE},"{_A}":{_ONE}}}', bytes(4)), "occurs twice"),
    "field twice": Hostile(_header(f'{{"{_A}":{_ONE[:-1]},"dtype":"F16"}}}}', bytes(4)), "'dtype' occurs twice"),
    "tensors over each other": Hostile(_header(f'{{"{_A}":{_ONE},"{_B}":{_ONE}}}', bytes(4)), "does not begin where"),
    "hole between tensors": Hostile(
        _header(f'{{"{_A}":{_ONE},"{_B}":{_ONE.replace("[0,4]", "[8,12]")}}}', bytes(12)), "does not begin where"
    ),
    "offsets backwards": Hostile(_header(f'{{"{_A}":{_ONE.replace("[0,4]", "[4,0]")}}}', bytes(4)), "data_offsets"),
    "shape that overflows": Hostile(
        _header(f'{{"{_A}":{_ONE.replace("[1]", "[4294967296,4294967296]")}}}', bytes(4)), "needs"
    ),
    "name that climbs": Hostile(_header(f'{{"../../x":{_ONE}}}', bytes(4)), "is not allowed"),
    "quantised": Hostile(_weights({_A: ("I8", [4, 8], bytes(32))}), "is of type 'I8'"),
    "NaN in F32": Hostile(_weights(_valued("F32", bytes(4), struct.pack("<f", float("nan")))), "NaN or infinity"),
    "infinity in F16": Hostile(_weights(_valued("F16", bytes(2), struct.pack("<e", float("-inf")))), "NaN or infinity"),
    "NaN in BF16": Hostile(_weights(_valued("BF16", bytes(2), b"\xc0\x7f")), "NaN or infinity"),
    "NaN in F64": Hostile(_weights(_valued("F64", bytes(8), struct.pack("<d", float("nan")))), "NaN or infinity"),
}
_PAIRS = {
    "another rank than it says": Hostile(_weights(tensors(rank=8)), r"has rank 8; adapter_config.json says \[4\]"),
    "whole weight": Hostile(
        _weights({"base_model.model.lm_head.weight": ("F32", [1, 1], bytes(4))}), "is not a LoRA weight"
    ),
    "magnitude": Hostile(
        _weights({f"{MODULE}.lora_magnitude_vector": ("F32", [8], bytes(32))}), "is not a LoRA weight"
    ),
    "name that the engine does not know": Hostile(
        _weights({f"{MODULE}.lora_A": ("F32", [4, 8], bytes(128))}), "is not a LoRA weight"
    ),
    "A alone": Hostile(_weights({_A: ("F32", [4, 8], bytes(128))}), "has no matching lora_B"),
    "B alone": Hostile(_weights({_B: ("F32", [8, 4], bytes(128))}), "has no matching lora_A"),
    "A and B of two ranks": Hostile(
        _weights({**tensors(rank=4), _B: ("F32", [8, 2], bytes(64))}, rank_pattern={"v_proj": 2}), "has rank"
    ),
}
HOSTILE = {**_FILES, **_CONFIGS, **_HEADERS, **_PAIRS}

AGAINST_BASE = {
    "of another base": Hostile(
        _configured(base_model_name_or_path="meta-llama/Llama-3.1-8B"),
        "is not the base model smollm2-135m, .*: register the adapter under the base that it was trained on",
    ),
    "target that the base has not": Hostile(
        _configured(target_modules=["q_proj", "c_attn"]), r"target_modules c_attn are not modules of the base.*q_proj"
    ),
    "layer beyond the base": Hostile(
        _weights(pair("model.layers.30.self_attn.q_proj", 8, 8)), "is for layer 30; the base has 2, numbered from 0"
    ),
    "module that the base has not": Hostile(
        _weights(pair("model.layers.0.attn.q_proj", 8, 8)),
        r"model\.layers\.0\.attn\.q_proj, which the base does not have",
    ),
    "other in features": Hostile(
        _weights(pair("model.layers.0.self_attn.q_proj", 16, 8)), "has 16 in features; .* has 8: train on this base"
    ),
    "other out features": Hostile(
        _weights(pair("model.layers.1.mlp.up_proj", 8, 8)), "has 8 out features; .* has 32: train on this base"
    ),
    "other vocabulary": Hostile(_weights(embedding_pair(100, 8)), "has 100 in features; .* has 64"),
}
