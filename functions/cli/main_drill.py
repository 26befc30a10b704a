"""Name and options of `shoal drill`. The implementation is imported on use, as in `main`."""

from pathlib import Path
from typing import Annotated

import typer

from functions.cli.options import Output, OutputOption


def drill(
    names: Annotated[list[str] | None, typer.Argument(help="Failure modes, as --list names them.")] = None,
    *,
    list_them: Annotated[bool, typer.Option("--list", help="What there is, and what each needs.")] = False,
    all_of_them: Annotated[bool, typer.Option("--all", help="One after the other; ends with a table.")] = False,
    tenant: Annotated[
        str | None, typer.Option(help="Whose key the drill makes for its load; by default the first demo tenant.")
    ] = None,
    windows: Annotated[
        float, typer.Option(help="How much shorter alerts look back meanwhile, 0.2 to 1: 1 is as on production.")
    ] = 0.2,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what happened: .svg, .png or .html; of several drills, a folder.")
    ] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Play nothing: show, or --plot, the newest report that is kept of each.")
    ] = False,
    consent: Annotated[
        list[str] | None,
        typer.Option("--i-consent-on-production", help="The drill's name again, where it is production; repeat."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Play a failure mode on the running local fleet: fault, alert, recovery; exit 1 where something did not hold."""
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
