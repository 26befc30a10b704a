"""Where the fleet is that a command is about: its settings, its state directory, its addresses."""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from functions.cli.clones import state_dir_of_clone
from functions.cli.refused import Refused
from functions.controller.local.layout import StateLayout
from functions.controller.local.ports import PortPlan, as_environment, plan_ports, with_kept_ports
from functions.controller.local.settings import LocalSettings


@dataclass(frozen=True, slots=True)
class Place:
    settings: LocalSettings
    layout: StateLayout
    ports: PortPlan

    @property
    def gateway_url(self) -> str:
        """By name: the certificate holds for localhost as well as for the address."""
        return f"https://localhost:{self.ports.gateway}"

    @property
    def registry_url(self) -> str:
        return f"https://localhost:{self.ports.registry}"

    def environment(self) -> dict[str, str]:
        """For the controller: ours, with the places spelt out, so that it does not matter where it is started."""
        return {
            **os.environ,
            "SHOAL_STATE_DIR": str(self.layout.root),
            "SHOAL_PROJECT_DIR": str(self.settings.project_dir.resolve()),
            "SHOAL_ENGINE_VENV": str(self.settings.engine_venv.absolute()),
            "PYTHONSAFEPATH": "1",
            **as_environment(self.settings),
        }


def here(*, clones: bool = False) -> Place:
    """`clones`: in a clone of a fleet's repository, that fleet, unless SHOAL_STATE_DIR or the directory names one."""
    try:
        settings = LocalSettings()
    except ValidationError as error:
        wrong = "; ".join(f"SHOAL_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise Refused(f"a setting in the environment is wrong: {wrong}") from error
    layout = StateLayout.at(settings.state_dir)
    if clones and "SHOAL_STATE_DIR" not in os.environ and not layout.ca_file.is_file():
        layout = StateLayout.at(state_dir_of_clone(Path.cwd()) or layout.root)
    settings = with_kept_ports(settings, layout, os.environ)
    return Place(settings, layout, plan_ports(settings))
