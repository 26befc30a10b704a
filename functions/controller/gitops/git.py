"""Running git: a clean environment, no prompts, bounded time and output.

Law: nothing of the caller's environment or of the user's or system's git configuration has a say; only what is given
here. `objects` lets a command read the objects of a push that was not accepted yet (git's quarantine).
Blocking: call it from a worker thread.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 30.0
OUTPUT_MAX_BYTES = 96 * 1024 * 1024  # the largest configuration that is read at all, and its listing
_QUOTED_CHARS = 300

# For every command: repositories of this machine only decide by their own objects and references.
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
    """git said no, or does not run; the message has its words. Try again later, or repair the repository."""


@dataclass(frozen=True, slots=True)
class Git:
    """One bare repository."""

    repository: Path
    objects: Path | None = None  # a quarantine directory; the repository's own objects are seen besides

    def run(
        self,
        *arguments: str,
        send: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Standard output, or GitFailed."""
        command = ["git", f"--git-dir={self.repository}", *arguments]
        try:
            done = subprocess.run(
                command,
                input=send,
                capture_output=True,
                env={**self._environment(), **(environment or {})},
                cwd="/",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise GitFailed("git is not installed: it must be on PATH") from error
        except subprocess.TimeoutExpired as error:
            raise GitFailed(f"git {arguments[0]} did not end within {timeout_s:.0f} s") from error
        except OSError as error:
            raise GitFailed(f"git {arguments[0]} could not be started: {error}") from error
        if done.returncode != 0:
            raise GitFailed(f"git {arguments[0]} failed: {_words(done.stderr) or f'exit status {done.returncode}'}")
        if len(done.stdout) > OUTPUT_MAX_BYTES:
            raise GitFailed(f"git {arguments[0]} printed more than {OUTPUT_MAX_BYTES} bytes")
        return done.stdout

    def commit_of(self, reference: str) -> str | None:
        """The commit that a reference names; None where there is no such."""
        try:
            name = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
        except GitFailed:
            if not self.repository.is_dir():
                raise
            return None
        return name.decode().strip()

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether the newer commit contains the older one."""
        return not self.run("rev-list", "--max-count=1", older, f"^{newer}", "--")

    def _environment(self) -> dict[str, str]:
        kept = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}
        if self.objects is not None:
            kept["GIT_OBJECT_DIRECTORY"] = str(self.objects)
            kept["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self.repository / "objects")
        return kept


def _words(output: bytes) -> str:
    return " ".join(output.decode("utf-8", "replace").split())[:_QUOTED_CHARS]
