"""Commands with a cluster: those that support it accept `--context`, the others say what to use instead."""

import os

import pytest
import typer
from typer.testing import CliRunner

from functions.cli.main import app
from functions.cli.on_a_cluster import INSTEAD, refuse_local_commands
from functions.cli.options import with_registry_options
from functions.cli.refused import CommandRefused

_ASK_A_REGISTRY = (
    ("top",),
    ("usage",),
    ("promote",),
    ("adapter", "push"),
    *(("rollout", verb) for verb in ("ls", "watch", "pause", "resume", "promote", "rollback")),
    *(("key", verb) for verb in ("create", "ls", "revoke")),
)
_ACT_THERE = (
    *(("status",), ("logs",), ("events",), ("console",), ("diff",), ("plan",), ("trace",), ("traces",)),
    *(("restart",), ("drain",), ("suspend",), ("resume",), ("reconcile",)),
)


@pytest.mark.parametrize("words", [*_ASK_A_REGISTRY, *_ACT_THERE], ids=" ".join)
def test_a_cluster_is_named_the_same_way_everywhere(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert "--context" in shown.output
    assert "--namespace" in shown.output


@pytest.mark.parametrize("command", INSTEAD)
def test_a_command_of_this_machine_says_what_does_it_on_a_cluster(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, "it is still called so"
    with pytest.raises(CommandRefused, match=f"`shoal {command}` is for the fleet of this machine; for a cluster: "):
        refuse_local_commands([command, "--context", "production"])
    refuse_local_commands([command])


def test_context_option_overrides_the_registry_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's registry address in the environment must not redirect an operator's command."""
    monkeypatch.setenv("SHOAL_CLI_REGISTRY_URL", "https://llm.example.com")
    monkeypatch.setenv("SHOAL_CLI_CONTEXT", "staging")
    monkeypatch.setenv("SHOAL_CLI_NAMESPACE", "shoal")
    said: list[tuple[str, dict[str, str]]] = []

    @with_registry_options
    def look(name: str) -> None:
        said.append((name, {key: value for key, value in os.environ.items() if key.startswith("SHOAL_CLI_")}))

    tried = typer.Typer()
    tried.command()(look)
    for arguments in (["a"], ["b", "--context", "production", "--namespace", "llm"]):
        assert CliRunner().invoke(tried, arguments).exit_code == 0
    here = {"SHOAL_CLI_CONTEXT": "staging", "SHOAL_CLI_NAMESPACE": "shoal"}
    assert said == [
        ("a", here | {"SHOAL_CLI_REGISTRY_URL": "https://llm.example.com"}),
        ("b", {"SHOAL_CLI_CONTEXT": "production", "SHOAL_CLI_NAMESPACE": "llm"}),
    ]
