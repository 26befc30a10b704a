"""Fetching a remote's branch into a local bare repository, for controllers that do not hold the repository themselves.

`GitSource` then reads the local one: a remote that is away costs freshness, never what is already known.
Credentials come from outside: an askpass program for https, the ssh agent or a configured ssh command for ssh.
"""

from dataclasses import dataclass
from pathlib import Path

from functions.controller.gitops.git import Git, GitFailed

FETCH_TIMEOUT_S = 60.0
_PROTOCOLS = ("https", "ssh", "file")  # not `ext`, which runs what the address says, nor those without encryption


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    branch: str = "main"
    askpass: Path | None = None  # a program that prints the user's name or token
    ssh_command: str = ""  # such as `ssh -i /keys/deploy -o UserKnownHostsFile=/keys/known_hosts`

    def fetch(self, repository: Path, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        """Make the local branch what the remote's is; GitFailed where that cannot be done now."""
        if self.url.startswith("-") or any(character.isspace() for character in self.url):
            raise GitFailed(f"not an address of a repository: {self.url!r}")
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
        command = self.ssh_command or "ssh -o BatchMode=yes -o ConnectTimeout=10"
        return {**askpass, "GIT_SSH_COMMAND": command, "SSH_ASKPASS_REQUIRE": "never"}
