"""A fleet's ports are stored with its state, so that another shell finds it without the settings."""

from pathlib import Path

import pytest

from functions.controller.local import ports
from functions.controller.local.layout import StateLayout
from functions.controller.local.ports import plan_ports
from functions.controller.local.settings import LocalSettings


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout.at(tmp_path)
    layout.make_directories()
    return layout


@pytest.fixture(autouse=True)
def no_ports_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LocalSettings.model_fields:
        monkeypatch.delenv(f"SHOAL_{name.upper()}", raising=False)


def test_another_shell_finds_the_fleet_where_it_was_started(layout: StateLayout) -> None:
    ports.save_ports(layout, LocalSettings(port_base=16_000, port_gateway=443))
    found = ports.with_saved_ports(LocalSettings(), layout, {"HOME": "/"})
    assert plan_ports(found) == plan_ports(LocalSettings(port_base=16_000, port_gateway=443))


def test_port_in_the_environment_overrides_stored_ones(layout: StateLayout) -> None:
    ports.save_ports(layout, LocalSettings(port_base=16_000, port_gateway=443))
    named = LocalSettings(port_base=9_000)
    assert ports.with_saved_ports(named, layout, {"SHOAL_PORT_BASE": "9000"}) is named


def test_a_stopped_fleet_leaves_no_ports_behind(layout: StateLayout) -> None:
    ports.save_ports(layout, LocalSettings(port_base=16_000))
    ports.forget_ports(layout)
    ports.forget_ports(layout)
    assert ports.with_saved_ports(LocalSettings(), layout, {}).port_base == 8440


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"port_base": "x"}', '{"port_base": -1}', '{"port_base": 99999}', '{"state_dir": 3}']
)
def test_invalid_ports_file_counts_as_missing(layout: StateLayout, text: str) -> None:
    layout.ports_file.write_text(text)
    assert ports.with_saved_ports(LocalSettings(), layout, {}) == LocalSettings()


def test_process_started_with_stored_ports_has_the_same_ports(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports.save_ports(layout, LocalSettings(port_base=16_000, port_bus=7_000))
    found = ports.with_saved_ports(LocalSettings(), layout, {})
    for name, value in ports.as_environment(found).items():
        monkeypatch.setenv(name, value)
    assert LocalSettings() == found
