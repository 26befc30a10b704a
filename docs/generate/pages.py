"""Which page is made of what."""

from collections.abc import Callable
from pathlib import Path

from docs.generate.commands import commands_page
from docs.generate.errors import errors_page
from docs.generate.fields import fields_page
from docs.generate.http import gateway_page, headers_page, registry_page
from docs.generate.kinds import kinds_page
from docs.generate.metrics import metrics_page
from docs.generate.observability import alerts_page
from docs.generate.settings import settings_page

FOLDER = Path(__file__).parents[1] / "reference"
_PAGES: dict[str, Callable[[], str]] = {
    "alerts.md": alerts_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
    "fields.md": fields_page,
    "gateway-http.md": gateway_page,
    "headers.md": headers_page,
    "kinds.md": kinds_page,
    "metrics.md": metrics_page,
    "registry-http.md": registry_page,
    "settings.md": settings_page,
}


def made() -> dict[str, str]:
    """Each page's text by its name below docs/reference."""
    return {name: make() for name, make in _PAGES.items()}
