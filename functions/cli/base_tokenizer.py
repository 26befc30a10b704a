"""`shoal base tokenizer DIR`: a base model's tokenizer into the object store, for gateways that have no model volume.

It goes along with the weights, by whoever brings those: a job in the cluster that fills the volume, or an operator's
machine. What lies in the store is found by the digest that the base's version has in the snapshot.
"""

import json
from pathlib import Path

import typer
from rich.markup import escape

from functions.artifacts.errors import ArtifactError
from functions.artifacts.manifest import MANIFEST_NAME, hex_of
from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials
from functions.artifacts.tokenizers import publish
from functions.cli.refused import Refused
from functions.cli.terminal import make_console


def tokenizer(directory: Path, *, endpoint: str, bucket: str, credentials_file: Path, as_json: bool) -> None:
    """Refused where the folder has no manifest or tokenizer, or the store does not take it."""
    if not (directory / MANIFEST_NAME).is_file():
        raise Refused(f"{directory} has no {MANIFEST_NAME}, which names the base's files: make it first")
    try:
        store = S3Store(S3Settings(endpoint, load_credentials(credentials_file), bucket))
        try:
            digest = publish(store, directory)
        finally:
            store.close()
    except (ArtifactError, CredentialsInvalid) as error:
        raise Refused(f"{directory}: {error}") from error
    where = f"s3://{bucket}/tokenizers/sha256/{hex_of(digest)}/"
    if as_json:
        typer.echo(json.dumps({"digest": digest, "stored_at": where}))
    else:
        make_console().print(f"[green]✓[/] gateways find the tokenizer of {escape(digest)} at {escape(where)}")
