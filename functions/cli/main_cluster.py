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

base_app = typer.Typer(name="base", help="Prepare weights and tokenizers of base models.", no_args_is_help=True)

_FolderArgument = Annotated[Path, typer.Argument(help="Folder of the model: config.json, weights, tokenizer.")]


@base_app.command("manifest")
def base_manifest(
    directory: _FolderArgument,
    *,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder to copy the model to first, links as plain files; replicas read it by this name."),
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Delete leftovers of a download, such as .cache.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Hash the files even if a manifest exists.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write shoal-manifest.json into the folder of a base model, and print the line that pins it in a Model."""
    from functions.cli import base as command

    command.manifest(directory, to=to, clean=clean, again=again, as_json=output is Output.JSON)


@base_app.command("facts")
def base_facts(
    directory: _FolderArgument,
    *,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name that adapters use for this base, such as meta-llama/X; repeatable."),
    ] = None,
) -> None:
    """Print the modules and shapes that adapters are checked against, as JSON for the ConfigMap base-facts."""
    from functions.cli import base as command

    command.facts(directory, names=names or [])


@base_app.command("tokenizer")
def base_tokenizer(
    directory: Annotated[Path, typer.Argument(help="Folder of the base model, with its shoal-manifest.json.")],
    *,
    endpoint: Annotated[str, typer.Option(help="Address of the object store, such as https://s3.example.com.")],
    credentials: Annotated[
        Path, typer.Option(help='File {"access_key_id", "secret_access_key"} that permits writes below tokenizers/.')
    ],
    bucket: Annotated[str, typer.Option(help="Bucket of the installation's models.")] = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Upload a base model's tokenizer and chat template to the store, from which gateways fetch them."""
    from functions.cli import base as command

    command.tokenizer(
        directory, endpoint=endpoint, bucket=bucket, credentials_file=credentials, as_json=output is Output.JSON
    )


@base_app.command("push")
def base_push(
    target: Annotated[str, typer.Argument(help="Name and version, such as llama-3-8b@v1, or tenant/name@version.")],
    source: Annotated[str, typer.Argument(help="Folder of the model, or s3://bucket/prefix.")],
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Address of the object store, such as https://s3.example.com; by default the local fleet's."),
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option(help='File {"access_key_id", "secret_access_key"} with all rights on the bucket.')
    ] = None,
    bucket: Annotated[str, typer.Option(help="Bucket of the installation's models.")] = "shoal-models",
    from_endpoint: Annotated[
        str | None, typer.Option(help="Address of the object store of an s3:// source; by default the same store.")
    ] = None,
    from_credentials: Annotated[
        Path | None, typer.Option(help="Credentials file to read the source; with --from-endpoint.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Delete leftovers of a download, such as .cache.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Read back the stored parts of the version, and repair damaged ones.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Upload a version of a base model's weights, which replicas fetch from the store. A killed upload resumes."""
    from functions.cli import base_push as command

    to = command.Bucket(endpoint, credentials, bucket)
    origin = command.Bucket(from_endpoint, from_credentials, "")
    command.push(target, source, to, origin, clean=clean, again=again, as_json=output is Output.JSON)


@base_app.command("compiled")
def base_compiled(
    target: Annotated[str, typer.Argument(help="Name and version of pushed weights, such as llama-3-8b@v1.")],
    cache_root: Annotated[Path, typer.Argument(help="VLLM_CACHE_ROOT of a started replica of the weights.")],
    *,
    engine: Annotated[str, typer.Option(help="Version of the engine, such as 0.32.0.")],
    accelerator: Annotated[
        str, typer.Option(help="Your name for the accelerator of the replica, such as h100 or cpu.")
    ],
    endpoint: Annotated[
        str | None,
        typer.Option(help="Address of the object store, such as https://s3.example.com; by default the local fleet's."),
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option(help='File {"access_key_id", "secret_access_key"} with all rights on the bucket.')
    ] = None,
    bucket: Annotated[str, typer.Option(help="Bucket of the installation's models.")] = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Store the compile cache of one replica's engine with its weights, so that other replicas need not compile."""
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
    read_s3: Annotated[
        Path | None, typer.Option(help="File with S3 credentials to read, for controller and agents.")
    ] = None,
    registry_s3: Annotated[
        Path | None, typer.Option(help="File with S3 credentials with all rights on the bucket of artifacts.")
    ] = None,
    gateway_s3: Annotated[
        Path | None, typer.Option(help="File with S3 credentials with all rights on the bucket of batches.")
    ] = None,
    database_password: Annotated[Path | None, typer.Option(help="File with the password of Postgres.")] = None,
    git_token: Annotated[
        Path | None, typer.Option(help="File with a token to read the repository; with the git source.")
    ] = None,
    git_webhook_secret: Annotated[
        Path | None,
        typer.Option(help="File with the secret of the git server's deliveries; with components/git-webhook."),
    ] = None,
    pepper: Annotated[Path | None, typer.Option(help="File with another region's pepper; random by default.")] = None,
    regions_token: Annotated[
        Path | None, typer.Option(help="File with the token of all regions; with components/region.")
    ] = None,
    rotate: Annotated[
        Turn | None,
        typer.Option(help="Step of the internal token's rotation: add a new one, send it, drop the old one."),
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report the steps without executing them.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create the missing Secrets of an installation, and keep existing ones. S3 files: {"access_key_id", …} as JSON."""
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
    """Check a cluster: what an installation needs, what is missing and how to fix it; exit 1 if a check fails."""
    from functions.cli.cluster import doctor as command
    from functions.cli.cluster.access import ClusterChoice

    command.doctor(ClusterChoice(context, namespace, models_namespace), as_json=output is Output.JSON)


def events(
    *,
    last: Annotated[int, typer.Option("-n", "--last", min=1, max=10_000, help="Number of events to show.")] = 50,
    warnings: Annotated[bool, typer.Option("--warnings", help="Show warnings only.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the events of a cluster in its last hour, the newest last."""
    from functions.cli.cluster import status as command
    from functions.cli.cluster.access import ClusterChoice

    choice = ClusterChoice(context, namespace, models_namespace)
    command.events(choice, last=last, warnings=warnings, as_json=output is Output.JSON)


def console(context: ContextOption = None, namespace: NamespaceOption = "shoal") -> None:
    """Serve the console of a cluster's registry at a local address, through the API server, until Ctrl-C."""
    from functions.cli.cluster import tunnel as command
    from functions.cli.cluster.access import ClusterChoice

    command.console(ClusterChoice(context, namespace))


def drain(
    replica: Annotated[str, typer.Argument(help="Pod of a pool, as `shoal status` names it.")],
    *,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=1.0, max=86_400.0, help="Seconds for running requests; then it accepts work again."
        ),
    ] = 600.0,
    context: FleetOption = None,
    namespace: NamespaceOption = "shoal",
    models_namespace: ModelsNamespaceOption = "shoal-models",
) -> None:
    """Drain one replica of a cluster without losing a request, and evict its pod."""
    from functions.cli.cluster import drain as command
    from functions.cli.cluster.access import ClusterChoice
    from functions.cli.refused import CommandRefused

    if context is None:
        here = f"for the local fleet use `shoal restart {replica}`, which drains first"
        raise CommandRefused(f"`shoal drain` needs --context, - for the current one; {here}")
    command.drain(ClusterChoice(context, namespace, models_namespace), replica, timeout_s)


def status(context: str, namespace: str, models_namespace: str, *, as_json: bool) -> None:
    from functions.cli.cluster import status as command
    from functions.cli.cluster.access import ClusterChoice

    command.status(ClusterChoice(context, namespace, models_namespace), as_json=as_json)


def logs(context: str, namespace: str, models_namespace: str, name: str, *, follow: bool, lines: int) -> None:
    from functions.cli.cluster import logs as command
    from functions.cli.cluster.access import ClusterChoice

    command.logs(ClusterChoice(context, namespace, models_namespace), name, follow=follow, lines=lines)
