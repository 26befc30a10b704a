"""Regions on one machine: own and shared parts, ports, and the controller that judges a push."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from functions.cli.main import _region_first
from functions.controller.gitops import hook
from functions.controller.local.context import PlanContext
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan_servers import registry
from functions.controller.local.ports import plan_ports
from functions.controller.local.prepare.secret_files import ensure_secrets
from functions.controller.local.regions import (
    PORTS_APART,
    TooManyRegions,
    control_sockets,
    ensure_region,
    regions_of,
    settings_of,
)
from functions.controller.local.settings import LocalSettings
from functions.fleet.regions import RegionsUnreadable, read_regions


def test_a_region_keeps_its_ports_and_no_two_share_any(tmp_path: Path) -> None:
    layout = StateLayout.at(tmp_path, "a")
    first = ensure_region(layout, "a", 8440)
    assert (first.port_base, first.registry_url) == (8440 + PORTS_APART, "https://127.0.0.1:8644")
    second = ensure_region(StateLayout.at(tmp_path, "b"), "b", 8440)
    assert second.gateway_url == "https://127.0.0.1:8843"
    assert ensure_region(layout, "a", 9000) == first, "whatever a shell has set since"
    assert regions_of(layout) == {"a": first, "b": second}
    used = [
        {use.port for use in plan_ports(settings_of(LocalSettings(), each)).uses(range(20))} for each in (first, second)
    ]
    assert used[0].isdisjoint(used[1]) and used[0].isdisjoint({8443})


def test_no_ports_above_the_highest(tmp_path: Path) -> None:
    with pytest.raises(TooManyRegions, match="SHOAL_PORT_BASE"):
        ensure_region(StateLayout.at(tmp_path, "a"), "a", 65_200)


def test_region_ports_ignore_the_environment(tmp_path: Path) -> None:
    address = ensure_region(StateLayout.at(tmp_path, "a"), "a", 8440)
    settings = settings_of(LocalSettings(port_gateway=1234), address)
    assert plan_ports(settings).gateway == 8643


def test_regions_share_some_files_and_separate_others(tmp_path: Path) -> None:
    home, a, b = StateLayout.at(tmp_path), StateLayout.at(tmp_path, "a"), StateLayout.at(tmp_path, "b")
    for layout in (a, b):
        layout.make_directories()
        ensure_secrets(layout)
    for name in ("pepper", "regions-token"):
        assert a.secret(name) == b.secret(name) == home.secret(name) and a.secret(name).is_file()
    for name in ("internal-token", "bus-password", "s3.json"):
        assert a.secret(name).read_text() != b.secret(name).read_text()
    assert a.gitops_dir == b.gitops_dir == home.gitops_dir
    assert (a.tls_dir, a.models_dir, a.demo_keys_file) == (b.tls_dir, b.models_dir, b.demo_keys_file)
    apart = ("root", "run_dir", "logs_dir", "ledger_file", "control_socket", "handover_socket", "adapter_cache_dir")
    assert all(getattr(a, name) != getattr(b, name) != getattr(home, name) for name in apart)


def test_region_registry_follows_the_others_and_a_plain_one_follows_none(tmp_path: Path) -> None:
    def environment(layout: StateLayout) -> dict[str, str]:
        nowhere = Path("/nowhere")
        context = PlanContext(layout, plan_ports(LocalSettings()), nowhere, nowhere, nowhere, nowhere, 5.0, nowhere)
        return {name: value for name, value in registry(context).env if "REGION" in name}

    of_region = environment(StateLayout.at(tmp_path, "a"))
    assert of_region["SHOAL_REGISTRY_REGION"] == "a"
    assert of_region["SHOAL_REGISTRY_REGIONS_FILE"] == str(tmp_path / "regions.json")
    assert environment(StateLayout.at(tmp_path)) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is not"), ('{"A b": {"registry_url": "https://a"}}', "is not"), ('{"a": {"registry_url": "a"}}', "is not")],
)
def test_invalid_region_list_has_a_readable_message(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "regions.json"
    file.write_text(text)
    with pytest.raises(RegionsUnreadable, match=says):
        read_regions(file)
    with pytest.raises(RegionsUnreadable, match="cannot be read"):
        read_regions(tmp_path / "none")


def test_a_push_is_judged_by_the_first_controller_that_answers(tmp_path: Path) -> None:
    """The first region was killed: its socket file exists, but no process listens on it."""
    for name in ("a", "b"):
        layout = StateLayout.at(tmp_path, name)
        layout.make_directories()
        ensure_region(layout, name, 8440)
    sockets = control_sockets(StateLayout.at(tmp_path, "a"))
    assert sockets[0] == StateLayout.at(tmp_path, "a").control_socket and len(sockets) == 3
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets[-1].parent.mkdir(parents=True, exist_ok=True)
    listener.bind(str(sockets[-1]))
    listener.listen(1)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(sockets[0]))
    dead.close()

    def answer() -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as asked:
            asked.readline()
            verdict = {"accepted": False, "lines": ["judged by b"]}
            client.sendall(json.dumps({"ok": True, "result": verdict}).encode() + b"\n")

    answering = threading.Thread(target=answer)
    answering.start()
    done = subprocess.run(
        [sys.executable, "-I", "-S", hook.__file__, "pre-receive", str(tmp_path), sys.executable, *map(str, sockets)],
        input=f"{'0' * 40} {'1' * 40} refs/heads/main\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    answering.join()
    listener.close()
    assert (done.returncode, done.stdout) == (1, "judged by b\n")


def test_region_option_may_follow_the_command() -> None:
    assert _region_first(["up", "--region", "a", "--detach"]) == ["--region", "a", "up", "--detach"]
    assert _region_first(["status", "--region=b"]) == ["--region=b", "status"]
    assert _region_first(["chat", "x", "--", "--region", "a"]) == ["chat", "x", "--", "--region", "a"]
    assert _region_first(["status"]) == ["status"]
