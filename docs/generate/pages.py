"""The modules that write docs/reference, each of which returns its pages and the CSV files beside them."""

from collections.abc import Callable
from pathlib import Path

from docs.generate.commands import commands_files
from docs.generate.errors import errors_files
from docs.generate.fields import fields_files
from docs.generate.http import gateway_files, headers_files, registry_files
from docs.generate.kinds import kinds_files
from docs.generate.metrics import metrics_files
from docs.generate.observability import alerts_files
from docs.generate.settings import settings_files

FOLDER = Path(__file__).parents[1] / "reference"
_WRITERS: tuple[Callable[[], dict[str, str]], ...] = (
    alerts_files,
    commands_files,
    errors_files,
    fields_files,
    gateway_files,
    headers_files,
    kinds_files,
    metrics_files,
    registry_files,
    settings_files,
)


def reference_files() -> dict[str, str]:
    """Return the text of each generated file by its path below docs/reference."""
    return {name: text for write in _WRITERS for name, text in write().items()}
