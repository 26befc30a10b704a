"""Credentials of the installation's roles: which secret each process presents, and which ones it accepts.

    follow      read snapshots and zones                      presented by gateways        to the registry
    account     report what tenants used                      presented by gateways        to the registry
    publish     write snapshots, changes, rollouts, zones     presented by the controller  to the registry
    agent       read snapshots and zones, find chunks         presented by agents          to the registry
    heartbeat   sign heartbeats                               by agents                    to gateways and the registry
    load        load an adapter                               by gateways                  to agents
    standing    change between serving and standby            by the controller            to agents
    chunks      read chunks of artifacts                      by agents and nodes          to each other
    operate     everything at the registry                    by operators                 to the registry

All are derived from the internal token, which only the registry and operators have. `shoal secrets` and `shoal up`
give each other role a document with its own secrets, from which neither the token nor another role's secret can be
derived.

A process that has the token itself, as up to version 0.1, works with it for one more version and logs a warning.

During a rotation the token's file has two lines: the first is presented, both are accepted. Files are read again when
they change, so that a new credential needs no new replica.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec

Purpose = Literal["operate", "publish", "follow", "account", "agent", "heartbeat", "load", "standing", "chunks"]
Role = Literal["gateway", "controller", "agent"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
ROLES: Mapping[Role, tuple[Purpose, ...]] = {
    "gateway": ("follow", "account", "heartbeat", "load"),
    "controller": ("publish", "standing"),
    "agent": ("agent", "heartbeat", "load", "standing", "chunks"),
}
MAX_TOKENS = 2  # two during a rotation
_READ_AGAIN_S = 5.0
_CHUNKS = b"shoal: chunks between nodes"  # as nodes of version 0.1 derive it
_log = logging.getLogger(__name__)

Bearer = str | Callable[[], str]  # a credential, or a function that returns the current one


class CredentialsUnusable(Exception):
    """The file holds neither a role's document nor a token; the message says what is wrong."""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    secrets: dict[str, tuple[str, ...]]


class RoleCredentials:
    """Credentials read once, or from a file that is checked for changes."""

    def __init__(self, text: str, *, file: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Parse credentials; CredentialsUnusable if the text is invalid. `file`: the file that has the text, for later
        changes."""
        self._secrets, self.role = _parsed(text)
        self._file = file
        self._clock = clock
        self._stamp = _stamp(file)
        self._looked_s = clock()

    @classmethod
    def read(cls, file: Path) -> "RoleCredentials":
        """Return the credentials in a file, which is read again when it changes; raises OSError,
        CredentialsUnusable."""
        return cls(file.read_text(encoding="utf-8"), file=file)

    @property
    def is_token(self) -> bool:
        """True if this is the internal token, from which all other secrets are derived."""
        return self.role is None

    def accepted(self, purpose: Purpose) -> tuple[str, ...]:
        """Return the secret that is presented, then the other one of a rotation; empty if this role has none for
        `purpose`."""
        self._reload_if_changed()
        return self._secrets.get(purpose, ())

    def secret(self, purpose: Purpose) -> str:
        """Return the secret for signing and deriving; CredentialsUnusable if this role has none."""
        found = self.accepted(purpose)
        if not found:
            raise CredentialsUnusable(f"the credentials of the {self.role} have nothing for {purpose!r}")
        return found[0]

    def bearer(self, purpose: Purpose) -> str:
        """Return the bearer for the registry. It is the internal token if that is what is configured, because
        registries of 0.1 accept no other."""
        return self.secret("operate" if self.is_token else purpose)

    def _reload_if_changed(self) -> None:
        """Read the file again if it has changed, checking that at intervals. If the new content is unusable, log it and
        continue with the old one."""
        now_s = self._clock()
        if self._file is None or now_s - self._looked_s < _READ_AGAIN_S:
            return
        self._looked_s = now_s
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        try:
            self._secrets, self.role = _parsed(self._file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, CredentialsUnusable) as error:
            _log.warning(
                "the credentials in %s cannot be used, and the previous ones stay in use: %s", self._file, error
            )
            return
        self._stamp = stamp
        _log.info("new credentials from %s", self._file)


def read_for(role: Role, file: Path) -> RoleCredentials:
    """Read the role's own credentials, or the internal token with a warning. Raises OSError, and CredentialsUnusable
    also for another role's credentials."""
    found = RoleCredentials.read(file)
    if found.role is None:
        _log.warning(
            "%s holds the internal token, which grants every right. The next version accepts only the %s's own "
            "credentials; create them with `shoal secrets` or `shoal up`",
            file,
            role,
        )
    elif found.role != role:
        raise CredentialsUnusable(f"{file} holds the credentials of the {found.role}, this is the {role}")
    return found


def document(role: Role, tokens: Iterable[str]) -> bytes:
    """Return the encoded document with a role's secrets, derived from the internal token or the two of a rotation."""
    secrets = _derived_all(tuple(tokens))
    return msgspec.json.encode(_Document(role, {purpose: secrets[purpose] for purpose in ROLES[role]}))


def tokens_in(text: str) -> tuple[str, ...]:
    """Return the lines of the internal token's file; CredentialsUnusable if it has none or too many."""
    tokens = tuple(line for line in map(str.strip, text.splitlines()) if line)
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise CredentialsUnusable(f"expected one or two lines with a token each; found {len(tokens)}")
    return tokens


def derived(token: str, purpose: Purpose) -> str:
    """Return the secret of one purpose, an HMAC of the internal token; for `operate` it is the token itself."""
    if purpose == "operate":
        return token
    words = _CHUNKS if purpose == "chunks" else f"shoal: credential to {purpose}".encode()
    return hmac.new(token.encode(), words, hashlib.sha256).hexdigest()


def current_secret(bearer: Bearer) -> str:
    return bearer if isinstance(bearer, str) else bearer()


def _derived_all(tokens: tuple[str, ...]) -> dict[Purpose, tuple[str, ...]]:
    return {purpose: tuple(derived(token, purpose) for token in tokens) for purpose in PURPOSES}


def _parsed(text: str) -> tuple[Mapping[Purpose, tuple[str, ...]], Role | None]:
    if not text.lstrip().startswith("{"):
        return _derived_all(tokens_in(text)), None
    try:
        found = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CredentialsUnusable(f"not a credentials document: {error}") from error
    secrets = {purpose: found.secrets.get(purpose, ()) for purpose in ROLES[found.role]}
    lacking = sorted(purpose for purpose, each in secrets.items() if not 1 <= len(each) <= MAX_TOKENS or "" in each)
    if lacking:
        raise CredentialsUnusable(f"the {found.role}'s credentials lack {', '.join(lacking)}")
    return secrets, found.role


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Return a value that changes with the file's content, or None without a readable file; a Secret's volume replaces
    the file behind a link."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
