"""`shoal base compiled NAME@VERSION DIR`: what one warm replica compiled, put beside its weights for all others.

    VLLM_CACHE_ROOT of the replica → a pack → the store → nodes lay it out before their engines start

A compile cache is code that engines run: this asks for the store's write credential, as `shoal base push` does, and no
API takes one.
"""

import json
import tempfile
from pathlib import Path

import msgspec
import typer
from rich.markup import escape

from functions.artifacts import compiled
from functions.artifacts.compiled import Companion
from functions.artifacts.errors import ArtifactError
from functions.artifacts.publish import read_pointer
from functions.artifacts.s3 import CredentialsInvalid
from functions.cli.base_push import Bucket, named, store_of
from functions.cli.context import current_context
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console


def push(target: str, cache_root: Path, to: Bucket, *, engine: str, accelerator: str, as_json: bool) -> None:
    """`cache_root` is an engine's VLLM_CACHE_ROOT."""
    if not (cache_root / compiled.CACHE_FOLDER).is_dir():
        folder = compiled.CACHE_FOLDER
        raise Refused(f"{cache_root} has no folder {folder}: name the VLLM_CACHE_ROOT of an engine that has started")
    try:
        model, name = named(target)
        store = store_of(current_context(clones=True), to)
        weights = read_pointer(store, name.location(store.bucket).uri)
        step = TerminalReporter(make_error_console()).step(f"Packing {cache_root}")
        with step, tempfile.TemporaryDirectory() as made:
            compiled.pack(cache_root, Path(made))
            companion = compiled.publish(store, weights, Path(made), engine=engine, accelerator=accelerator)
    except (ArtifactError, CredentialsInvalid, OSError) as error:
        raise Refused(f"{target}: {error}") from error
    if as_json:
        row: dict[str, object] = {"model": model, "version": name.version, "weights": weights}
        typer.echo(json.dumps(row | msgspec.to_builtins(companion), indent=2))
        return
    _show(target, companion)


def _show(target: str, companion: Companion) -> None:
    size = f"{companion.size_bytes / 1e6:.1f} MB, {len(companion.keys)} keys of the engine's"
    console = make_console()
    made = f"✓ {target} for {companion.engine} on {companion.accelerator}: {size}, {companion.digest[:19]}"
    console.print(escape(made), soft_wrap=True)
    console.print("  nodes with SHOAL_NODE_FETCH_COMPILED_DIR lay it out before their engines start", soft_wrap=True)
