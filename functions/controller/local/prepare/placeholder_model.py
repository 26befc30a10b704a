"""What the simulated engine "serves" where no real model was prepared: a directory with a config and a manifest.

It lies below `models/sim/`, apart from the real models: a placeholder must never be taken for one of them. With a real
model prepared, the simulated engine uses that one, and so its tokenizer.
"""

import json
from pathlib import Path

from functions.artifacts.directories import write_manifest
from functions.artifacts.manifest import MANIFEST_NAME
from functions.controller.local.context import PLACEHOLDER_MODELS
from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import replace_file
from functions.controller.local.prepare.base_model import MODEL_NAME, model_is_ready, renew_manifest
from functions.controller.local.target import EngineKind


def ensure_placeholder_model(layout: StateLayout) -> None:
    if model_is_ready(layout):
        renew_manifest(layout.models_dir / MODEL_NAME)
    directory = layout.models_dir / PLACEHOLDER_MODELS / MODEL_NAME
    if (directory / MANIFEST_NAME).is_file():
        renew_manifest(directory)
        return
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 8192,
        "shoal_tokenizer": "builtin",  # of the simulated engine: gateways that count tokens read it here
    }
    replace_file(directory / "config.json", json.dumps(config, indent=1).encode(), mode=0o644)
    write_manifest(directory)


def models_root(layout: StateLayout, engine: EngineKind) -> Path:
    """Where `pvc://shoal-models/<name>` lies for this engine."""
    if engine == "sim" and not model_is_ready(layout):
        return layout.models_dir / PLACEHOLDER_MODELS
    return layout.models_dir
