"""`shoal prepare`, and the first half of `shoal up`: everything that must be there before a process can start."""

from functions.artifacts.errors import ArtifactError
from functions.cli.clones import read_branch
from functions.cli.place import Place, here
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local.pools import EngineKind
from functions.controller.local.prepare.base_model import ensure_base_model, ensure_placeholder_model
from functions.controller.local.prepare.certificates import ensure_certificates
from functions.controller.local.prepare.configuration import ensure_configuration
from functions.controller.local.prepare.engine_environment import EngineEnvironment
from functions.controller.local.prepare.secret_files import ensure_secrets
from functions.controller.local.prepare.steps import CannotPrepare, Reporter, exclusive


def prepare(engine: EngineKind) -> None:
    reporter = TerminalReporter(make_console())
    place = here()
    prepare_basics(place, reporter)
    prepare_engine(place, engine, reporter)


def prepare_basics(place: Place, reporter: Reporter) -> None:
    """State, secrets, certificates, configuration: what every fleet needs, in a second."""
    layout = place.layout
    try:
        with reporter.step("State, secrets and certificates") as step:
            layout.make()
            ensure_secrets(layout)
            step.note(f"{layout.root}, certificates {ensure_certificates(layout)}")
        with reporter.step("Configuration") as step:
            notes = ensure_configuration(layout, place.settings.project_dir)
            branch = read_branch(layout)
            notes += branch.notes
            step.note(f"{layout.gitops_dir}, pools: {', '.join(pool.name for pool in branch.pools) or 'none'}")
    except (CannotPrepare, OSError) as error:
        raise Refused(str(error)) from error
    for note in notes:
        reporter.say(f"note: {note}")


def prepare_engine(place: Place, engine: EngineKind, reporter: Reporter) -> None:
    """The engine's environment and the base model; nearly nothing for the simulated one."""
    layout, venv = place.layout, place.settings.engine_venv
    if engine == "sim":
        ensure_placeholder_model(layout)
        return
    try:
        EngineEnvironment(venv).ensure(log=layout.log_file("prepare-engine"), reporter=reporter)
        with reporter.step("Base model") as step, exclusive(layout.prepare_lock, step.update) as lock:
            ensure_base_model(layout, place.settings.engine_python, lock=lock, step=step)
    except (CannotPrepare, ArtifactError, OSError) as error:
        raise Refused(str(error)) from error
