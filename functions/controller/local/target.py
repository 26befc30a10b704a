"""What the operator asked for: which engine, how many replicas. Kept on disk, for the controller that comes after."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from functions.controller.local.ledger import replace_file

EngineKind = Literal["vllm", "sim"]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: EngineKind = "vllm"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None  # None: as the InferenceService says


def read_target(path: Path) -> Target:
    """The default where nothing (readable) was asked for yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Target)
    except (OSError, msgspec.DecodeError):
        return Target()


def write_target(path: Path, target: Target) -> None:
    replace_file(path, msgspec.json.encode(target))
