"""A tenant pushes an adapter through the public address: it is served, updated, rolled out and rolled back.

Tenants reach only the gateway, which forwards registry calls.
"""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import UNLIMITED
from tests.cluster.installation import PROJECT, Installation, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
ADAPTER = PROJECT / "registry" / "adapters" / "acme" / "support-bot" / "v1"  # an adapter of SmolLM2-135M
GOAL_S = 60.0


@pytest.fixture(scope="module")
def model(installation: Installation) -> str:
    if installation.pool != "smollm2-135m":
        pytest.skip("the suite's adapter is of smollm2-135m")
    return f"{UNLIMITED}/bot-{int(time.time())}"


def test_a_pushed_adapter_is_served_within_a_minute(
    installation: Installation, key: str, model: str, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    pushed = _shoal(installation, key, "adapter", "push", f"{model}@v1", _folder(tmp_path, "v1"), "--promote")
    print(pushed)
    pushed_s = time.monotonic() - began_s
    wait_until("it is served", lambda: _served_by(installation, key, model) == f"{model}@v1", GOAL_S)
    print(f"push to answer: {time.monotonic() - began_s:.1f} s, of which the push took {pushed_s:.1f} s")


def test_a_second_version_rolls_out_and_back(installation: Installation, key: str, model: str, tmp_path: Path) -> None:
    _shoal(installation, key, "adapter", "push", f"{model}@v2", _folder(tmp_path, "v2"))
    wait_until("v2 is served by name", lambda: _served_by(installation, key, f"{model}@v2") == f"{model}@v2", GOAL_S)
    began_s = time.monotonic()
    print(_shoal(installation, key, "promote", model, "v2"))

    def rollouts() -> list[dict[str, object]]:
        listed = _shoal(installation, key, "rollout", "ls", "--all", "--model", model, "-o", "json")
        return list(json.loads(listed)["rollouts"])

    wait_until("the rollout is on its way", lambda: bool(rollouts()), GOAL_S, every_s=0.5)
    print(f"on its way {time.monotonic() - began_s:.1f} s later: {rollouts()[0]}")
    began_s = time.monotonic()
    _shoal(installation, key, "rollout", "promote", model)
    wait_until("v2 is stable", lambda: _served_by(installation, key, model) == f"{model}@v2", GOAL_S)
    print(f"promoted to answer: {time.monotonic() - began_s:.1f} s")
    began_s = time.monotonic()
    _shoal(installation, key, "promote", model, "v1")
    _shoal(installation, key, "rollout", "promote", model)
    wait_until("v1 is stable again", lambda: _served_by(installation, key, model) == f"{model}@v1", GOAL_S)
    print(f"back in {time.monotonic() - began_s:.1f} s")


def _folder(parent: Path, name: str) -> str:
    folder = parent / name
    shutil.copytree(ADAPTER, folder)
    (folder / "notes.txt").write_text(f"{name} {time.time_ns()}\n")
    return str(folder)


def _shoal(installation: Installation, key: str, *arguments: str) -> str:
    """Run a command as a tenant, with the gateway's address and a key."""
    with installation.named_address() as url:
        done = installation.shoal(*arguments, SHOAL_CLI_REGISTRY_URL=url, SHOAL_CLI_KEY=key)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def _served_by(installation: Installation, key: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    with installation.client(key) as client:
        return client.post("/chat/completions", json=body).headers.get("x-shoal-model", "")
