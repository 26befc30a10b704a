"""Reports of drills: JSON files that `shoal drill` leaves in the fleet's state, the newest first. Blocks.

A file is one report; what is not one (too large, no JSON, no object) is listed by its name with the reason, so that a
report that cannot be read is not taken for a drill that was never made. On a cluster there is no such folder, and the
list is empty.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import orjson

SHOWN = 50
_LOOKED_AT = 2000
REPORT_MAX_BYTES = 1024 * 1024
_UNSHOWN = frozenset({"recorded"})  # series for tests of the rules: a megabyte or two of a page, for nobody
_FIELDS_MAX = 60
_ITEMS_MAX = 60
_WORDS_MAX_CHARS = 1000
_DEPTH_MAX = 3


def reports(folder: Path | None) -> dict[str, Any]:
    """Bounded in number, size and depth."""
    files = list(islice(folder.rglob("*.json"), _LOOKED_AT)) if folder is not None and folder.is_dir() else []
    dated = sorted(((_changed_unix_s(file), file) for file in files), reverse=True)
    return {
        "object": "list",
        "configured": folder is not None,
        "data": [_report(file, changed_unix_s) for changed_unix_s, file in dated[:SHOWN]],
        "total": len(files),
    }


def _report(file: Path, changed_unix_s: float) -> dict[str, Any]:
    about = {"file": file.name, "changed_unix_s": changed_unix_s}
    try:
        with file.open("rb") as opened:
            content = opened.read(REPORT_MAX_BYTES + 1)
        if len(content) > REPORT_MAX_BYTES:
            return {**about, "trouble": f"over {REPORT_MAX_BYTES} bytes", "report": {}}
        report = orjson.loads(content)
    except (OSError, orjson.JSONDecodeError) as error:
        return {**about, "trouble": str(error)[:_WORDS_MAX_CHARS], "report": {}}
    if not isinstance(report, dict):
        return {**about, "trouble": "no report: not a JSON object", "report": {}}
    shown = {name: value for name, value in report.items() if name not in _UNSHOWN}
    return {**about, "trouble": "", "report": _bounded(shown, _DEPTH_MAX)}


def _bounded(value: Any, depth: int) -> Any:
    """What a page can show of it."""
    if isinstance(value, dict):
        kept = list(value.items())[:_FIELDS_MAX]
        return {str(name)[:200]: _bounded(inner, depth - 1) for name, inner in kept} if depth else "…"
    if isinstance(value, list):
        return [_bounded(inner, depth - 1) for inner in value[:_ITEMS_MAX]] if depth else "…"
    return value[:_WORDS_MAX_CHARS] if isinstance(value, str) else value


def _changed_unix_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
