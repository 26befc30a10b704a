"""Corpora of the fuzz targets: `corpus/TARGET/` has one file per input, named by a hash of its content."""

import hashlib
from pathlib import Path

KEPT_MAX_FILES = 30
KEPT_MAX_BYTES = 1024
_HERE = Path(__file__).parent


def target_names() -> list[str]:
    return sorted(file.stem for file in (_HERE / "targets").glob("*.py") if file.stem != "__init__")


def folder_of(target: str) -> Path:
    return _HERE / "corpus" / target


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
