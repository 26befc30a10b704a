"""A bare repository as `shoal up` makes it, and a working copy to push from."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from functions.controller.gitops.repository import Repository
from tests.controller.configs import base, pool, tenant
from tests.fleets import git

# Without a QuotaPolicy a tenant's tier has no target.
QUOTA = "apiVersion: shoal.dev/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: standard}\nspec: {weight: 1}\n"
GOOD = {
    "pool.yaml": pool(args="--max-model-len=2048").replace("model: {", "model: {storageUri: pvc://shoal-models/base, "),
    "tenants.yaml": tenant("acme", "ci"),
    "models.yaml": base(),
    "quotas.yaml": QUOTA,
}


@dataclass(slots=True)
class Bench:
    """A repository and its working copy. No controller listens on `socket` unless a test makes one."""

    repository: Repository
    checkout: Path
    socket: Path

    def commit(self, files: dict[str, str | bytes | None], message: str = "a change") -> str:
        """Commit files in the working copy and return the commit's id."""
        for name, content in files.items():
            path = self.checkout / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        git("add", "--all", "--force", at=self.checkout)
        git("commit", "--quiet", "--allow-empty", "--message", message, at=self.checkout)
        return git("rev-parse", "HEAD", at=self.checkout).stdout.strip()

    def push(self, *arguments: str) -> CompletedProcess[str]:
        return git("push", *(arguments or ("origin", "HEAD:refs/heads/main")), at=self.checkout, check=False)

    def force(self, files: dict[str, str | bytes | None], message: str = "past the hook") -> str:
        """Put a commit on main that bypasses the hook."""
        commit = self.commit(files, message)
        git("fetch", "--quiet", str(self.checkout), "+HEAD:refs/heads/elsewhere", at=self.repository.path)
        git("update-ref", "refs/heads/main", commit, at=self.repository.path)
        return commit

    def tip(self) -> str:
        return git("rev-parse", "--verify", "main", at=self.repository.path).stdout.strip()


@pytest.fixture(scope="session")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working copy with GOOD committed, for tests to copy: making one takes five git processes."""
    checkout = tmp_path_factory.mktemp("beginning") / "checkout"
    git("init", "--quiet", "--initial-branch=main", str(checkout))
    git("remote", "add", "origin", "../gitops.git", at=checkout)
    Bench(Repository(checkout), checkout, checkout).commit(dict(GOOD), "the beginning")
    return checkout


@pytest.fixture
def bench(tmp_path: Path, beginning: Path) -> Bench:
    """A repository with an empty branch, and a working copy with GOOD committed."""
    repository = Repository(tmp_path / "gitops.git")
    socket = tmp_path / "controller.sock"
    repository.ensure([socket])
    shutil.copytree(beginning, tmp_path / "checkout", symlinks=True)
    return Bench(repository, tmp_path / "checkout", socket)
