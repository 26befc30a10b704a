"""Name and options of `shoal drill`. The implementation is imported on use, as in `main`."""

from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import Output, OutputOption


def drill(
    names: Annotated[list[str] | None, typer.Argument(help="Drills to run; --list shows their names.")] = None,
    *,
    list_them: Annotated[bool, typer.Option("--list", help="List the drills and what each needs.")] = False,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="Run all drills one after the other, and print a table.")
    ] = False,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant of the key for the drill's load; by default the first demo tenant.")
    ] = None,
    windows: Annotated[
        float, typer.Option(help="Factor for the alerts' time windows, 0.2 to 1; 1 is as in production.")
    ] = 0.2,
    plot: Annotated[
        Path | None, typer.Option(help="File for a chart (.svg, .png or .html); a folder for several drills.")
    ] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Show, or --plot, the newest stored report of each drill; run nothing.")
    ] = False,
    consent: Annotated[
        list[str] | None,
        typer.Option("--i-consent-on-production", help="Name of the drill again, to run it on production; repeatable."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a failure mode on the running local fleet: fault, alert, recovery; exit 1 if a check fails."""
    from functions.cli.drill import command

    if list_them:
        command.ls(as_json=output is Output.JSON)
        return
    wanted = command.DrillRequest(
        names=tuple(names or ()), all_of_them=all_of_them, tenant=tenant, scale=windows,
        consents=tuple(consent or ()), plot=plot, as_json=output is Output.JSON,
    )  # fmt: skip
    if kept:
        command.show_kept(wanted)
    else:
        command.play(wanted)
