"""`shoal adapter push TENANT/NAME@VERSION DIR`: register an adapter from a folder as a version that can be called.

Six steps: check the folder locally, which reports mistakes in milliseconds; read the model from the registry; send the
files unless they are stored; register the version; promote it if requested; wait until gateways know it. If git
declares the model, the version is not registered. Its line is added to the YAML in the current working copy, or
printed.

The digest is computed locally, over the same manifest that the registry builds. Equal digests prove that the registry
received what was checked.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from functions.api.ids import Digest, ModelId, parse_model_ref, pool_of_base
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.adapters import TEXT_MAX_BYTES, check_adapter
from functions.artifacts.errors import ArtifactError
from functions.artifacts.manifest import ADAPTER_LIMITS
from functions.artifacts.s3 import DEFAULT_BUCKET
from functions.cli.catalogue_edit import with_channel, with_digest, with_version
from functions.cli.catalogue_files import DeclaredModel, change_file, find_declared
from functions.cli.context import CliContext, current_context
from functions.cli.in_force import wait_in_force, words
from functions.cli.promote import channel_words, print_change, rollout_id_of
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry, RegistryRefusal
from functions.cli.terminal import make_console, make_error_console


@dataclass(frozen=True, slots=True)
class Packed:
    """A folder's files as an artifact."""

    directory: Path
    digest: Digest
    files: tuple[str, ...]
    total_bytes: int


def pack(directory: Path) -> Packed:
    """Hash every file of the folder and return it as an artifact. Raise ArtifactRefused if the files are not one."""
    manifest = directories.build_manifest(directory, ADAPTER_LIMITS)
    digest = manifests.digest_of(manifests.encode(manifest))
    files = tuple(entry.path for entry in manifest.files)
    return Packed(directory, digest, files, sum(entry.size_bytes for entry in manifest.files))


def uploaded(registry: Registry, packed: Packed, tenant: str, pool: str, *, as_json: bool) -> None:
    """Upload the content unless the registry's store has it for this tenant. Fail if the folder changed during the
    upload."""
    if _is_there(registry, packed.digest, tenant):
        _print_done("the registry has these files already: nothing to send", as_json=as_json)
        return
    with _bar(packed.total_bytes, as_json=as_json) as bar:
        files = [(name, packed.directory / name) for name in packed.files]
        fields = {"tenant": tenant, "base_model": pool, "adapter_type": "lora"}
        answer: dict[str, Any] = registry.upload(
            "/v1/artifacts", files, fields, lambda bytes_: bar.advance(bar.task_ids[0], bytes_)
        )
    if answer.get("digest") != packed.digest:
        words = f"the registry received {answer.get('digest')}, but {packed.digest} was sent"
        raise CommandRefused(f"{words}: {packed.directory} changed during the upload; push it again")
    _print_done(f"{packed.total_bytes / 1e6:.1f} MB sent, checked and stored", as_json=as_json)


def _is_there(registry: Registry, digest: Digest, tenant: str) -> bool:
    """Return True if the tenant may already use the stored content. Content of another tenant does not count."""
    try:
        known: dict[str, Any] = registry.get(f"/v1/artifacts/{digest}")
    except RegistryRefusal as error:
        if error.status == 404:
            return False
        raise
    return known["tenant"] in {None, tenant}


@contextmanager
def _bar(total_bytes: int, *, as_json: bool) -> Iterator[Progress]:
    console = make_error_console()
    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        progress.add_task("sending", total=total_bytes)
        yield progress


def _print_done(words: str, *, as_json: bool) -> None:
    if not as_json:
        make_console().print(f"[green]✓[/] {escape(words)}")


@dataclass(frozen=True, slots=True)
class AdapterPush:
    model_id: ModelId
    version: str
    base: str | None
    channel: str | None  # channel to promote the version to
    rollout: str | None  # the model's RolloutPolicy from now on
    wait: bool  # wait until gateways know the version


def push(
    target: str,
    directory: Path,
    *,
    base: str | None,
    channel: str | None,
    rollout: str | None,
    wait: bool,
    as_json: bool,
) -> None:
    model_id, version = _named(target)
    asked = AdapterPush(model_id, version, base, channel, rollout, wait)
    context = current_context(clones=True)
    packed = _packed(directory, as_json=as_json)
    declared = find_declared(context, asked.model_id)
    with Registry(context) as registry:
        row = registry.model(asked.model_id)
        in_git = declared is not None or bool(row is not None and row.get("declared_in"))
        if in_git and asked.rollout is not None:
            raise CommandRefused(
                f"{asked.model_id} is declared in git: set spec.rollout in its YAML instead of --rollout"
            )
        _check_free(asked, declared, row, packed.digest)
        pool = _pool(registry, asked, declared, row)
        uploaded(registry, packed, asked.model_id.partition("/")[0], pool, as_json=as_json)
        if in_git:
            _declare(context, asked, declared, row, packed.digest, as_json=as_json)
        else:
            _register(registry, asked, pool, packed.digest, as_json=as_json)


def _named(target: str) -> tuple[ModelId, str]:
    ref = parse_model_ref(target)
    if ref is None or ref.version is None or "/" not in ref.id:
        raise CommandRefused(f"{target[:160]!r} is not of the form tenant/name@version, such as acme/support-bot@v3")
    return ref.id, ref.version


def _packed(directory: Path, *, as_json: bool) -> Packed:
    if not directory.is_dir():
        raise CommandRefused(f"{directory} is not a folder: name the folder that holds adapter_config.json")
    try:
        facts = check_adapter(directory, text_max_bytes=TEXT_MAX_BYTES)
        packed = pack(directory)
    except ArtifactError as error:
        raise CommandRefused(f"{directory} cannot be served: {error}") from error
    except OSError as error:
        raise CommandRefused(f"{directory} cannot be read: {error}") from error
    if not as_json:
        words = f"rank {facts.rank}, {facts.tensors} tensors, {packed.total_bytes / 1e6:.1f} MB, {packed.digest[:19]}"
        make_console().print(f"[green]✓[/] {escape(str(directory))} is an adapter  [dim]{words}[/]")
    return packed


def _check_free(asked: AdapterPush, declared: DeclaredModel | None, row: dict[str, Any] | None, digest: Digest) -> None:
    """Fail if the version has other content already, since a version is one artifact for ever.

    The working copy's declaration overrides the registry's. A version that is declared without a digest is free until
    its artifact is stored.
    """
    there: dict[str, str | None] = {each["name"]: each.get("digest") for each in (row or {}).get("versions", [])}
    if declared is not None:
        there |= {each.name: each.digest or there.get(each.name) for each in declared.model.spec.versions}
    if there.get(asked.version) not in {None, digest}:
        names = ", ".join(sorted(there))
        raise CommandRefused(
            f"{asked.model_id}@{asked.version} has other content, and a version never changes (versions: {names})"
        )


def _pool(registry: Registry, asked: AdapterPush, declared: DeclaredModel | None, row: dict[str, Any] | None) -> str:
    """Return the pool of the base model: the model's own, else the requested one, else the only one that exists. Fail
    if the request contradicts the model or leaves a choice."""
    known = declared.model.pool if declared is not None else (row or {}).get("pool")
    base = pool_of_base(asked.base) if asked.base is not None else None
    if known and base not in {None, known}:
        raise CommandRefused(f"{asked.model_id} is an adapter over {known}; versions of one model share their base")
    if known or base:
        return str(known or base)
    models = registry.base_models()
    if len(models) == 1:
        return pool_of_base(models[0])
    there = ", ".join(models) or "none visible to this key"
    raise CommandRefused(f"{asked.model_id} is new: name its base model with --base; base models: {there}")


def _register(registry: Registry, asked: AdapterPush, pool: str, digest: Digest, *, as_json: bool) -> None:
    body = {"digest": digest, "base_model": pool, "adapter_type": "lora"}
    wanted = {"promote_to": asked.channel, "rollout": asked.rollout}
    body |= {name: value for name, value in wanted.items() if value is not None}
    answer: dict[str, Any] = registry.send("PUT", f"/v1/models/{asked.model_id}/versions/{asked.version}", body)
    rollout = rollout_id_of(answer)
    channel = asked.channel if rollout is None else None  # a rollout moves the channel later
    in_force_s = wait_in_force(registry, asked.model_id, asked.version, channel) if asked.wait else None
    if as_json:
        told = {"digest": digest, "rollout": rollout, "in_force_s": in_force_s, "version": answer}
        typer.echo(json.dumps(told, indent=2))
        return
    console = make_console()
    name = f"{asked.model_id}@{asked.version}"
    console.print(escape(f"✓ {name} is registered: call it by that name, or `shoal chat {name}`"), soft_wrap=True)
    if asked.channel is not None:
        console.print(channel_words(answer, asked.model_id, asked.channel, asked.version), soft_wrap=True)
    else:
        console.print(escape(f"  to serve it as {asked.model_id}: shoal promote {asked.model_id} {asked.version}"))
    if asked.wait:
        console.print(f"  {words(in_force_s)}", soft_wrap=True)


def _declare(
    context: CliContext,
    asked: AdapterPush,
    declared: DeclaredModel | None,
    row: dict[str, Any] | None,
    digest: Digest,
    *,
    as_json: bool,
) -> None:
    artifact = f"s3://{DEFAULT_BUCKET}/{asked.model_id}/{asked.version}"
    if declared is None:
        _print_line_to_add(context, asked, str((row or {}).get("declared_in")), artifact, digest, as_json=as_json)
        return

    stored = {each["name"] for each in (row or {}).get("versions", []) if each.get("digest")}

    def edit(text: str) -> str:
        versions = {each.name: each for each in declared.model.spec.versions}
        if asked.version not in versions:
            text = with_version(text, asked.model_id, asked.version, artifact, digest)
        elif versions[asked.version].digest is None and asked.version not in stored:
            text = with_digest(text, asked.model_id, asked.version, digest)
        return text if asked.channel is None else with_channel(text, asked.model_id, asked.channel, asked.version)

    change = change_file(context, declared, edit)
    print_change(context, declared, change, f"{asked.model_id}: {asked.version}", as_json=as_json)


def _print_line_to_add(
    context: CliContext, asked: AdapterPush, declared_in: str, artifact: str, digest: Digest, *, as_json: bool
) -> None:
    line = f'- {{name: {asked.version}, artifact: "{artifact}", digest: "{digest}"}}'
    if as_json:
        typer.echo(json.dumps({"digest": digest, "declared_in": declared_in, "line": line}, indent=2))
        return
    console = make_console()
    console.print(
        escape(f"{asked.model_id} is declared in git; to add the version, add this line to its spec.versions")
    )
    where = f" of {context.layout.gitops_dir}" if context.layout.gitops_dir.is_dir() else ""
    console.print(escape(f"in {declared_in}{where} (in a clone, this command adds it):"), soft_wrap=True)
    console.print(escape(f"    {line}"), soft_wrap=True)
