"""`shoal base manifest`, `facts` and `tokenizer`: prepare the folder of a base model.

Engines read a base from a volume (`pvc://<claim>/<folder>`). The manifest in the folder lists all its files, and the
manifest's digest is the model's digest.

Gateways have no model volume, so the tokenizer goes into the object store. The process that fills the volume uploads
it: a job in the cluster or an operator's machine. Gateways find it by the digest of the base's version in the
snapshot.
"""

import json
import sys
from pathlib import Path

import typer
from rich.markup import escape

from functions.artifacts import base_facts, base_folder
from functions.artifacts.errors import ArtifactError
from functions.artifacts.manifest import MANIFEST_NAME, hex_of
from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials
from functions.artifacts.tokenizers import publish
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console


def manifest(directory: Path, *, to: Path | None, clean: bool, again: bool, as_json: bool) -> None:
    _check(directory)
    folder = (to or directory).absolute()
    try:
        with TerminalReporter(make_error_console()).step(f"Hashing {folder.name}"):
            if to is not None:
                base_folder.copy_plain(directory, to)
            made = base_folder.prepare(folder, clean=clean, again=again)
    except (ArtifactError, OSError) as error:
        raise CommandRefused(f"{folder}: {error}{_hint(directory, to)}") from error
    if as_json:
        row = {"folder": str(folder), "digest": made.digest, "files": made.files, "total_bytes": made.total_bytes}
        row |= {"architecture": made.architecture, "layers": made.layers, "version": made.version_line()}
        typer.echo(json.dumps(row, indent=2))
        return
    console = make_console()
    how = (
        "its manifest exists already (--again hashes the files again)"
        if made.was_there
        else f"{MANIFEST_NAME} is written"
    )
    size = f"{made.files} files, {made.total_bytes / 1e9:.2f} GB"
    console.print(f"[green]✓[/] {escape(folder.name)} is {made.architecture}, {made.layers} layers, {size}; {how}")
    console.print(
        escape(f"add it to spec.versions of a Model of type base:\n    {made.version_line()}"), soft_wrap=True
    )


def facts(directory: Path, *, names: list[str]) -> None:
    """Write the facts that adapters are checked against to standard output, as one document."""
    _check(directory)
    try:
        document = base_facts.encode(base_facts.facts_of(directory, names=tuple(names)))
    except (ArtifactError, OSError) as error:
        raise CommandRefused(f"{directory}: {error}") from error
    sys.stdout.buffer.write(document)


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise CommandRefused(f"{directory} is not a folder: name the folder that holds config.json and the weights")


def _hint(directory: Path, to: Path | None) -> str:
    has_links = to is None and any(path.is_symlink() for path in directory.iterdir())
    return "; it contains links, like the cache of a download: --to DIR copies them as plain files" if has_links else ""


def tokenizer(directory: Path, *, endpoint: str, bucket: str, credentials_file: Path, as_json: bool) -> None:
    """Upload the tokenizer. Fail if the folder has no manifest or tokenizer, or if the store rejects the upload."""
    if not (directory / MANIFEST_NAME).is_file():
        raise CommandRefused(f"{directory} has no {MANIFEST_NAME}: create it with `shoal base manifest`")
    try:
        store = S3Store(S3Settings(endpoint, load_credentials(credentials_file), bucket))
        try:
            digest = publish(store, directory)
        finally:
            store.close()
    except (ArtifactError, CredentialsInvalid) as error:
        raise CommandRefused(f"{directory}: {error}") from error
    where = f"s3://{bucket}/tokenizers/sha256/{hex_of(digest)}/"
    if as_json:
        typer.echo(json.dumps({"digest": digest, "stored_at": where}))
    else:
        make_console().print(f"[green]✓[/] gateways find the tokenizer of {escape(digest)} at {escape(where)}")
