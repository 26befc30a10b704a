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


EngineOption = Annotated[EngineChoice, typer.Option(help="Engine: vllm (real), or sim (simulated, ready in seconds).")]
ReplicasOption = Annotated[
    int | None, typer.Option(min=1, max=20, help="Replicas of each pool, instead of the number in its YAML.")
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Output format.")]
ChannelOption = Annotated[str, typer.Option(help="Channel to move; requests without a channel use `stable`.")]
ReasonOption = Annotated[str, typer.Option(help="Reason, for the audit log and the rollout's status.")]
RolloutArgument = Annotated[
    str, typer.Argument(help="Rollout id, or model (tenant/name[:channel]) for its newest rollout.")
]
TenantOption = Annotated[
    str | None, typer.Option(help="Tenant whose demo key to use; by default the model's, else the first.")
]

ContextOption = Annotated[
    str | None,
    typer.Option(envvar="SHOAL_CLI_CONTEXT", help="Kubeconfig context; by default the current one."),
]
NamespaceOption = Annotated[str, typer.Option(envvar="SHOAL_CLI_NAMESPACE", help="Namespace of the installation.")]
ModelsNamespaceOption = Annotated[str, typer.Option(help="Namespace of the engines.")]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="SHOAL_CLI_CONTEXT",
        help="Kubeconfig context of a cluster, - for the current one; by default the local fleet.",
    ),
]


_OTHER_FLEET = typer.Option(
    "--context", help="Kubeconfig context, - for the current one, of the cluster whose registry to use."
)
_OTHER_NAMESPACE = typer.Option("--namespace", help="Namespace of the installation on that cluster.")
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
