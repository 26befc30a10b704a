"""A tenant pushes an adapter from a folder with its own key and calls it, even if processes die meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.artifacts.adapter_files import make_adapter
from tests.e2e.projects import PATIENT, project_with
from tests.fleets import PROJECT, SHOAL, Fleet, git, running_fleet, wait_until
from tests.soak import sampled

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(900)]

BOT = PROJECT / "registry" / "adapters" / "acme" / "support-bot" / "v1"
GOAL_S = 60.0
REPLICAS = 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("pushes")
    with running_fleet(folder / "state", "sim", REPLICAS, project_with(folder / "project", PATIENT)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def key(fleet: Fleet) -> str:
    """Return a new key of acme, made by the operator, with the rights to push and to call."""
    made = fleet.shoal("key", "create", "acme", "--scope", "inference", "--scope", "models:write")
    assert made.returncode == 0, made.stderr
    wait_until("the key is known", lambda: ask(fleet, made.stdout.strip(), "smollm2-135m").status_code == 200, 120)
    return made.stdout.strip()


class Tenant:
    """A tenant's machine without a fleet: it has only the gateway's address, a CA and a key."""

    def __init__(self, fleet: Fleet, key: str, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "SHOAL_STATE_DIR": str(folder / "none"),
            "SHOAL_CLI_REGISTRY_URL": f"https://localhost:{fleet.port_base + 3}",
            "SHOAL_CLI_CA_FILE": fleet.ca_file,
            "SHOAL_CLI_KEY": key,
        }

    def shoal(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*SHOAL, *arguments],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    def adapter(self, name: str) -> Path:
        """Return a folder with unique content."""
        folder = self.folder / name
        shutil.copytree(BOT, folder)
        (folder / "notes.txt").write_text(f"{name}\n")
        return folder


@pytest.fixture
def tenant(fleet: Fleet, key: str, tmp_path: Path) -> Tenant:
    return Tenant(fleet, key, tmp_path)


def ask(fleet: Fleet, key: str, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 64}
    with fleet.client() as client:
        return client.post("/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})


def served(fleet: Fleet, key: str, model: str) -> bool:
    return ask(fleet, key, model).status_code == 200


def test_a_pushed_adapter_is_served_within_a_minute(fleet: Fleet, key: str, tenant: Tenant) -> None:
    folder = tenant.adapter("fresh")
    began_s = time.monotonic()
    pushed = tenant.shoal("adapter", "push", "acme/fresh@v1", str(folder), "--promote")
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    pushed_s = time.monotonic() - began_s
    wait_until("it is served", lambda: served(fleet, key, "acme/fresh"), GOAL_S)
    answer = ask(fleet, key, "acme/fresh")
    assert answer.headers["x-shoal-model"] == "acme/fresh@v1"
    assert answer.json()["choices"][0]["message"]["content"].startswith("[acme/fresh@sha256:")
    print(f"push to answer: {time.monotonic() - began_s:.1f} s, of which the push took {pushed_s:.1f} s")
    again = tenant.shoal("adapter", "push", "acme/fresh@v1", str(folder), "--promote")
    assert again.returncode == 0, again.stderr
    assert "nothing to send" in again.stdout


def test_a_version_does_not_change(tenant: Tenant) -> None:
    assert tenant.shoal("adapter", "push", "acme/fixed@v1", str(tenant.adapter("one"))).returncode == 0
    other = tenant.shoal("adapter", "push", "acme/fixed@v1", str(tenant.adapter("two")))
    assert other.returncode == 1
    assert "a version never changes" in other.stderr


def test_another_tenants_model_does_not_exist(tenant: Tenant) -> None:
    foreign = tenant.shoal("adapter", "push", "globex/stolen@v1", str(tenant.adapter("mine")))
    assert foreign.returncode == 1
    assert "HTTP 404" in foreign.stderr


def test_a_model_that_git_declares_is_told_where(tenant: Tenant) -> None:
    declared = tenant.shoal("adapter", "push", "acme/support-bot@v9", str(tenant.adapter("nine")))
    assert declared.returncode == 0, declared.stderr
    assert "declared in git" in declared.stdout
    assert "registry/models.yaml" in declared.stdout
    assert '- {name: v9, artifact: "s3://shoal-models/acme/support-bot/v9", digest: "sha256:' in declared.stdout


def test_in_a_clone_the_model_gets_its_line_and_the_push_deploys_it(fleet: Fleet, key: str, tenant: Tenant) -> None:
    """An operator uploads the bytes to the store and pushes the version to git, which decides."""
    folder, clone = tenant.adapter("committed"), fleet.checkout
    git("fetch", "--quiet", "origin", at=clone)
    git("checkout", "--quiet", "--force", "-B", "main", "origin/main", at=clone)
    command = [*SHOAL, "adapter", "push", "acme/pirate@v7", str(folder), "--promote"]
    pushed = subprocess.run(
        command, env=fleet.environment, cwd=clone, capture_output=True, text=True, timeout=200, check=False
    )
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    assert "+  channels: {stable: v7}" in pushed.stdout
    assert "git commit -m 'acme/pirate: v7' registry/models.yaml && git push" in pushed.stdout
    git("commit", "--quiet", "-m", "acme/pirate: v7", "registry/models.yaml", at=clone)
    told = git("push", "origin", "main", at=clone, check=False)
    assert told.returncode == 0, told.stderr
    wait_until(
        "it is served", lambda: ask(fleet, key, "acme/pirate").headers.get("x-shoal-model") == "acme/pirate@v7", GOAL_S
    )


REFUSED_HERE: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"r": 64}, "rank 64 is over the limit of 16"),
    "dora": ({"use_dora": True}, "DoRA (use_dora) is not supported"),
    "bias": ({"bias": "all"}, "bias 'all' is not supported"),
    "kind": ({"peft_type": "IA3"}, "peft_type 'IA3' is not LORA"),
    "expression": ({"target_modules": "(a+)+$"}, "must be plain module names"),
}


@pytest.mark.parametrize("case", REFUSED_HERE)
def test_what_cannot_be_served_is_told_before_anything_is_sent(tenant: Tenant, case: str) -> None:
    changes, words = REFUSED_HERE[case]
    folder = make_adapter(tenant.folder / case, **changes)
    refused = tenant.shoal("adapter", "push", "acme/bad@v1", str(folder))
    assert refused.returncode == 1
    assert words in refused.stderr


def test_files_that_carry_code_are_refused(tenant: Tenant) -> None:
    folder = tenant.adapter("pickled")
    (folder / "training_args.bin").write_bytes(b"\x80\x04.")
    refused = tenant.shoal("adapter", "push", "acme/bad@v1", str(folder))
    assert refused.returncode == 1
    assert "training_args.bin does not belong in an adapter" in refused.stderr


def test_nothing_of_what_was_refused_is_there(fleet: Fleet) -> None:
    with fleet.registry() as registry:
        assert registry.get("/v1/models/acme/bad").status_code == 404
        assert registry.get("/v1/models/globex/stolen").status_code == 404


@pytest.mark.parametrize("role", ["registry", "controller", "agent"])
@pytest.mark.parametrize("after_s", sampled([0.6, 1.2], keep=[0.6]))
def test_whatever_is_killed_in_the_middle_a_second_push_ends_it(
    fleet: Fleet, key: str, tenant: Tenant, role: str, after_s: float
) -> None:
    """The kill comes during the first push or right after it; no existing version is lost."""
    name = f"{role}{int(10 * after_s)}"
    folder, model = tenant.adapter(name), f"acme/killed-{name}"
    arguments = ("adapter", "push", f"{model}@v1", str(folder), "--promote")
    first = threading.Thread(target=lambda: tenant.shoal(*arguments))
    first.start()
    time.sleep(after_s)  # real: the push has reached a different point each time
    kill(fleet, role)
    first.join(200)
    wait_until("a second push goes through", lambda: tenant.shoal(*arguments).returncode == 0, 120, every_s=1.0)
    wait_until("it is served", lambda: served(fleet, key, model), 2 * GOAL_S, every_s=0.2)
    with fleet.registry() as registry:
        chain = registry.get("/v1/audit/verify").json()
        assert chain["sound"], chain
        ids = {row["id"] for row in registry.get("/v1/models").json()["data"]}
        assert {model, "acme/support-bot"} <= ids
        versions = registry.get(f"/v1/models/{model}/versions").json()["data"]
    assert [version["name"] for version in versions] == ["v1"]


def kill(fleet: Fleet, role: str) -> None:
    if role != "controller":
        wait_until(f"a {role} runs", lambda: role in {each["role"] for each in fleet.processes().values()}, 120)
        os.kill(fleet.pid(role), signal.SIGKILL)  # the controller restarts it
        return
    os.kill(int(json.loads((fleet.state_dir / "run" / "processes.json").read_text())["controller_pid"]), signal.SIGKILL)
    up = fleet.shoal("up", "--engine", "sim", "--replicas", str(REPLICAS), timeout_s=400)
    assert up.returncode == 0, up.stdout + up.stderr
