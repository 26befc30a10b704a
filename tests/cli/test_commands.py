"""The `shoal` command without a fleet, as a process: output, rejections and exit status."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from functions.controller.local.layout import StateLayout
from functions.controller.local.prepare.certificates import ensure_certificates
from functions.controller.local.prepare.configuration import ensure_configuration
from functions.controller.local.prepare.secret_files import ensure_secrets
from tests import roles

PROJECT = Path(__file__).parents[2]
Shoal = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def shoal(state_dir: Path) -> Shoal:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = variables.pop("stdin", "")
        environment = os.environ | {"SHOAL_STATE_DIR": str(state_dir), "SHOAL_PROJECT_DIR": str(PROJECT)} | variables
        return roles.run("functions.cli.main", *arguments, env=environment, input=given)

    return run


@pytest.fixture
def prepared(state_dir: Path) -> StateLayout:
    layout = StateLayout.at(state_dir)
    layout.make_directories()
    ensure_secrets(layout)
    ensure_certificates(layout)
    ensure_configuration(layout, PROJECT)
    return layout


def test_help_names_every_command_of_the_contract(shoal: Shoal) -> None:
    answer = shoal("--help")
    assert answer.returncode == 0
    named = (
        "up",
        "down",
        "env",
        "status",
        "top",
        "chat",
        "restart",
        "logs",
        "adapter",
        "promote",
        "rollout",
        "key",
        "trace",
    )
    assert all(f"  {name} " in answer.stdout for name in named)


def test_version_is_the_installed_one(shoal: Shoal) -> None:
    answer = shoal("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"shoal {version('shoal')}\n", "")


def test_help_does_not_import_what_it_does_not_need() -> None:
    """Help and completion must be fast, so they import no HTTP client, cryptography or S3."""
    slow = ("httpx", "boto3", "cryptography", "psutil")
    code = f"import sys, functions.cli.main; print([name for name in {slow} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("dance",),
        ("up", "--engine", "other"),
        ("up", "--replicas", "0"),
        ("up", "--replicas", "many"),
        ("status", "-o", "xml"),
        ("chat",),
        ("chat", "m", "--temperature", "3"),
        ("restart",),
        ("adapter", "push", "acme/bot@v1"),
        ("promote", "acme/bot"),
        ("rollout",),
        ("rollout", "stop", "ro-00000000"),
        ("key", "create"),
        ("key", "create", "acme", "--scope", "everything"),
        ("top", "--every", "0"),
    ],
)
def test_wrong_usage_is_status_2_with_words(shoal: Shoal, arguments: tuple[str, ...]) -> None:
    answer = shoal(*arguments)
    assert answer.returncode == 2
    assert answer.stderr


@pytest.mark.parametrize("arguments", [("env",), ("chat", "m", "--once", "hi"), ("restart", "gateway"), ("logs", "s3")])
def test_without_a_fleet_commands_fail_and_say_what_to_do(shoal: Shoal, arguments: tuple[str, ...]) -> None:
    answer = shoal(*arguments)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("shoal: ")
    assert "Traceback" not in answer.stderr


def test_status_without_a_fleet(shoal: Shoal) -> None:
    answer = shoal("status")
    assert answer.returncode == 1
    assert "shoal up" in answer.stdout
    described = json.loads(shoal("status", "-o", "json").stdout)
    assert (described["ready"], described["controller"], described["without_controller"]) == (False, None, [])


def test_down_without_a_fleet_is_fine_as_often_as_you_like(shoal: Shoal, prepared: StateLayout) -> None:
    for _ in range(2):
        answer = shoal("down")
        assert answer.returncode == 0
        assert "nothing is left" in answer.stdout


def test_env_can_be_evaluated_by_a_shell(shoal: Shoal, prepared: StateLayout) -> None:
    answer = shoal("env", SHOAL_PORT_BASE="9000")
    script = answer.stdout + '\nprintf "%s\\n" "$OPENAI_BASE_URL" "$OPENAI_API_KEY" "$SSL_CERT_FILE"'
    url, key, bundle = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert url == "https://localhost:9003/v1"
    assert key == json.loads(prepared.demo_keys_file.read_text())["acme"]["key"]
    assert Path(bundle).read_bytes().endswith(prepared.ca_file.read_bytes())
    assert all(shlex.split(line) for line in answer.stdout.splitlines() if not line.startswith("#"))


def test_what_would_win_over_ssl_cert_file_is_set_too(shoal: Shoal, prepared: StateLayout) -> None:
    values = json.loads(shoal("env", "-o", "json", CURL_CA_BUNDLE="/elsewhere", REQUESTS_CA_BUNDLE="").stdout)
    assert values["CURL_CA_BUNDLE"] == values["SSL_CERT_FILE"]
    assert "REQUESTS_CA_BUNDLE" not in values


def test_env_of_another_tenant_as_json(shoal: Shoal, prepared: StateLayout) -> None:
    values = json.loads(shoal("env", "--tenant", "globex", "-o", "json").stdout)
    assert values["OPENAI_API_KEY"] == json.loads(prepared.demo_keys_file.read_text())["globex"]["key"]
    refused = shoal("env", "--tenant", "nobody")
    assert refused.returncode == 1
    assert "acme, globex" in refused.stderr


def test_a_bad_setting_is_named(shoal: Shoal) -> None:
    answer = shoal("status", SHOAL_PORT_BASE="many")
    assert answer.returncode == 1
    assert "SHOAL_PORT_BASE" in answer.stderr


def test_up_outside_a_project_says_so(shoal: Shoal, tmp_path: Path) -> None:
    answer = shoal("up", "--engine", "sim", SHOAL_PROJECT_DIR=str(tmp_path))
    assert answer.returncode == 1
    assert "SHOAL_PROJECT_DIR" in answer.stderr


def test_up_with_a_mistake_in_the_configuration_starts_nothing(shoal: Shoal, state_dir: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "policies").mkdir(parents=True)
    (project / "policies" / "tenants.yaml").write_text("kind: Tenant\n")
    answer = shoal("up", "--engine", "sim", SHOAL_PROJECT_DIR=str(project))
    assert answer.returncode == 1
    assert "policies/tenants.yaml:1" in answer.stderr
    assert not StateLayout.at(state_dir).control_socket.exists()


def test_logs_prints_the_end_of_the_one_asked_for(shoal: Shoal, prepared: StateLayout) -> None:
    prepared.log_file("gateway").write_text("one\ntwo\nthree\n")
    assert shoal("logs", "gateway", "-n", "2").stdout == "two\nthree\n"
    refused = shoal("logs", "other")
    assert refused.returncode == 1
    assert "logs: gateway" in refused.stderr
    assert shoal("logs", "../secrets/pepper").returncode == 1
