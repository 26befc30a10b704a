"""Builders for adapter directories: good ones, and good ones with one thing wrong."""

import json
import struct
from pathlib import Path
from typing import Any

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


def tensors(rank: int = 4, width: int = 8) -> dict[str, tuple[str, list[int], bytes]]:
    """One LoRA pair in F32, all zeros."""
    return {
        f"{MODULE}.lora_A.weight": ("F32", [rank, width], bytes(4 * rank * width)),
        f"{MODULE}.lora_B.weight": ("F32", [width, rank], bytes(4 * rank * width)),
    }


def safetensors_bytes(content: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in content.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(data for _, _, data in content.values())


def config(**changes: Any) -> dict[str, Any]:
    """adapter_config.json as peft writes it, in the parts that matter here."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "smollm2-135m",
        "r": 4,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": None,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "inference_mode": True,
        **changes,
    }


def make_adapter(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A directory that passes every check; `seed` makes its weights differ, `changes` go into the configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    content = tensors(rank=changes.get("r", 4))
    name, (dtype, shape, data) = next(iter(content.items()))
    content[name] = (dtype, shape, struct.pack("<f", float(seed)) + data[4:])
    (directory / "adapter_config.json").write_text(json.dumps(config(**changes)))
    (directory / "adapter_model.safetensors").write_bytes(safetensors_bytes(content))
    (directory / "README.md").write_text("# an adapter\n")
    return directory
