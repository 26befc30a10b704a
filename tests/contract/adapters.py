"""Tiny random LoRA adapters in PEFT's layout that a real vLLM loads."""

import json
import random
import struct
from array import array
from pathlib import Path
from typing import Any

_HIDDEN, _KV, _VOCABULARY = 576, 192, 49_152  # SmolLM2-135M


def make_adapter(
    directory: Path, *, base: str, seed: int, rank: int = 4, with_head: bool = False, **changes: Any
) -> Path:
    directory.mkdir(parents=True)
    rng = random.Random(seed)
    tensors: dict[str, tuple[list[int], bytes]] = {}
    for module, width in (("q_proj", _HIDDEN), ("v_proj", _KV)):
        name = f"base_model.model.model.layers.0.self_attn.{module}"
        tensors[f"{name}.lora_A.weight"] = ([rank, _HIDDEN], _floats(rng, rank * _HIDDEN))
        tensors[f"{name}.lora_B.weight"] = ([width, rank], _floats(rng, width * rank))
    if with_head:
        tensors["base_model.model.lm_head.lora_A.weight"] = ([rank, _HIDDEN], _floats(rng, rank * _HIDDEN))
        tensors["base_model.model.lm_head.lora_B.weight"] = ([_VOCABULARY, rank], _floats(rng, _VOCABULARY * rank))
        changes = {"target_modules": ["q_proj", "v_proj", "lm_head"]} | changes
    (directory / "adapter_model.safetensors").write_bytes(_safetensors(tensors))
    (directory / "adapter_config.json").write_text(json.dumps(_config(base, rank) | changes))
    return directory


def _floats(rng: random.Random, count: int) -> bytes:
    return array("f", (rng.gauss(0, 0.5) for _ in range(count))).tobytes()


def _safetensors(tensors: dict[str, tuple[list[int], bytes]]) -> bytes:
    header: dict[str, Any] = {}
    offset = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(data for _, data in tensors.values())


def _config(base: str, rank: int) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
