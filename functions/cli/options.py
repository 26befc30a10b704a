"""Options that several commands share, so that each has the same meaning and help text everywhere."""

import functools
import inspect
import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer


class EngineChoice(StrEnum):
    VLLM = "vllm"
    SIM = "sim"


class Scope(StrEnum):
    INFERENCE = "inference"
    MODELS_READ = "models:read"
    MODELS_WRITE = "models:write"


class PriorityClass(StrEnum):
    INTERACTIVE = "interactive"
    NEAR_REAL_TIME = "near-real-time"
    BATCH = "batch"


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


EngineOption = Annotated[EngineChoice, typer.Option(help="vllm: the real engine; sim: simulated, ready in seconds.")]
ReplicasOption = Annotated[
    int | None, typer.Option(min=1, max=20, help="Replicas of each pool, instead of what its YAML says.")
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print.")]
ChannelOption = Annotated[str, typer.Option(help="The channel that moves; callers who name none get `stable`.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit and for whoever looks at the rollout.")]
RolloutArgument = Annotated[
    str, typer.Argument(help="A rollout's id, or a model (tenant/name[:channel]) for its newest one.")
]
TenantOption = Annotated[str | None, typer.Option(help="Whose demo key to use; by default the first tenant's.")]

ContextOption = Annotated[
    str | None,
    typer.Option(envvar="SHOAL_CLI_CONTEXT", help="A context of the kubeconfig; by default the current one."),
]
NamespaceOption = Annotated[str, typer.Option(envvar="SHOAL_CLI_NAMESPACE", help="Where the installation is.")]
ModelsNamespaceOption = Annotated[str, typer.Option(help="Where its engines are.")]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="SHOAL_CLI_CONTEXT",
        help="A context of the kubeconfig, - for its current one. None: the local fleet.",
    ),
]


_OTHER_FLEET = typer.Option(
    "--context", help="A context of the kubeconfig, - for its current one: its registry is asked."
)
_OTHER_NAMESPACE = typer.Option("--namespace", help="Where the installation is, on that cluster.")
_REGISTRYS = {"context": Annotated[str | None, _OTHER_FLEET], "namespace": Annotated[str | None, _OTHER_NAMESPACE]}


def with_registry_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--context` and `--namespace`, which set the environment of `registry_client`, to a registry's command."""

    @functools.wraps(command)
    def chosen(*arguments: Any, context: str | None = None, namespace: str | None = None, **options: Any) -> None:
        if context is not None:
            os.environ["SHOAL_CLI_CONTEXT"] = context
            os.environ.pop("SHOAL_CLI_REGISTRY_URL", None)
        if namespace is not None:
            os.environ["SHOAL_CLI_NAMESPACE"] = namespace
        command(*arguments, **options)

    signature = inspect.signature(command)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _REGISTRYS.items()
    ]
    chosen.__annotations__ = {**command.__annotations__, **_REGISTRYS}
    chosen.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    return chosen
