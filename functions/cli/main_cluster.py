"""Names and options of the commands for a cluster. Implementations are imported on use, as in `main`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import (
    ContextOption,
    FleetOption,
    ModelsNamespaceOption,
    NamespaceOption,
    Output,
    OutputOption,
)

base_app = typer.Typer(
    name="base", help="Base models: weights and tokenizers made ready to serve.", no_args_is_help=True
)

_FolderArgument = Annotated[Path, typer.Argument(help="The model's folder: config.json, weights, tokenizer.")]


@base_app.command("manifest")
def base_manifest(
    directory: _FolderArgument,
    *,
    to: Annotated[
        Path | None, typer.Option(help="Copy it there first, links as plain files; named as replicas will read it.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Delete what a download left, such as .cache.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Hash it although a manifest is there.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write shoal-manifest.json beside the files of any base model, and print what a Model pins."""
    from functions.cli import base as command

    command.manifest(directory, to=to, clean=clean, again=again, as_json=output is Output.JSON)


@base_app.command("facts")
def base_facts(
    directory: _FolderArgument,
    *,
    names: Annotated[
        list[str] | None, typer.Option("--name", help="What adapters call this base, such as meta-llama/X; repeat.")
    ] = None,
) -> None:
    """Print what adapters are checked against, as JSON: modules and shapes, for the ConfigMap base-facts."""
    from functions.cli import base as command

    command.facts(directory, names=names or [])


@base_app.command("tokenizer")
def base_tokenizer(
    directory: Annotated[Path, typer.Argument(help="The base model's folder, with its shoal-manifest.json.")],
    *,
    endpoint: Annotated[str, typer.Option(help="The object store, such as https://s3.example.com.")],
    credentials: Annotated[
        Path, typer.Option(help='A file {"access_key_id", "secret_access_key"} that may write below tokenizers/.')
    ],
    bucket: Annotated[str, typer.Option(help="The installation's bucket of models.")] = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a base model's tokenizer and chat template into the store, where gateways fetch them."""
    from functions.cli import base as command

    command.tokenizer(
        directory, endpoint=endpoint, bucket=bucket, credentials_file=credentials, as_json=output is Output.JSON
    )


@base_app.command("push")
def base_push(
    target: Annotated[str, typer.Argument(help="name@version, such as llama-3-8b@v1, or tenant/name@version.")],
    source: Annotated[str, typer.Argument(help="The model's folder, or s3://bucket/prefix.")],
    *,
    endpoint: Annotated[
        str | None, typer.Option(help="The object store, such as https://s3.example.com. None: the local fleet's.")
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option(help='A file {"access_key_id", "secret_access_key"} with all rights on the bucket.')
    ] = None,
    bucket: Annotated[str, typer.Option(help="The installation's bucket of models.")] = "shoal-models",
    from_endpoint: Annotated[
        str | None, typer.Option(help="Of an s3:// source elsewhere; by default the same store.")
    ] = None,
    from_credentials: Annotated[Path | None, typer.Option(help="That may read the source; with the former.")] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Delete what a download left, such as .cache.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Read back what the store has of it, and repair what has rotted.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a version of a base model's weights into the store, where replicas fetch it; goes on where it was killed."""
    from functions.cli import base_push as command

    to = command.Bucket(endpoint, credentials, bucket)
    origin = command.Bucket(from_endpoint, from_credentials, "")
    command.push(target, source, to, origin, clean=clean, again=again, as_json=output is Output.JSON)


@base_app.command("compiled")
def base_compiled(
    target: Annotated[str, typer.Argument(help="name@version of weights that were pushed, such as llama-3-8b@v1.")],
    cache_root: Annotated[Path, typer.Argument(help="VLLM_CACHE_ROOT of a replica of it that has started.")],
    *,
    engine: Annotated[str, typer.Option(help="The engine's version, such as 0.32.0.")],
    accelerator: Annotated[str, typer.Option(help="Your word for the kind that it ran on, such as h100 or cpu.")],
    endpoint: Annotated[
        str | None, typer.Option(help="The object store, such as https://s3.example.com. None: the local fleet's.")
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option(help='A file {"access_key_id", "secret_access_key"} with all rights on the bucket.')
    ] = None,
    bucket: Annotated[str, typer.Option(help="The installation's bucket of models.")] = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Put what one replica's engine compiled beside its weights, so that no other one compiles it."""
    from functions.cli import base_push as command
    from functions.cli.base_push import Bucket

    to = Bucket(endpoint, credentials, bucket)
    command.push_compiled(target, cache_root, to, engine=engine, accelerator=accelerator, as_json=output is Output.JSON)


class Turn(StrEnum):
    ADD = "add"
    SHOW = "show"
    DROP = "drop"


def secrets(
    *,
    read_s3: Annotated[Path | None, typer.Option(help="S3 credentials that may read: controller, agents.")] = None,
    registry_s3: Annotated[Path | None, typer.Option(help="All rights on the bucket of artifacts.")] = None,
    gateway_s3: Annotated[Path | None, typer.Option(help="All rights on the bucket of batches.")] = None,
    database_password: Annotated[Path | None, typer.Option(help="Postgres's.")] = None,
    git_token: Annotated[Path | None, typer.Option(help="May read the repository; with the git source.")] = None,
    git_webhook_secret: Annotated[
        Path | None, typer.Option(help="What the git server signs its deliveries with; with components/git-webhook.")
    ] = None,
    pepper: Annotated[Path | None, typer.Option(help="Of another region; made up if absent.")] = None,
    regions_token: Annotated[Path | None, typer.Option(help="The same in all regions; with components/region.")] = None,
    rotate: Annotated[
        Turn | None,
        typer.Option(help="Change the internal token and what follows: add a new one, show it, drop the old one."),
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the Secrets of an installation that are missing; what exists is kept. S3: {"access_key_id", …} as JSON."""
    from functions.cli.cluster import secrets as command
    from functions.cli.cluster.access import ClusterChoice

    files = {
        "read-s3": read_s3,
        "registry-s3": registry_s3,
        "gateway-s3": gateway_s3,
        "database-password": database_password,
        "git-token": git_token,
        "git-webhook-secret": git_webhook_secret,
        "pepper": pepper,
        "regions-token": regions_token,
    }
    command.secrets(
        ClusterChoice(context, namespace, models_namespace),
        {word: file for word, file in files.items() if file is not None},
        rotate=rotate.value if rotate is not None else None,
        dry_run=dry_run,
        as_json=output is Output.JSON,
    )


def doctor(
    *,
    context: ContextOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Look at a cluster: what an installation needs, what is missing, how to mend it; exit 1 where something is."""
    from functions.cli.cluster import doctor as command
    from functions.cli.cluster.access import ClusterChoice

    command.doctor(ClusterChoice(context, namespace, models_namespace), as_json=output is Output.JSON)


def events(
    *,
    last: Annotated[int, typer.Option("-n", "--last", min=1, max=10_000)] = 50,
    warnings: Annotated[bool, typer.Option("--warnings", help="Warnings only.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """What happened on a cluster within its last hour, the newest last."""
    from functions.cli.cluster import status as command
    from functions.cli.cluster.access import ClusterChoice

    choice = ClusterChoice(context, namespace, models_namespace)
    command.events(choice, last=last, warnings=warnings, as_json=output is Output.JSON)


def console(context: ContextOption = None, namespace: NamespaceOption = "shoal") -> None:
    """The registry's page, of a cluster, at an address of this machine; through the API server, until ctrl-c."""
    from functions.cli.cluster import tunnel as command
    from functions.cli.cluster.access import ClusterChoice

    command.console(ClusterChoice(context, namespace))


def drain(
    replica: Annotated[str, typer.Argument(help="A pod of a pool, as `shoal status` names it.")],
    *,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", min=1.0, max=86_400.0, help="Seconds for what it has; then it takes work again."),
    ] = 600.0,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
) -> None:
    """End one replica of a cluster without losing a request: gateways hear it, what it has ends, its pod is evicted."""
    from functions.cli.cluster import drain as command
    from functions.cli.cluster.access import ClusterChoice
    from functions.cli.refused import CommandRefused

    if context is None:
        here = f"on this machine `shoal restart {replica}` drains it first"
        raise CommandRefused(f"{here}; for a cluster's say --context, - for the current one")
    command.drain(ClusterChoice(context, namespace, models_namespace), replica, timeout_s)


def status(context: str, namespace: str, models_namespace: str, *, as_json: bool) -> None:
    from functions.cli.cluster import status as command
    from functions.cli.cluster.access import ClusterChoice

    command.status(ClusterChoice(context, namespace, models_namespace), as_json=as_json)


def logs(context: str, namespace: str, models_namespace: str, name: str, *, follow: bool, lines: int) -> None:
    from functions.cli.cluster import logs as command
    from functions.cli.cluster.access import ClusterChoice

    command.logs(ClusterChoice(context, namespace, models_namespace), name, follow=follow, lines=lines)
