"""The list of settings sources is complete, matches `shoal up`, and has a reason wherever the targets differ.

`checks/parity` compares the renderings with the same list, as one of the checks of `test_overlays`.
"""

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

import functions
from functions.api.loader import load_directory
from functions.controller.local.context import PlanContext
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Target, pools_of
from functions.controller.local.ports import plan_ports
from functions.controller.local.settings import ControllerSettings, LocalSettings
from functions.controller.local.spec import ProcessSpec
from tests.manifests.rendering import PROJECT
from tests.manifests.settings_sources import PROCESSES, variable

# Settings of the local controller, which an operator may set for `shoal up`.
_OF_SHOAL_UP = (LocalSettings, ControllerSettings)


@pytest.fixture(scope="module")
def plan() -> list[ProcessSpec]:
    context = PlanContext(
        layout=StateLayout(Path("/state")),
        ports=plan_ports(LocalSettings(_env_file=None, port_base=8440)),
        python=Path("/ours/python"),
        engine_python=Path("/engine/python"),
        weed=Path("/bin/weed"),
        valkey_server=Path("/bin/valkey-server"),
        drain_timeout_s=20.0,
        models_root=Path("/state/models"),
        has_trace_store=True,
    )
    files = [
        path for folder in ("inferenceservices", "policies", "registry") for path in (PROJECT / folder).glob("*.yaml")
    ]
    declared = [path for path in files if path.name != "kustomization.yaml"]
    pools = pools_of(load_directory(declared, relative_to=PROJECT))
    pools = (replace(pools[0], model=f"{pools[0].name}@v1"), *pools[1:])  # in the store, so that a fetcher is planned
    return list(plan_fleet(context, pools, Target(), {}).values())


@pytest.mark.parametrize("module", PROCESSES)
def test_every_setting_stands_in_the_list(module: str) -> None:
    process = PROCESSES[module]
    assert process.sources.keys() == set(process.settings.model_fields)


def test_every_settings_class_stands_in_the_list() -> None:
    for module in pkgutil.walk_packages(functions.__path__, "functions."):
        if module.name.endswith(".settings"):
            importlib.import_module(module.name)
    ours = {each for each in _all_subclasses(BaseSettings) if each.__module__.startswith("functions.")}
    ours = {each for each in ours if not each.__module__.startswith("functions.cli.")}  # not those of commands
    assert ours == {process.settings for process in PROCESSES.values()} | {*_OF_SHOAL_UP}


@pytest.mark.parametrize("module", PROCESSES)
def test_a_difference_between_the_targets_has_its_reason(module: str) -> None:
    sources = PROCESSES[module].sources
    assert [field for field, each in sources.items() if each.local != each.manifests and len(each.why) < 20] == []


@pytest.mark.parametrize("module", [module for module, process in PROCESSES.items() if process.local])
def test_shoal_up_sets_what_the_list_says(module: str, plan: list[ProcessSpec]) -> None:
    process = PROCESSES[module]
    specs = [spec for spec in plan if spec.role == process.local]
    assert specs
    expected = {variable(process, field) for field, source in process.sources.items() if source.local == "always"}
    for spec in specs:
        assert {name for name, _ in spec.env if name.startswith("SHOAL_")} == expected


def test_shoal_up_starts_no_unlisted_roles(plan: list[ProcessSpec]) -> None:
    """The settings of a new role belong in the list."""
    ours = {spec.role for spec in plan if any(part.startswith("functions.") for part in spec.argv)}
    assert ours <= {process.local for process in PROCESSES.values()} | {"engine"}


def _all_subclasses(of: type) -> set[type]:
    direct = set(of.__subclasses__())
    return direct | {each for child in direct for each in _all_subclasses(child)}
