"""The configuration that the controller reconciles, laid out below the state directory from the project's YAML.

`inferenceservices/`, `policies/` and `registry/*.yaml` are copied to `config/`; each Tenant without keys gets its demo
key's hash on the way (comments are kept). The operator may edit the copies; so, as package managers do:

* a copy whose source did not change since is left alone, edited or not;
* a source that changed replaces a copy that nobody edited;
* where both changed, the operator's stays, and the new one is put beside it as `<name>.yaml.new`.

`config/.sources.json` remembers, per file, the hashes of the source and of what was written.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import replace_file
from functions.controller.local.prepare.demo_keys import DemoKey, ensure_demo_keys, hashed
from functions.controller.local.prepare.reporting import CannotPrepare

SOURCE_DIRS = ("inferenceservices", "policies", "registry")
SOURCE_MAX_BYTES = 8 * 1024 * 1024


class Copied(msgspec.Struct, frozen=True):
    source_sha256: str
    written_sha256: str


def ensure_configuration(layout: StateLayout, project_dir: Path) -> list[str]:
    """Bring the copies up to date; what the operator should know, a line each."""
    sources = _sources(project_dir)
    if not sources:
        where = f"{', '.join(SOURCE_DIRS)} below {project_dir.resolve()}"
        raise CannotPrepare(f"no YAML in {where}: run this in the project, or set SHOAL_PROJECT_DIR")
    documents = {relative: _read(path) for relative, path in sources.items()}
    keys = ensure_demo_keys(layout, _keyless_tenants(documents))
    record = _read_record(layout)
    notes: list[str] = []
    for relative, text in documents.items():
        content = _with_keys(layout, text, keys).encode()
        # What is written depends on the source, and on the keys that go into it.
        record[relative], note = _place(layout.config_dir / relative, content, record.get(relative))
        notes += [note] if note else []
    for relative in [relative for relative in record if relative not in documents]:
        notes += _remove(layout.config_dir / relative, record.pop(relative))
    replace_file(_record_file(layout), msgspec.json.encode(record))
    return notes


def _place(target: Path, content: bytes, former: Copied | None) -> tuple[Copied, str]:
    fresh = _sha256(content)
    present = _sha256(target.read_bytes()) if target.is_file() else None
    edited = present is not None and (former is None or present != former.written_sha256)
    if former is not None and former.source_sha256 == fresh and present is not None:
        return former, ""
    if edited and present != fresh:
        beside = target.with_name(target.name + ".new")
        replace_file(beside, content)
        written = former.written_sha256 if former is not None else ""
        return Copied(fresh, written), f"{target} was edited here and its source changed too: see {beside.name}"
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, content)
    return Copied(fresh, fresh), ""


def _remove(target: Path, former: Copied) -> list[str]:
    if not target.is_file():
        return []
    if _sha256(target.read_bytes()) != former.written_sha256:
        return [f"{target} has no source any more; it was edited here, so it stays"]
    target.unlink()
    return []


def _sources(project_dir: Path) -> dict[str, Path]:
    """By path relative to the project; only the top of each directory, since deeper ones hold data."""
    return {
        f"{directory}/{path.name}": path
        for directory in SOURCE_DIRS
        for path in sorted((project_dir / directory).glob("*.y*ml"))
        if path.suffix in (".yaml", ".yml") and path.is_file()
    }


def _read(path: Path) -> str:
    if path.stat().st_size > SOURCE_MAX_BYTES:
        raise CannotPrepare(f"{path} has more than {SOURCE_MAX_BYTES} bytes: that is no configuration")
    return path.read_text(encoding="utf-8")


def _keyless_tenants(documents: dict[str, str]) -> list[str]:
    return [tenant["metadata"]["name"] for text in documents.values() for tenant in _tenants(_parse(text))]


def _with_keys(layout: StateLayout, text: str, keys: dict[str, DemoKey]) -> str:
    """The same text, with the demo keys in tenants that have none; unchanged (to the byte) where there is no such."""
    documents = _parse(text)
    tenants = _tenants(documents)
    if not tenants:
        return text
    for tenant in tenants:
        key = keys[tenant["metadata"]["name"]]
        tenant["spec"]["keys"] = [
            {"id": key.key_id, "hmacSha256": hashed(layout, key), "scopes": ["inference"], "maxClass": "interactive"}
        ]
    output = io.StringIO()
    _yaml().dump_all(documents, output)
    return output.getvalue()


def _tenants(documents: list[Any]) -> list[Any]:
    """Tenant documents without keys, as far as they have the shape; the loader judges the rest."""
    return [
        document
        for document in documents
        if isinstance(document, dict)
        and document.get("kind") == "Tenant"
        and isinstance(document.get("spec"), dict)
        and not document["spec"].get("keys")
        and isinstance(document.get("metadata"), dict)
        and isinstance(document["metadata"].get("name"), str)
    ]


def _parse(text: str) -> list[Any]:
    try:
        return list(_yaml().load_all(text))
    except YAMLError:
        return []  # copied as it is: the loader says what is wrong with it, with file and line


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    return yaml


def _read_record(layout: StateLayout) -> dict[str, Copied]:
    try:
        return msgspec.json.decode(_record_file(layout).read_bytes(), type=dict[str, Copied])
    except (OSError, msgspec.DecodeError):
        return {}


def _record_file(layout: StateLayout) -> Path:
    return layout.config_dir / ".sources.json"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
