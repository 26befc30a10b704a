"""`git push` deploys: each change shows in `shoal status` and at the gateway, and no request fails."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from functions.api.keys import keyed_hash, mint, parse
from tests.e2e.background_load import Load, background_load, status_of
from tests.e2e.projects import PATIENT, project_with, without_scaling
from tests.fleets import Fleet, git, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(900)]

BASE = "smollm2-135m"
POOL_FILE = "inferenceservices/smollm2-135m.yaml"
MODELS = "registry/models.yaml"
TENANTS = "policies/tenants.yaml"
QUOTAS = "policies/quotas.yaml"
ON_BOTH = ("Ready", "v2 loaded on 2 of 2 replicas")
ALL_THREE = ("Ready", "3 of 3 replicas are ready")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("push")
    project = without_scaling(project_with(folder / "project", PATIENT))
    with running_fleet(folder / "state", "sim", replicas=None, project=project) as fleet:
        yield fleet


@pytest.fixture
def load(fleet: Fleet) -> Iterator[Load]:
    """Run a load during each test; fail the test if a request failed."""
    wait_until("the fleet is settled", fleet.is_applied, 120)
    with background_load(fleet, {BASE: "acme", "acme/support-bot": "acme", "globex/haiku": "globex"}) as load:
        yield load
    load.check(at_least=5)


def push(fleet: Fleet, files: dict[str, str | bytes | None], message: str) -> str:
    """Push the files and return the output of `git push`."""
    pushed = fleet.push(files, message)
    assert pushed.returncode == 0, pushed.stderr
    wait_until("the revision is applied", fleet.is_applied, 300, every_s=0.2)
    revision = json.loads(fleet.shoal("status", "-o", "json").stdout)["controller"]["revision"]
    assert (revision["message"], revision["history"][0]["result"]) == (message, "applied")
    return pushed.stderr


# The hook waits for five seconds only.
LIVE = re.compile(r"live on the gateway as epoch \d+, \d+ ms after the push|accepted and being applied")


def object_named(fleet: Fleet, kind: str, name: str) -> dict[str, Any] | None:
    found = [each for each in fleet.status()["objects"] if (each["kind"], each["name"]) == (kind, name)]
    return found[0] if found else None


def edited(fleet: Fleet, path: str, old: str, new: str, count: int = 1) -> dict[str, str | bytes | None]:
    text = fleet.read(path)
    assert old in text, f"{path} has no {old!r}"
    return {path: text.replace(old, new, count)}


def test_a_new_tenant_can_call_as_soon_as_the_push_says_so(fleet: Fleet, load: Load) -> None:
    key = mint("test", "initech-ci", os.urandom(32))
    parsed = parse(key)
    assert parsed is not None
    pepper = (fleet.state_dir / "secrets" / "pepper").read_bytes().strip()
    document = f"""\
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {{name: initech}}
spec:
  tier: standard
  keys: [{{id: initech-ci, hmacSha256: "{keyed_hash(pepper, parsed.secret)}", scopes: [inference]}}]
  models: ["{BASE}"]
"""
    with fleet.client() as client:
        client.headers["authorization"] = f"Bearer {key}"
        assert status_of(client, BASE) == 401
        told = push(fleet, {"policies/initech.yaml": document}, "initech joins")
        assert LIVE.search(told), told
        assert status_of(client, BASE) == 200
        wait_until("it is counted", lambda: fleet.status()["counts"]["Tenant"]["Ready"] == 3, 60)
        push(fleet, {"policies/initech.yaml": None}, "initech leaves")
        assert status_of(client, BASE) == 401


def test_a_changed_quota_is_in_force(fleet: Fleet, load: Load) -> None:
    before = fleet.read(QUOTAS)
    with fleet.client("globex") as client:
        assert status_of(client, BASE, max_tokens=2001) == 200
        told = push(fleet, {QUOTAS: _with_output_limit(before, 2000)}, "less for everyone")
        assert LIVE.search(told), told
        assert status_of(client, BASE, max_tokens=2001) == 400
        assert status_of(client, BASE, max_tokens=2000) == 200
        push(fleet, {QUOTAS: before}, "as before")
        assert status_of(client, BASE, max_tokens=2001) == 200


def _with_output_limit(text: str, tokens: int) -> str:
    limited = re.sub(r"maxOutputTokens: \d+", f"maxOutputTokens: {tokens}", text)
    assert limited != text
    return limited


def test_a_new_version_is_flipped_to_once_it_is_loaded(fleet: Fleet, load: Load) -> None:
    """The demo has v2 loaded, so the test removes it first; then v2 is a version that no replica has."""
    text = fleet.read(MODELS)
    only_v1 = text.replace('    - {name: v2, artifact: "s3://shoal-models/acme/support-bot/v2"}\n', "")
    push(fleet, {MODELS: only_v1}, "without v2")
    wait_until("v2 is unloaded", lambda: max(len(r["adapters"]) for r in fleet.replicas()) == 3, 180, every_s=0.5)
    v2 = 'support-bot/v2"}\n  channels: {stable: '
    flipped = text.replace(v2 + "v1}", v2 + "v2}")
    assert flipped != text
    push(fleet, {MODELS: flipped}, "v2 for everyone")
    with fleet.client() as client:
        body = {"model": "acme/support-bot", "messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/chat/completions", json=body).headers["x-shoal-model"] == "acme/support-bot@v2"
    wait_until("the model says so", lambda: said_of(fleet, "Model", "acme/support-bot") == ON_BOTH, 120, every_s=0.5)
    push(fleet, {MODELS: text}, "back to v1")


def test_a_bigger_pool_has_more_replicas_and_a_smaller_one_drains(fleet: Fleet, load: Load) -> None:
    push(fleet, edited(fleet, POOL_FILE, "minReplicas: 2", "minReplicas: 3"), "three")
    try:
        wait_until("the pool says so", lambda: said_of(fleet, "InferenceService", BASE) == ALL_THREE, 120, every_s=0.5)
        wait_until("three are heard of", lambda: ready_replicas(fleet) == 3, 120, every_s=0.5)
        wait_until("the new one serves", lambda: f"{BASE}-2" in load.served, 120)
    finally:
        push(fleet, edited(fleet, POOL_FILE, "minReplicas: 3", "minReplicas: 2"), "two")
    assert not [name for name in fleet.processes() if name.endswith(f"{BASE}-2")]


def said_of(fleet: Fleet, kind: str, name: str) -> tuple[str, str] | None:
    found = object_named(fleet, kind, name)
    return (found["state"], found["message"]) if found is not None else None


def ready_replicas(fleet: Fleet) -> int:
    return len([replica for replica in fleet.replicas() if replica["phase"] == "ready"])


def test_changed_arguments_roll_one_replica_at_a_time(fleet: Fleet, load: Load) -> None:
    before = {name: entry["pid"] for name, entry in fleet.processes().items()}
    push(fleet, edited(fleet, POOL_FILE, "--max-num-seqs=32", "--max-num-seqs=16"), "fewer at once")
    after = {name: entry["pid"] for name, entry in fleet.processes().items()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"engine-{BASE}-{n}" for n in (0, 1)} | {f"agent-{BASE}-{n}" for n in (0, 1)}


def test_a_removed_model_does_not_exist_and_comes_back(fleet: Fleet, load: Load) -> None:
    text = fleet.read(MODELS)
    documents = [document for document in text.split("---\n") if "id: acme/pirate" not in document]
    with fleet.client() as client:
        assert status_of(client, "acme/pirate") == 200
        push(fleet, {MODELS: "---\n".join(documents)}, "no more pirates")
        assert status_of(client, "acme/pirate") == 404
        assert object_named(fleet, "Model", "acme/pirate") is None
        push(fleet, {MODELS: text}, "pirates again")
        wait_until("it serves again", lambda: status_of(client, "acme/pirate") == 200, 120)


def test_an_added_pool_serves_and_a_removed_one_drains_and_goes(fleet: Fleet, load: Load) -> None:
    second = fleet.read(POOL_FILE).replace(f"name: {BASE}", "name: second").replace(f"pool: {BASE}", "pool: second")
    second = second.replace("minReplicas: 2", "minReplicas: 1")
    model = """\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {name: second}
spec:
  id: second
  type: base
  versions: [{name: v1, artifact: "pvc://shoal-models/smollm2-135m"}]
  channels: {stable: v1}
"""
    tenants = edited(fleet, TENANTS, f'models: ["acme/*", "{BASE}"]', f'models: ["acme/*", "{BASE}", "second"]')
    before = fleet.read(TENANTS)
    push(fleet, {"second.yaml": second, "second-model.yaml": model, **tenants}, "a second pool")
    with fleet.client() as client:
        wait_until("it serves", lambda: status_of(client, "second") == 200, 120)
        with background_load(fleet, {"second": "acme"}, words=4) as on_second:
            wait_until("it is busy", lambda: on_second.asked > 3, 120)
        on_second.check()
        push(fleet, {"second.yaml": None, "second-model.yaml": None, TENANTS: before}, "one pool again")
        assert status_of(client, "second") == 404
    assert not [name for name in fleet.processes() if "second" in name]


def test_suspended_nothing_changes_and_resumed_it_does(fleet: Fleet, load: Load) -> None:
    before, before_tenants = fleet.read(QUOTAS), fleet.read(TENANTS)
    epoch = fleet.status()["snapshot"]["epoch"]
    assert fleet.shoal("suspend", "--reason", "moving house").returncode == 0
    try:
        pushed = fleet.push({QUOTAS: before + "\n# more\n", TENANTS: _without_globex(fleet)}, "while suspended")
        assert pushed.returncode == 0
        assert "suspended" in pushed.stderr
        tip = f"main@{fleet.tip()}"
        wait_until("the tip is seen", lambda: fleet.status()["revision"]["tip"] == tip, 60)
        status = fleet.status()
        assert status["revision"]["suspended"]["reason"] == "moving house"
        assert status["revision"]["desired"] != tip
        assert status["snapshot"]["epoch"] == epoch == fleet.gateway_metric("shoal_snapshot_epoch")
        assert "moving house" in fleet.shoal("status").stdout
        undone = fleet.push({QUOTAS: before + "\n# nothing\n", TENANTS: before_tenants}, "undone")
        assert undone.returncode == 0
    finally:
        resumed = fleet.shoal("resume")
    assert resumed.returncode == 0, resumed.stderr
    wait_until("it is applied", fleet.is_applied, 60)
    assert fleet.shoal("reconcile").returncode == 0


def _without_globex(fleet: Fleet) -> str:
    """Return a configuration that would break the load if it were applied."""
    return fleet.read(TENANTS).replace('models: ["globex/*"', 'models: ["nothing/*"')


def test_a_commit_forced_past_the_hook_stalls_and_the_last_good_one_runs_on(fleet: Fleet, load: Load) -> None:
    good = fleet.tip()
    git("fetch", "--quiet", "origin", at=fleet.checkout)
    git("checkout", "--quiet", "--force", "-B", "main", "origin/main", at=fleet.checkout)
    (fleet.checkout / TENANTS).write_text("kind: Tenant\n")
    git("commit", "--quiet", "--all", "--message", "past the hook", at=fleet.checkout)
    git("push", "--quiet", "origin", "HEAD:refs/heads/aside", at=fleet.checkout)
    processes = {name: entry["pid"] for name, entry in fleet.processes().items()}
    bad = git("rev-parse", "HEAD", at=fleet.checkout).stdout.strip()
    git("update-ref", "refs/heads/main", bad, at=fleet.repository)
    try:
        wait_until("it is refused", lambda: fleet.status()["revision"]["problem_count"] > 0, 120)
        revision = fleet.status()["revision"]
        assert (revision["desired"], revision["last_attempted"]) == (f"main@{good}", f"main@{bad}")
        assert f"{TENANTS}:1" in fleet.shoal("status").stdout
        os.kill(controller_pid(fleet), signal.SIGKILL)
        assert fleet.shoal("up", "--engine", "sim").returncode == 0
        assert fleet.status()["revision"]["desired"] == f"main@{good}"
        assert {name: entry["pid"] for name, entry in fleet.processes().items()} == processes
    finally:
        git("update-ref", "refs/heads/main", good, at=fleet.repository)
    wait_until("all is well", lambda: fleet.status()["revision"]["problem_count"] == 0, 120)


def controller_pid(fleet: Fleet) -> int:
    return int(json.loads((fleet.state_dir / "run" / "processes.json").read_text())["controller_pid"])


@pytest.mark.parametrize("when", ["at once", "while one more replica serves"])
def test_a_controller_killed_in_the_middle_of_a_change_is_followed_by_one_that_ends_it(
    fleet: Fleet, load: Load, when: str
) -> None:
    """The next controller replaces the processes of the old revision in order and ends none that is serving."""
    files = edited(fleet, POOL_FILE, "--max-num-seqs=", "--max-num-seqs=1")  # prepend a digit
    new = re.findall(r"--max-num-seqs=(\d+)", str(files[POOL_FILE]))[0]
    pushed = fleet.push(files, "killed over it")
    assert pushed.returncode == 0, pushed.stderr
    if when != "at once":
        before = load.served.get(f"{BASE}-2", 0)
        wait_until("one more serves", lambda: load.served.get(f"{BASE}-2", 0) > before, 120)
    os.kill(controller_pid(fleet), signal.SIGKILL)
    up = fleet.shoal("up", "--engine", "sim", timeout_s=400)
    assert up.returncode == 0, up.stdout + up.stderr
    wait_until("it is applied", fleet.is_applied, 300, every_s=0.2)
    assert all(f"--max-num-seqs={new}" in command_line(fleet, f"engine-{BASE}-{n}") for n in (0, 1))
    assert not [name for name in fleet.processes() if name.endswith(f"{BASE}-2")]


def command_line(fleet: Fleet, name: str) -> list[str]:
    return list(psutil.Process(int(fleet.processes()[name]["pid"])).cmdline())
