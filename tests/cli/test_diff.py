"""`shoal diff` against a real registry: what would change, and errors if that is unknown."""

import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, KeyId, ModelId, TenantId
from functions.api.snapshot import KeyEntry
from functions.controller.snapshot.compile import compile_snapshot, unpinned_artifacts
from functions.fleet.snapshots import SNAPSHOT_PATH
from tests.controller.configs import base, load, lora, pool, tenant, tier
from tests.controller.unobeyed.test_declared import EVENTS
from tests.gateway.certificates import self_signed
from tests.ports import free_port
from tests.registry.test_process import TOKEN, environment, registry
from tests.roles import run

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@dataclass
class Setting:
    """A registry with a snapshot, and a folder with the configuration from which it was compiled."""

    config: Path
    env: dict[str, str]
    client: httpx.Client

    def write(self, *documents: str) -> None:
        (self.config / "policies").mkdir(parents=True, exist_ok=True)
        (self.config / "policies" / "all.yaml").write_text("---\n".join(documents))

    def diff(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run("functions.cli.main", "diff", *arguments, cwd=self.config, env=self.env)


def published() -> bytes:
    objects = load("---\n".join((tier(), pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1")))).objects
    digests = dict.fromkeys(unpinned_artifacts(objects), Digest("sha256:" + "1" * 64))
    it = compile_snapshot(objects, digests, epoch=7, revision="main@abc", compiled_unix_s=0.0).snapshot
    return snapshots.encode(it).replace(b'"0.yaml"', b'"policies/all.yaml"')


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    state = tmp_path / "state"
    (state / "secrets").mkdir(parents=True)
    (state / "tls").mkdir()
    (state / "secrets" / "internal-token").write_text(TOKEN)
    cert, key = self_signed(tmp_path)
    (state / "tls" / "ca.pem").write_bytes(cert.read_bytes())
    port = free_port()
    (tmp_path / "pepper").write_text("pepper")
    pepper = {"SHOAL_REGISTRY_PEPPER_FILE": str(tmp_path / "pepper")}
    tls = {"SHOAL_REGISTRY_TLS_CERT_FILE": str(cert), "SHOAL_REGISTRY_TLS_KEY_FILE": str(key)}
    env = {**os.environ, "SHOAL_STATE_DIR": str(state), "SHOAL_PORT_REGISTRY": str(port)}
    context = ssl.create_default_context(cafile=str(cert))
    with registry(environment(tmp_path, port, **tls, **pepper), f"https://localhost:{port}", context) as client:
        assert client.put(SNAPSHOT_PATH, content=published()).status_code == 204
        made = Setting(tmp_path / "config", env, client)
        made.write(tier(), pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1"))
        yield made


def test_diff_distinguishes_running_from_declared_configuration(setting: Setting) -> None:
    same = setting.diff()
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.strip() == "no change (against epoch 7, main@abc)"
    setting.write(
        tier(), pool(bounds="minReplicas: 3, maxReplicas: 3"), tenant("acme"), base(), lora("acme/bot", "v1", "v2")
    )
    told = setting.diff()
    assert (told.returncode, told.stderr) == (0, "")
    assert "3 changes: 1 tenant changed, 1 model changed, 1 pool changed (against epoch 7, main@abc)" in told.stdout
    assert "~ acme: key ci revoked" in told.stdout
    assert "~ acme/bot: version v2 added" in told.stdout
    assert "~ base: replicas 1 -> 3 (+200 %)" in told.stdout
    assert "!" not in told.stdout
    machine = json.loads(setting.diff(str(setting.config), "-o", "json").stdout)
    assert machine["warnings"] == []
    assert (machine["epoch"], machine["revision"]) == (7, "main@abc")
    assert machine["changes"][0] == {
        "kind": "tenant", "name": "acme", "verb": "changed", "words": "tenant acme: key ci revoked",
    }  # fmt: skip


def test_what_could_not_be_obeyed_is_told_besides(setting: Setting) -> None:
    uncached = pool(args="--max-model-len=2048, --no-enable-prefix-caching")
    setting.write(tier(), uncached, tenant("acme", "ci"), base(), lora("acme/bot", "v1"), EVENTS)
    told = setting.diff()
    assert told.returncode == 0
    assert "! policies/all.yaml:" in told.stdout
    assert "(PrefixCachingOff)" in told.stdout
    (warning,) = json.loads(setting.diff("-o", "json").stdout)["warnings"]
    assert "spec.prefix.source: found events, but base is started with" in warning


def test_models_and_keys_of_the_api_are_not_gits_to_remove(setting: Setting) -> None:
    made = setting.client.post("/v1/tenants/acme/keys", json={"id": "laptop"})
    assert made.status_code == 201, made.text
    (row,) = setting.client.get("/internal/v1/changes").json()["keys"]
    laptop = KeyEntry(KeyId("laptop"), TenantId("acme"), row["hmac_sha256"], tuple(row["scopes"]), row["max_class"])
    git = snapshots.decode(published())
    bot = next(model for model in git.models if model.id == "acme/bot")
    uploaded = msgspec.structs.replace(bot, id=ModelId("acme/uploaded"), declared_in="")
    both = msgspec.structs.replace(
        git,
        epoch=8,
        models=tuple(sorted((*git.models, uploaded), key=lambda model: model.id)),
        keys=tuple(sorted((*git.keys, laptop), key=lambda key: key.key_id)),
    )
    assert setting.client.put(SNAPSHOT_PATH, content=snapshots.encode(both)).status_code == 204
    assert setting.diff().stdout.strip() == "no change (against epoch 8, main@abc)"
    setting.write(tier(), pool(), tenant("acme"), base(), lora("acme/bot", "v1"))
    assert "~ acme: key ci revoked\n" in setting.diff().stdout  # only this line


def test_a_configuration_with_a_mistake_is_compared_with_nothing(setting: Setting) -> None:
    setting.write(tier(), pool(), tenant("acme").replace("tier:", "teir:"))
    refused = setting.diff()
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "policies/all.yaml" in refused.stderr
    assert "spec.teir: unknown key" in refused.stderr
    machine = setting.diff("-o", "json")
    assert machine.returncode == 1
    assert any("spec.teir" in problem for problem in json.loads(machine.stdout)["problems"])


def test_a_folder_without_anything_and_a_fleet_that_is_not_there_are_told(setting: Setting, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = setting.diff(str(empty))
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "declares nothing" in nothing.stderr
    setting.env["SHOAL_STATE_DIR"] = str(empty)
    nobody = setting.diff()
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "start one with `shoal up`" in nobody.stderr
