"""Delivery of objects of shoal's kinds to an installation by its source: `kubectl apply` or `git push`.

Which one, the controller's source says. Each set of objects has a name, and is withdrawn as a whole: with git it is one
file, `policies/acceptance-<name>.yaml`.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from ruamel.yaml import YAML

from tests.cluster.installation import SYSTEM, Body, Installation
from tests.fleets import git

_NAMESPACED = {"metadata": {"namespace": SYSTEM}}


class Declarations(Protocol):
    def declare(self, name: str, *objects: Body) -> None:
        """Replace the objects of the set; return when they are delivered, which is before they are in force."""

    def withdraw(self, name: str) -> None: ...


@dataclass(slots=True)
class ByKubectl:
    installation: Installation
    sets: dict[str, list[Body]] = field(default_factory=dict)

    def declare(self, name: str, *objects: Body) -> None:
        self.sets[name] = [_in_namespace(each) for each in objects]
        self.installation.apply(*self.sets[name])

    def withdraw(self, name: str) -> None:
        objects = self.sets.pop(name, [])
        if objects:
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
            self.installation.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=document)


@dataclass(slots=True)
class ByGit:
    remote: str
    clone: Path

    def declare(self, name: str, *objects: Body) -> None:
        self._push(name, objects)

    def withdraw(self, name: str) -> None:
        self._push(name, ())

    def _push(self, name: str, objects: tuple[Body, ...]) -> None:
        if not self.clone.is_dir():
            git("clone", "--quiet", self.remote, str(self.clone))
        git("pull", "--quiet", "--ff-only", at=self.clone)
        file = self.clone / "policies" / f"acceptance-{name}.yaml"
        file.unlink(missing_ok=True)
        if objects:
            with file.open("w") as stream:
                YAML(typ="safe").dump_all(objects, stream)
        git("add", "--all", "policies", at=self.clone)
        git("commit", "--quiet", "--allow-empty", "--message", f"Acceptance: {name}", at=self.clone)
        git("push", "--quiet", "origin", "HEAD", at=self.clone)


@contextmanager
def declarations_of(installation: Installation) -> Iterator[Declarations]:
    if installation.source() == "kubernetes":
        by_kubectl = ByKubectl(installation)
        try:
            yield by_kubectl
        finally:
            for name in list(by_kubectl.sets):
                by_kubectl.withdraw(name)
        return
    remote = os.environ.get("SHOAL_CLUSTER_GIT")
    if not remote:
        pytest.skip("the installation follows git, and SHOAL_CLUSTER_GIT does not say where to push")
    with tempfile.TemporaryDirectory() as folder:
        yield ByGit(remote, Path(folder) / "clone")


def quota_policy(name: str, **limits: int) -> Body:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "QuotaPolicy",
        "metadata": {"name": name},
        "spec": {"weight": 8, "limits": limits},
    }


def tenant(name: str, tier: str, models: list[str], keys: list[Body]) -> Body:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {
            "tier": tier,
            "keys": keys,
            "models": models,
            "isolation": {"cacheSalt": "per-tenant", "pools": "shared"},
        },
    }


def minted(installation: Installation, key_id: str, *scopes: str) -> tuple[str, Body]:
    """Return a key and its Tenant entry, from `shoal key mint` with the installation's pepper."""
    pepper = installation.secret("shoal-pepper", "pepper")
    asked = [word for scope in scopes or ("inference",) for word in ("--scope", scope)]
    made = installation.shoal(
        "key", "mint", "--id", key_id, "--pepper-file", "-", *asked, "-o", "json", stdin=pepper
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    return str(told["key"]), dict(told["entry"])


def key_id(name: str) -> str:
    """Return a key id, unique in the installation and across runs, of at most 32 characters."""
    return f"{name}-{int(time.time()):x}"


def _in_namespace(body: Body) -> Body:
    return {**body, "metadata": {**body["metadata"], **_NAMESPACED["metadata"]}}
