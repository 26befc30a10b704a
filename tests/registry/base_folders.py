"""Base model folders that adapters are checked against."""

from pathlib import Path

from functions.artifacts.base_facts import FACTS_NAME, BaseFacts, encode

MODULE = "model.layers.0.self_attn.q_proj"


def put_facts(models: Path, folder: str, width: int) -> Path:
    """Write the facts of a base of that width into its folder; return their file."""
    (models / folder).mkdir(parents=True, exist_ok=True)
    file = models / folder / FACTS_NAME
    file.write_bytes(encode(BaseFacts((folder,), 30, {MODULE: (width, width)})))
    return file
