"""`shoal key`: limits as in policies, keys minted without a registry, and a registry's keys listed and revoked."""

import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from functions.api import keys
from functions.api.kinds.tenant import Tenant
from functions.cli.key import limit_of
from functions.cli.main import app
from functions.cli.refused import CommandRefused
from tests.controller.configs import load, tenant, tier
from tests.registry.console_rig import console_rig
from tests.registry.test_process import TOKEN

PEPPER = "0123456789abcdef" * 2


def test_a_limit_is_written_as_in_a_policy() -> None:
    assert limit_of("requestsPerMinute=60") == ("requests_per_minute", 60)
    assert limit_of("tokenBurstSeconds=1") == ("token_burst_seconds", 1)


@pytest.mark.parametrize("text", ["", "requestsPerMinute", "requests_per_minute=60", "weight=2"])
def test_what_is_no_limit_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(
        CommandRefused, match=r"not a limit; allowed: requestsPerMinute|must be a whole number, at least 1"
    ):
        limit_of(text)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "1" * 13])
def test_a_limit_is_a_whole_number_from_1(value: str) -> None:
    with pytest.raises(CommandRefused, match="maxOutputTokens must be a whole number, at least 1"):
        limit_of(f"maxOutputTokens={value}")


def shoal(*words: str, stdin: str = "", **variables: str) -> Result:
    return CliRunner().invoke(app, ["key", *words], input=stdin, env={**os.environ, **variables})


def test_a_minted_key_is_what_its_entry_lets_in(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text(f"{PEPPER}\n")
    done = shoal("mint", "--id", "first", "--pepper-file", str(tmp_path / "pepper"), "--scope", "models:write")
    parsed = keys.parse(done.stdout.strip())
    assert parsed is not None
    (entry,) = yaml.safe_load(done.stderr[done.stderr.index("keys:") :])["keys"]
    assert entry == {
        "id": "first",
        "hmacSha256": keys.keyed_hash(PEPPER.encode(), parsed.secret),
        "scopes": ["models:write"],
        "maxClass": "interactive",
    }
    assert parsed.key_id == "first"
    assert parsed.secret not in done.stderr


def test_a_tenant_takes_the_entry_as_it_is_printed() -> None:
    made = json.loads(shoal("mint", "--id", "one", "--pepper-file", "-", "-o", "json", stdin=PEPPER).stdout)
    declared = yaml.safe_load(tenant("acme"))
    declared["spec"]["keys"] = [made["entry"]]
    (taken,) = load(f"{tier()}---\n{yaml.safe_dump(declared)}").objects_of(Tenant)
    assert taken.value.spec.keys[0].hmac_sha256 == made["entry"]["hmacSha256"]


@pytest.mark.parametrize(
    ("words", "pepper", "says"),
    [
        (("--id", "a b"), PEPPER, "cannot carry"),
        (("--id", "a" * 33), PEPPER, "1 to 32 letters, digits and hyphens"),
        (("--id", "a", "--expires", "soon"), PEPPER, "a date such as 2027-06-30"),
        (("--id", "a"), "short", "the pepper has 5 bytes"),
        (("--id", "a"), "x" * 10_000, "16 to 4096"),
    ],
)
def test_what_makes_no_key_is_said(words: tuple[str, ...], pepper: str, says: str) -> None:
    done = shoal("mint", *words, "--pepper-file", "-", stdin=pepper)
    assert isinstance(done.exception, CommandRefused)
    assert says in str(done.exception)
    assert done.stdout == ""


@pytest.mark.servers
@pytest.mark.timeout(200)
def test_keys_of_the_registry_are_listed_with_what_they_may_and_whether_they_are_revoked(tmp_path: Path) -> None:
    with console_rig(tmp_path) as rig:
        at = {"SHOAL_CLI_REGISTRY_URL": rig.url, "SHOAL_CLI_KEY": TOKEN, "SHOAL_STATE_DIR": str(tmp_path / "none")}
        assert "has created no key for acme" in shoal("ls", "acme", **at).stdout
        for words in (("a", "--limit", "requestsPerMinute=60"), ("b", "--expires", "2027-06-30")):
            assert shoal("create", "acme", "--id", *words, **at).exit_code == 0
        assert shoal("revoke", "acme", "b", **at).exit_code == 0
        _, a, b = (line.split() for line in shoal("ls", "acme", **at).stdout.splitlines())
        assert a[:4] == ["a", "inference", "interactive", "never"]
        assert "requestsPerMinute=60" in a[4:]
        assert b[0] == "b" and b[-1] == "revoked"
        listed = json.loads(shoal("ls", "acme", "-o", "json", **at).stdout)["keys"]
        assert [(each["id"], each["revoked"]) for each in listed] == [("a", False), ("b", True)]
