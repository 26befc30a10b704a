"""`shoal schema`: the kinds as JSON Schema for editors, or as CustomResourceDefinitions for Kubernetes."""

import io
import json
import sys
from pathlib import Path

from ruamel.yaml import YAML

from functions.api.kinds.catalogue import KINDS
from functions.api.problems import near_miss
from functions.api.schema.crd import crds
from functions.api.schema.editor import Schema, editor_schema, kind_schema
from functions.cli.refused import CommandRefused

HEADER = "# Generated from functions/api/kinds by `shoal schema --crd --write`; change the kinds, not this file.\n"


def schema(*, kind: str | None, crd: bool, write: Path | None) -> None:
    """Print the schemas, or write the CRDs as files into the folder `write`."""
    if write is not None and not crd:
        raise CommandRefused("--write goes with --crd: it writes one file for each CustomResourceDefinition")
    if not crd:
        sys.stdout.write(json.dumps(_for_editors(kind), indent=2) + "\n")
        return
    files = {name: HEADER + as_yaml(document) for name, document in crds().items() if kind in {None, _kind(document)}}
    if not files:
        raise _no_such_kind(str(kind), [_kind(document) for document in crds().values()])
    if write is None:
        sys.stdout.write("---\n".join(files.values()))
        return
    write.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (write / name).write_text(text, encoding="utf-8")


def as_yaml(document: Schema) -> str:
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096  # avoid wrapping, which leaves trailing spaces
    yaml.representer.ignore_aliases = lambda _: True
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(document, text)
    return text.getvalue()


def _for_editors(kind: str | None) -> Schema:
    if kind is None:
        return editor_schema()
    try:
        return kind_schema(kind)
    except KeyError as error:
        raise _no_such_kind(kind, [name for _, name in KINDS]) from error


def _kind(document: Schema) -> str:
    return str(document["spec"]["names"]["kind"])


def _no_such_kind(kind: str, names: list[str]) -> CommandRefused:
    return CommandRefused(
        f"there is no kind {kind!r}; those that there are: {', '.join(names)}{near_miss(kind, names)}"
    )
