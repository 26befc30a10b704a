"""Credentials of each role: their content, no way back to the token, and rotation of the token."""

import itertools
import logging
import os
from pathlib import Path

import pytest

from functions.fleet.role_credentials import (
    PURPOSES,
    ROLES,
    CredentialsUnusable,
    Role,
    RoleCredentials,
    derived,
    document,
    read_for,
)

TOKEN = "the-installations-token"


def of(role: Role, *tokens: str) -> RoleCredentials:
    return RoleCredentials(document(role, tokens or (TOKEN,)).decode())


def test_no_two_purposes_share_a_secret_and_none_is_the_token() -> None:
    secrets = [derived(TOKEN, purpose) for purpose in PURPOSES if purpose != "operate"]
    assert len({*secrets, TOKEN}) == len(PURPOSES)


@pytest.mark.parametrize("role", ROLES)
def test_role_has_only_its_own_secrets(role: Role) -> None:
    given = of(role)
    text = document(role, [TOKEN]).decode()
    assert TOKEN not in text
    for purpose in PURPOSES:
        mine = purpose in ROLES[role]
        assert (derived(TOKEN, purpose) in text) == mine
        assert given.accepted(purpose) == ((derived(TOKEN, purpose),) if mine else ())
        if not mine:
            with pytest.raises(CredentialsUnusable, match=purpose):
                given.secret(purpose)


def test_gateway_and_controller_secrets_differ() -> None:
    assert not set(ROLES["gateway"]) & set(ROLES["controller"])
    assert not {"publish", "operate"} & {*ROLES["gateway"], *ROLES["agent"]}
    assert "follow" not in ROLES["agent"] and "agent" not in ROLES["gateway"]


def test_token_rotation_refuses_no_process() -> None:
    """Processes read a new file at different times, so old and new credentials must accept each other."""
    old, new = "old-token", "new-token"
    contents = [(old,), (old, new), (new, old), (new,)]
    for before, after in itertools.pairwise(contents):
        for here, there in ((before, after), (after, before), (after, after)):
            shown = of("gateway", *here).bearer("follow")
            accepted = RoleCredentials("\n".join(there)).accepted("follow")
            assert shown in accepted, (here, there)
    assert of("gateway", old).bearer("follow") not in RoleCredentials(new).accepted("follow")


def test_changed_file_is_reread_and_a_broken_one_ignored(tmp_path: Path) -> None:
    file, now = tmp_path / "credentials.json", [0.0]
    file.write_bytes(document("agent", [TOKEN]))
    given = RoleCredentials(file.read_text(), file=file, clock=lambda: now[0])

    def after_a_while(content: bytes) -> str:
        file.write_bytes(content)
        os.utime(file, ns=(int(now[0]) + 1, int(now[0]) + 1))
        now[0] += 10
        return given.secret("agent")

    assert after_a_while(document("agent", ["another", TOKEN])) == derived("another", "agent")
    assert given.accepted("agent") == (derived("another", "agent"), derived(TOKEN, "agent"))
    for broken in (b"{", b"", b'{"role": "agent", "secrets": {}}', document("agent", ["a"])[:-5]):
        assert after_a_while(broken) == derived("another", "agent")
    file.unlink()
    now[0] += 10
    assert given.secret("agent") == derived("another", "agent")


def test_former_single_token_still_works_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with caplog.at_level(logging.WARNING):
        given = read_for("gateway", file)
    assert "grants every right" in caplog.text and "shoal secrets" in caplog.text and TOKEN not in caplog.text
    assert given.bearer("follow") == TOKEN, "a registry of version 0.1 knows no other"
    assert given.secret("load") == of("agent").accepted("load")[0], "it understands whoever has gone on already"


def test_anothers_credentials_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_bytes(document("controller", [TOKEN]))
    with pytest.raises(CredentialsUnusable, match="of the controller, this is the agent"):
        read_for("agent", file)


@pytest.mark.parametrize(
    "text", ["", "\n", "a\nb\nc", '{"role": "nobody", "secrets": {}}', '{"role": "gateway"}', "{" * 2000]
)
def test_unusable_credentials_are_reported(text: str) -> None:
    with pytest.raises(CredentialsUnusable):
        RoleCredentials(text)
