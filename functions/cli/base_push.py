"""`shoal base push NAME@VERSION DIR|s3://…`: upload base weights to the store, from which replicas fetch them.

    list the source → hash and send its chunks → write the version's pointer → add the line to the Model's YAML

An InferenceService then names the version `shoal://NAME@VERSION`, and a Model's YAML
`s3://<bucket>/bases/NAME/VERSION`. The line is added to the YAML in the current working copy, or printed. A tenant's
own model is pushed as `tenant/name@version`; its NAME is that of its pool, `tenant.name`.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from functions.api.ids import pool_of_base
from functions.artifacts import base_folder, base_push, compiled
from functions.artifacts.base_push import PushedBase, PushProgress
from functions.artifacts.base_sources import BucketSource, FolderSource, WeightSource, parse_source_uri
from functions.artifacts.compiled import Companion
from functions.artifacts.errors import ArtifactError
from functions.artifacts.locations import WEIGHTS_SCHEME, WeightsName, parse_weights_name
from functions.artifacts.publish import read_pointer
from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials
from functions.cli.catalogue_edit import with_digest, with_version
from functions.cli.catalogue_files import DeclaredModel, FileChange, change_file, find_declared, show_change
from functions.cli.context import CliContext, current_context
from functions.cli.promote import deploys
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console


@dataclass(frozen=True, slots=True)
class Bucket:
    """S3 bucket from the command's options. Without endpoint and credentials it is in the local fleet's store."""

    endpoint: str | None
    credentials_file: Path | None
    name: str


def push(target: str, source: str, to: Bucket, origin: Bucket, *, clean: bool, again: bool, as_json: bool) -> None:
    """Push weights to the bucket `to`, and add the version to the model's file in the working copy, if there is one.
    `origin` describes the store of an s3:// source; by default the same as `to`."""
    context = current_context(clones=True)
    try:
        model, name = parse_target(target)
        store = store_of(context, to)
        weights = _source(context, source, origin, to, clean=clean)
        files = weights.files()
        with _bar(base_push.total_bytes(files), shown=not as_json) as on_chunk:
            pushed = base_push.push(store, weights, name, files, on_chunk=on_chunk, reread=again)
    except (ArtifactError, CredentialsInvalid, OSError) as error:
        raise CommandRefused(f"{target}: {error}") from error
    declared = find_declared(context, model)
    change, why = _declared(context, declared, pushed)
    if as_json:
        typer.echo(json.dumps({"model": model} | _row(pushed, change), indent=2))
        return
    _show(pushed)
    _show_line(context, declared, pushed, change, why)


def parse_target(target: str) -> tuple[str, WeightsName]:
    """Return the model's id and the name of its weights, which is its pool's. Raise ArtifactRefused for an invalid
    name."""
    model, _, version = target.removeprefix(WEIGHTS_SCHEME).rpartition("@")
    return model, parse_weights_name(f"{pool_of_base(model)}@{version}")


def version_line(pushed: PushedBase) -> str:
    return f'- {{name: {pushed.name.version}, artifact: "{pushed.artifact_uri}", digest: "{pushed.digest}"}}'


def store_of(context: CliContext, bucket: Bucket) -> S3Store:
    if (bucket.endpoint is None) != (bucket.credentials_file is None):
        raise CommandRefused("use --endpoint and --credentials together; without both, the local fleet's store is used")
    endpoint = bucket.endpoint or f"http://127.0.0.1:{context.ports.s3}"
    credentials = load_credentials(bucket.credentials_file or context.layout.secret("s3.json"))
    return S3Store(S3Settings(endpoint, credentials, bucket.name))


def _source(context: CliContext, source: str, origin: Bucket, to: Bucket, *, clean: bool) -> WeightSource:
    if source.startswith("s3://"):
        bucket, prefix = parse_source_uri(source)
        endpoint, credentials_file = origin.endpoint, origin.credentials_file
        if endpoint is None and credentials_file is None:
            endpoint, credentials_file = to.endpoint, to.credentials_file
        return BucketSource(store_of(context, Bucket(endpoint, credentials_file, bucket)), prefix)
    directory = Path(source)
    if not directory.is_dir():
        raise CommandRefused(
            f"{source} is not a folder: name the folder that holds config.json and the weights, or s3://bucket/…"
        )
    if clean:
        base_folder.check_leftovers(directory, clean=True)
    return FolderSource(directory)


@contextmanager
def _bar(total_bytes: int, *, shown: bool) -> Iterator[PushProgress]:
    console = make_error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    rates = (TransferSpeedColumn(), TimeRemainingColumn())
    disabled = not shown or not console.is_terminal
    with Progress(*columns, *rates, console=console, transient=True, disable=disabled) as progress:
        task = progress.add_task("pushing", total=total_bytes)

        def on_chunk(size_bytes: int, *, sent: bool) -> None:
            progress.update(task, advance=size_bytes, description="pushing" if sent else "already stored")

        yield on_chunk


def _declared(context: CliContext, declared: DeclaredModel | None, pushed: PushedBase) -> tuple[FileChange | None, str]:
    """Add the pushed version to the file that declares the model. Return the change, or None and the reason, which is
    empty if no file declares it."""
    if declared is None:
        return None, ""
    version = pushed.name.version
    known = {each.name: each for each in declared.model.spec.versions}.get(version)
    if known is not None and (known.artifact != pushed.artifact_uri or known.digest not in {None, pushed.digest}):
        return None, f"{declared.name} declares {version} as {known.artifact}"

    def edit(text: str) -> str:
        if known is None:
            return with_version(text, declared.model.spec.id, version, pushed.artifact_uri, pushed.digest)
        return text if known.digest else with_digest(text, declared.model.spec.id, version, pushed.digest)

    try:
        return change_file(context, declared, edit), ""
    except CommandRefused as error:
        return None, str(error)


def _row(pushed: PushedBase, change: FileChange | None) -> dict[str, Any]:
    return {
        "version": pushed.name.version,
        "digest": pushed.digest,
        "artifact": pushed.artifact_uri,
        "storage_uri": pushed.name.uri,
        "files": len(pushed.manifest.files),
        "total_bytes": pushed.manifest.total_bytes,
        "chunks": pushed.chunks,
        "sent_chunks": pushed.sent_chunks,
        "sent_bytes": pushed.sent_bytes,
        "resumed_files": pushed.resumed_files,
        "line": version_line(pushed),
        "changed_file": change.name if change is not None and change.before != change.after else None,
    }


def _show(pushed: PushedBase) -> None:
    size = f"{len(pushed.manifest.files)} files, {pushed.manifest.total_bytes / 1e9:.2f} GB"
    sent = f"{pushed.sent_chunks} of {pushed.chunks} chunks sent ({pushed.sent_bytes / 1e9:.2f} GB)"
    went_on = f"; {pushed.resumed_files} files were hashed in an earlier run" if pushed.resumed_files else ""
    console = make_console()
    console.print(escape(f"✓ {pushed.name} is {pushed.digest[:19]}: {size}; {sent}{went_on}"), soft_wrap=True)
    console.print(escape(f"  replicas fetch it: storageUri: {pushed.name.uri}"), soft_wrap=True)


def _show_line(
    context: CliContext, declared: DeclaredModel | None, pushed: PushedBase, change: FileChange | None, why: str
) -> None:
    console = make_console()
    if declared is not None and change is not None:
        if change.before == change.after:
            console.print(escape(f"{change.name} has this already: nothing to change"))
            return
        show_change(change, console)
        next_step = deploys(context, declared.root, change.name, f"{declared.model.spec.id}: {pushed.name.version}")
        console.print(escape(next_step), soft_wrap=True)
        return
    if why:
        console.print(escape(f"not written to the working copy: {why}"), soft_wrap=True)
    console.print(
        escape(f"add it to spec.versions of a Model of type base:\n    {version_line(pushed)}"), soft_wrap=True
    )


# `shoal base compiled NAME@VERSION DIR`: store a replica's compile cache with its weights, for all other replicas.
#
#     VLLM_CACHE_ROOT of the replica -> a pack -> the store -> nodes unpack it before their engines start
#
# A compile cache is code that engines run. Like a push of weights, this needs the store's write credential, and no API
# accepts one.


def push_compiled(target: str, cache_root: Path, to: Bucket, *, engine: str, accelerator: str, as_json: bool) -> None:
    """Pack the compile cache in `cache_root`, an engine's VLLM_CACHE_ROOT, and store it with the pushed weights
    `target`."""
    if not (cache_root / compiled.CACHE_FOLDER).is_dir():
        folder = compiled.CACHE_FOLDER
        raise CommandRefused(
            f"{cache_root} has no folder {folder}: name the VLLM_CACHE_ROOT of an engine that has started"
        )
    try:
        model, name = parse_target(target)
        store = store_of(current_context(clones=True), to)
        weights = read_pointer(store, name.location(store.bucket).uri)
        step = TerminalReporter(make_error_console()).step(f"Packing {cache_root}")
        with step, tempfile.TemporaryDirectory() as made:
            compiled.pack(cache_root, Path(made))
            companion = compiled.publish(store, weights, Path(made), engine=engine, accelerator=accelerator)
    except (ArtifactError, CredentialsInvalid, OSError) as error:
        raise CommandRefused(f"{target}: {error}") from error
    if as_json:
        row: dict[str, object] = {"model": model, "version": name.version, "weights": weights}
        typer.echo(json.dumps(row | msgspec.to_builtins(companion), indent=2))
        return
    _show_compiled(target, companion)


def _show_compiled(target: str, companion: Companion) -> None:
    size = f"{companion.size_bytes / 1e6:.1f} MB, {len(companion.keys)} cache keys"
    console = make_console()
    made = f"✓ {target} for {companion.engine} on {companion.accelerator}: {size}, {companion.digest[:19]}"
    console.print(escape(made), soft_wrap=True)
    console.print("  nodes with SHOAL_NODE_FETCH_COMPILED_DIR unpack it before their engines start", soft_wrap=True)
