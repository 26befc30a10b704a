"""Folders of base models, as far as adapters are checked against them."""

from pathlib import Path

from functions.artifacts.base_facts import FACTS_NAME, BaseFacts, encode

MODULE = "model.layers.0.self_attn.q_proj"


def put_facts(models: Path, folder: str, width: int) -> Path:
    """Facts of a base of that width in its folder; their file."""
    (models / folder).mkdir(parents=True, exist_ok=True)
    file = models / folder / FACTS_NAME
    file.write_bytes(encode(BaseFacts((folder,), 30, {MODULE: (width, width)})))
    return file
