"""Credentials of the installation's roles: what each process shows, and what it accepts.

    follow      read snapshots and zones                      shown by gateways        to the registry
    account     say what tenants used                         shown by gateways        to the registry
    publish     write snapshots, changes, rollouts, zones     shown by the controller  to the registry
    agent       read snapshots and zones, find chunks         shown by agents          to the registry
    heartbeat   sign what a replica says                      by agents                to gateways and the registry
    load        have an agent load an adapter                 by gateways              to agents
    standing    have an agent serve, or stand by              by the controller        to agents
    chunks      read chunks of artifacts                      by agents and nodes      to each other
    operate     everything at the registry                    by operators             to the registry

All follow from the internal token, which only the registry and operators have. The other roles get a document with what
is theirs, made by `shoal secrets` and `shoal up`; nothing in it leads back to the token, or to another role's.

Where a process is given the token itself, as up to version 0.1, it goes on with that for one version and says so.

The token's file may have two lines while it is rotated: the first is shown, both are accepted. Files are read again
when they change, since a replica must not be replaced for a new credential.
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
MAX_TOKENS = 2  # while one replaces the other
_READ_AGAIN_S = 5.0
_CHUNKS = b"shoal: chunks between nodes"  # as nodes of version 0.1 derive it
_log = logging.getLogger(__name__)

Bearer = str | Callable[[], str]  # a credential, or where it is to be had when it is needed


class CredentialsUnusable(Exception):
    """The file holds neither a role's document nor a token; the message says what is wrong."""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    secrets: dict[str, tuple[str, ...]]


class RoleCredentials:
    """Read once, or from a file that is looked at now and then."""

    def __init__(self, text: str, *, file: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises CredentialsUnusable. `file`: where the text is from, and a later one."""
        self._secrets, self.role = _parsed(text)
        self._file = file
        self._clock = clock
        self._stamp = _stamp(file)
        self._looked_s = clock()

    @classmethod
    def read(cls, file: Path) -> "RoleCredentials":
        """Raises OSError, CredentialsUnusable."""
        return cls(file.read_text(encoding="utf-8"), file=file)

    @property
    def is_token(self) -> bool:
        """Whether this is the internal token, from which all the others follow."""
        return self.role is None

    def accepted(self, purpose: Purpose) -> tuple[str, ...]:
        """The one that is shown, and another while they are changed; none where it is not this role's."""
        self._look()
        return self._secrets.get(purpose, ())

    def secret(self, purpose: Purpose) -> str:
        """For signing and deriving; CredentialsUnusable where it is not this role's."""
        found = self.accepted(purpose)
        if not found:
            raise CredentialsUnusable(f"the credentials of the {self.role} have nothing for {purpose!r}")
        return found[0]

    def bearer(self, purpose: Purpose) -> str:
        """For the registry: the internal token where that is all there is, since registries of 0.1 know no other."""
        return self.secret("operate" if self.is_token else purpose)

    def _look(self) -> None:
        """Read the file again where it has changed; what cannot be used is told, and what there was goes on."""
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
            _log.warning("the credentials in %s are not taken, the former ones go on: %s", self._file, error)
            return
        self._stamp = stamp
        _log.info("new credentials from %s", self._file)


def read_for(role: Role, file: Path) -> RoleCredentials:
    """The role's own, or the token of before with a word in the log. Raises OSError, CredentialsUnusable."""
    found = RoleCredentials.read(file)
    if found.role is None:
        _log.warning(
            "%s holds the internal token, which opens everything; the next version takes the %s's own credentials "
            "alone: `shoal secrets`, or `shoal up`, makes them",
            file,
            role,
        )
    elif found.role != role:
        raise CredentialsUnusable(f"{file} holds the credentials of the {found.role}, this is the {role}")
    return found


def document(role: Role, tokens: Iterable[str]) -> bytes:
    """What the role gets, from the internal token or the two of a rotation."""
    secrets = _derived_all(tuple(tokens))
    return msgspec.json.encode(_Document(role, {purpose: secrets[purpose] for purpose in ROLES[role]}))


def tokens_in(text: str) -> tuple[str, ...]:
    """The lines of the internal token's file; CredentialsUnusable where that is no such file."""
    tokens = tuple(line for line in map(str.strip, text.splitlines()) if line)
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise CredentialsUnusable(f"expected a token, or two lines with one each; there are {len(tokens)}")
    return tokens


def derived(token: str, purpose: Purpose) -> str:
    """One purpose's secret, from the internal token."""
    if purpose == "operate":
        return token
    words = _CHUNKS if purpose == "chunks" else f"shoal: credential to {purpose}".encode()
    return hmac.new(token.encode(), words, hashlib.sha256).hexdigest()


def now(bearer: Bearer) -> str:
    return bearer if isinstance(bearer, str) else bearer()


def _derived_all(tokens: tuple[str, ...]) -> dict[Purpose, tuple[str, ...]]:
    return {purpose: tuple(derived(token, purpose) for token in tokens) for purpose in PURPOSES}


def _parsed(text: str) -> tuple[Mapping[Purpose, tuple[str, ...]], Role | None]:
    if not text.lstrip().startswith("{"):
        return _derived_all(tokens_in(text)), None
    try:
        found = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CredentialsUnusable(f"no document of credentials: {error}") from error
    secrets = {purpose: found.secrets.get(purpose, ()) for purpose in ROLES[found.role]}
    lacking = sorted(purpose for purpose, each in secrets.items() if not 1 <= len(each) <= MAX_TOKENS or "" in each)
    if lacking:
        raise CredentialsUnusable(f"the {found.role}'s credentials lack {', '.join(lacking)}")
    return secrets, found.role


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Changes with the file's content; a Secret's volume replaces the file behind a link."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
