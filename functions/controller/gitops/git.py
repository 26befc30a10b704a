"""Git commands with a clean environment, no prompts, and bounded time and output.

The caller's environment and the git configuration of user and system have no effect; only the settings here do.
`objects` lets a command read the objects of a push that is not accepted yet (git's quarantine). Blocking: call it
from a worker thread.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

TIMEOUT_S = 30.0
OUTPUT_MAX_BYTES = 96 * 1024 * 1024  # largest configuration that is read, and its listing
_QUOTED_CHARS = 300
_NO_SUCH_REFERENCE = 1  # exit status of `rev-parse --quiet`; any other failure has another status

# Settings for every command, so that a repository's result depends on its objects and references only.
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}


class GitFailed(Exception):
    """Git failed or cannot run; the message has its output. Try again later, or repair the repository."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status  # git's exit status, if it has ended


class OutputTooLarge(GitFailed):
    """The output exceeds its limit; reading the same objects again gives the same result."""


@dataclass(frozen=True, slots=True)
class Git:
    """One bare repository."""

    repository: Path
    objects: Path | None = None  # a quarantine directory, used in addition to the repository's objects

    def run(
        self,
        *arguments: str,
        send: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        max_bytes: int = OUTPUT_MAX_BYTES,
    ) -> bytes:
        """Run git with `send` as its standard input and return its standard output. Raise GitFailed if it cannot start,
        fails, takes longer than `timeout_s` or prints more than `max_bytes`."""
        command, name = ["git", f"--git-dir={self.repository}", *arguments], _name_of(arguments)
        with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as said:
            sent.write(send)
            sent.seek(0)
            try:
                process = subprocess.Popen(
                    command,
                    stdin=sent,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    env={**self._environment(), **(environment or {})},
                    cwd="/",
                    start_new_session=True,  # its children are ended with it
                )
            except FileNotFoundError as error:
                raise GitFailed("git is not installed: it must be on PATH") from error
            except OSError as error:
                raise GitFailed(f"git {name} could not be started: {error}") from error
            output, too_late = _read_output(process, timeout_s, max_bytes)
            said.seek(0)
            words = _one_line(said.read(4 * _QUOTED_CHARS))
        if too_late:
            raise GitFailed(f"git {name} did not end within {timeout_s:.0f} s")
        if len(output) > max_bytes:
            raise OutputTooLarge(f"git {name} printed more than {max_bytes} bytes")
        if process.returncode != 0:
            why = words or f"exit status {process.returncode}"
            raise GitFailed(f"git {name} failed: {why}", process.returncode)
        return output

    def commit_of(self, reference: str) -> str | None:
        """Return the commit that a reference names; None if there is no such reference."""
        try:
            name = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
        except GitFailed as error:
            if error.status == _NO_SUCH_REFERENCE and self.repository.is_dir():
                return None
            raise
        return name.decode().strip()

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Return True if the newer commit contains the older one or is the same."""
        return not self.run("rev-list", "--max-count=1", older, f"^{newer}", "--")

    def _environment(self) -> dict[str, str]:
        kept = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}
        if self.objects is not None:
            kept["GIT_OBJECT_DIRECTORY"] = str(self.objects)
            kept["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self.repository / "objects")
        return kept


def _name_of(arguments: Sequence[str]) -> str:
    """Return the git command for messages: the argument after the settings (`-c` and a value each)."""
    settings = takewhile(lambda pair: pair[0] == "-c", zip(arguments[::2], arguments[1::2], strict=False))
    return arguments[2 * len(list(settings))]


def _read_output(process: subprocess.Popen[bytes], timeout_s: float, max_bytes: int) -> tuple[bytes, bool]:
    """Return the output, cut one byte beyond `max_bytes`, and True if the timeout killed the process. A process that
    prints more is killed too."""
    too_late = threading.Event()

    def end() -> None:
        too_late.set()
        _kill(process)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    try:
        with process:
            output = process.stdout.read(max_bytes + 1) if process.stdout is not None else b""
            if len(output) > max_bytes:
                _kill(process)
    finally:
        timer.cancel()
    return output, too_late.is_set()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _one_line(output: bytes) -> str:
    return " ".join(output.decode("utf-8", "replace").split())[:_QUOTED_CHARS]


# Fetch a remote's branch into a local bare repository, for controllers without the repository.
#
# `GitSource` then reads the local copy, so an unavailable remote only delays new commits. Credentials come from
# outside: an askpass program for https, the ssh agent or a configured ssh command for ssh.


FETCH_TIMEOUT_S = 60.0
_PROTOCOLS = ("https", "ssh", "file")  # no `ext`, which runs a command from the address, and no unencrypted protocol


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    branch: str = "main"
    askpass: Path | None = None  # a program that prints the user name or token
    ssh_command: str = ""  # such as `ssh -i /keys/deploy -o UserKnownHostsFile=/keys/known_hosts`
    ca_file: Path | None = None  # PEM authority of an https server, used instead of the system's

    def fetch(self, repository: Path, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        """Create the repository if it is missing, and move its local branch to the remote's tip, without history. Raise
        GitFailed if that is impossible now."""
        if self.url.startswith("-") or any(character.isspace() for character in self.url):
            raise GitFailed(f"not the URL of a repository: {self.url!r}")
        git = Git(repository)
        if not (repository / "HEAD").is_file():
            repository.mkdir(parents=True, exist_ok=True)
            git.run("init", "--quiet", "--bare", f"--initial-branch={self.branch}", str(repository))
        allowed = [flag for name in _PROTOCOLS for flag in ("-c", f"protocol.{name}.allow=always")]
        slow = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20"]
        reference = f"+refs/heads/{self.branch}:refs/heads/{self.branch}"
        git.run(
            *("-c", "protocol.allow=never", *allowed, *slow),
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--depth=1", "--", self.url, reference),
            environment=self._environment(),
            timeout_s=timeout_s,
        )

    def _environment(self) -> dict[str, str]:
        askpass = {"GIT_ASKPASS": str(self.askpass)} if self.askpass is not None else {}
        trust = {"GIT_SSL_CAINFO": str(self.ca_file)} if self.ca_file is not None else {}
        command = self.ssh_command or "ssh -o BatchMode=yes -o ConnectTimeout=10"
        return {**askpass, **trust, "GIT_SSH_COMMAND": command, "SSH_ASKPASS_REQUIRE": "never"}
