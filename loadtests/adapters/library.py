"""Generated adapters: valid and distinct LoRA weights for SmolLM2-135M, published to the store by 4 threads.

Rank 8 on q_proj and v_proj of 30 layers in float16 is 0.92 MB. The B matrices are zero, as before training, except for
two numbers that make each adapter distinct. A real engine does the same work for them as for trained weights.
"""

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from functions.api.ids import Digest, ModelId
from functions.artifacts.publish import publish_content
from functions.artifacts.s3 import S3Store

LAYERS, HIDDEN, VALUES, RANK = 30, 576, 192, 8
_PUBLISHERS = 4
_SMALL = struct.pack("<e", 0.01)


def model_of(number: int) -> ModelId:
    return ModelId(f"acme/a-{number:05d}")


def publish_all(store: S3Store, folder: Path, count: int) -> list[Digest]:
    """Publish `count` adapters and return their digests, ordered by number."""
    template = _weights()

    def publish(number: int) -> Digest:
        directory = folder / f"{number:05d}"
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text(_config())
        (directory / "adapter_model.safetensors").write_bytes(template[:-8] + struct.pack("<ee", 0, 0) + _mark(number))
        digest = publish_content(store, directory)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        return digest

    with ThreadPoolExecutor(_PUBLISHERS) as pool:
        return list(pool.map(publish, range(count)))


def _mark(number: int) -> bytes:
    """Encode the number as two half floats below 1: k / 1,024 is exact."""
    return struct.pack("<ee", number // 1024 / 1024, number % 1024 / 1024)


def _weights() -> bytes:
    shapes: dict[str, list[int]] = {}
    for layer in range(LAYERS):
        for module, width in (("q_proj", HIDDEN), ("v_proj", VALUES)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            shapes[f"{name}.lora_A.weight"] = [RANK, HIDDEN]
            shapes[f"{name}.lora_B.weight"] = [width, RANK]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, (rows, columns) in shapes.items():
        content = (_SMALL if ".lora_A" in name else bytes(2)) * (rows * columns)
        header[name] = {
            "dtype": "F16",
            "shape": [rows, columns],
            "data_offsets": [len(body), len(body) + len(content)],
        }
        body += content
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + bytes(body)


def _config() -> str:
    return json.dumps(
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "smollm2-135m",
            "r": RANK,
            "lora_alpha": 16,
            "bias": "none",
            "target_modules": ["q_proj", "v_proj"],
            "init_lora_weights": True,
        }
    )
