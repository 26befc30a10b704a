"""Which file names an adapter may have: decided before a byte is written.

What an adapter consists of is known, so that names are an allowlist: its configuration, its weights, its signature,
and plain documents. Safe spelling (no traversal, no device names, bounded depth) is the manifest's own law.
"""

from functions.artifacts import manifest as manifests
from functions.artifacts.adapters import CONFIG_NAME, WEIGHTS_NAME
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.signatures import SIGNATURE_NAME

_EXACT = (CONFIG_NAME, WEIGHTS_NAME, SIGNATURE_NAME)
_SUFFIXES = (".json", ".md", ".txt")


def check_name(path: str) -> None:
    """Raise ArtifactRefused unless `path` may be a file of an adapter."""
    manifests.check_path(path)
    if "/" in path:
        raise ArtifactRefused(f"{path} lies in a folder; an adapter's files lie side by side")
    if path not in _EXACT and not path.lower().endswith(_SUFFIXES):
        raise ArtifactRefused(
            f"{path} does not belong in an adapter: only {', '.join(_EXACT)} and plain {' '.join(_SUFFIXES)} files"
        )
