"""`shoal secrets`: create the missing Secrets of an installation.

Existing Secrets are kept, except derived ones that are out of date, and the internal token with `--rotate`. Contents go
from a file or a random source to the API server only, never to standard output or a command line.
"""

import base64
import json
import secrets as randomness
from collections.abc import Mapping
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from functions.cli.cluster.access import MODELS, SYSTEM, Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.secret_plan import (
    TOKEN_KEY,
    TOKEN_SECRET,
    Do,
    SecretStep,
    Turn,
    Where,
    places,
    plan,
    rotated_content,
)
from functions.cli.refused import CommandRefused
from functions.cli.terminal import make_console
from functions.fleet.role_credentials import CredentialsUnusable

_MAX_BYTES = 64 * 1024
_TURNED: dict[Turn, str] = {
    "add": "both tokens are accepted, the old one is sent; in two minutes, when all have read it: --rotate show",
    "show": "both tokens are accepted, the new one is sent; in two minutes: --rotate drop",
    "drop": "only the token that was sent is accepted",
}
_SAID: dict[Do, str] = {
    "keep": "[dim]kept[/]",
    "make": "[green]made[/]",
    "copy": "[green]copied from the other namespace[/]",
    "give": "[green]made from the file[/]",
    "miss": "[red]missing[/]",
    "clash": "[red]wrong[/]",
    "renew": "[green]renewed[/]",
    "unused": "[yellow]no longer used[/]",
}


def secrets(
    choice: ClusterChoice, files: Mapping[str, Path], *, rotate: Turn | None, dry_run: bool, as_json: bool
) -> None:
    """Create the Secrets that can be created, or with `rotate` replace the token's, and print the steps; with `dry_run`
    only print them. Exit with status 1 if a Secret is still missing or wrong."""
    given = {word: _read(word, file) for word, file in files.items()}
    cluster = KubeCluster(choice)
    there = read_secrets(cluster)
    steps = plan(there, given, _random) if rotate is None else _rotation(there, rotate)
    for step in steps:
        collection = f"/api/v1/namespaces/{_namespace(choice, step.namespace)}/secrets"
        if step.value and not dry_run:
            if step.do == "renew":
                cluster.replace(f"{collection}/{step.name}", _body(choice, step))
            else:
                cluster.create(collection, _body(choice, step))
    _print_steps(choice, steps, as_json=as_json)
    if any(step.do in ("miss", "clash") for step in steps):
        raise typer.Exit(1)


def _rotation(there: dict[Where, dict[str, bytes]], turn: Turn) -> list[SecretStep]:
    """Return the steps for the token's next content, first for the registry, then for the derived credentials."""
    where = (SYSTEM, TOKEN_SECRET)
    try:
        token = rotated_content(there.get(where, {}).get(TOKEN_KEY, b""), turn, _random())
    except CredentialsUnusable as error:
        raise CommandRefused(f"{TOKEN_SECRET} cannot be rotated: {error}") from error
    step = SecretStep("renew", *where, TOKEN_KEY, token, _TURNED[turn])
    following = plan(there | {where: {TOKEN_KEY: token}}, {}, _random)
    return [step, *(each for each in following if each.do == "renew")]


def _random() -> bytes:
    return randomness.token_hex(32).encode()


def read_secrets(cluster: Cluster) -> dict[Where, dict[str, bytes]]:
    found: dict[Where, dict[str, bytes]] = {}
    for place in places():
        namespace = _namespace(cluster.choice, place[0])
        secret = cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{place[1]}")
        if secret is not None:
            data = secret.get("data") or {}
            found[place] = {key: base64.b64decode(value) for key, value in data.items()}
    return found


def _body(choice: ClusterChoice, step: SecretStep) -> dict[str, object]:
    labels = {"app.kubernetes.io/part-of": "shoal"}
    metadata = {"name": step.name, "namespace": _namespace(choice, step.namespace), "labels": labels}
    data = {step.key: base64.b64encode(step.value).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}


def _namespace(choice: ClusterChoice, role: str) -> str:
    return {SYSTEM: choice.system, MODELS: choice.models}[role]


def _read(word: str, file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1).strip()
    except OSError as error:
        raise CommandRefused(f"--{word} {file}: {error.strerror}") from error
    if not content or len(content) > _MAX_BYTES:
        raise CommandRefused(f"--{word} {file} is empty, or over {_MAX_BYTES} bytes")
    if word.endswith("s3"):
        _check_s3(word, file, content)
    return content


def _check_s3(word: str, file: Path, content: bytes) -> None:
    wanted = {"access_key_id", "secret_access_key"}
    try:
        good = set(json.loads(content)) == wanted
    except (ValueError, TypeError):
        good = False
    if not good:
        raise CommandRefused(f'--{word} {file} is not {{"access_key_id": …, "secret_access_key": …}}')


def _print_steps(choice: ClusterChoice, steps: list[SecretStep], *, as_json: bool) -> None:
    rows = [(_namespace(choice, step.namespace), step) for step in steps]
    if as_json:
        told = [{"namespace": where, "name": s.name, "key": s.key, "do": s.do, "words": s.words} for where, s in rows]
        typer.echo(json.dumps({"secrets": told}, indent=2))
        return
    table = Table("namespace", "Secret", "", "", box=None, pad_edge=False)
    for where, step in rows:
        table.add_row(escape(where), step.name, _SAID[step.do], escape(step.words))
    make_console().print(table)
    if any(step.name == "shoal-pepper" and step.do == "make" for step in steps):
        make_console().print(
            "store a copy of the pepper outside of the cluster: without it every tenant's key is invalid"
        )
