"""Output of `kubectl kustomize` for a folder, as plain values that tests read and mutate.

rendering = render(OVERLAYS / "staging")
rendering.one("Deployment", "controller")
"""

import copy
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

Document = dict[str, Any]

PROJECT = Path(__file__).parents[2]
MANIFESTS = PROJECT / "manifests"
OVERLAYS = MANIFESTS / "overlays"
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Rendering:
    documents: list[Document]

    def of(self, *kinds: str) -> Iterator[Document]:
        """Return the documents of these kinds, in order; `Service` matches both Kubernetes's and Knative's."""
        return (document for document in self.documents if document["kind"] in kinds)

    def one(self, kind: str, name: str, namespace: str | None = None, *, group: str | None = None) -> Document:
        """Return the one document of that name; fail the test if there is none."""
        (found,) = [
            document
            for document in self.of(kind)
            if document["metadata"]["name"] == name
            and namespace in (None, document["metadata"].get("namespace"))
            and group in (None, document["apiVersion"].rpartition("/")[0])
        ]
        return found

    def copied(self) -> "Rendering":
        return Rendering(copy.deepcopy(self.documents))


def kubectl() -> str:
    """Return the client's path; skip the test if there is none."""
    beside_server = Path(os.environ.get("KUBEBUILDER_ASSETS", "/nonexistent")) / "kubectl"
    found = str(beside_server) if beside_server.is_file() else shutil.which("kubectl")
    if found is None:
        pytest.skip(
            "no kubectl on PATH nor in KUBEBUILDER_ASSETS: install one (any 1.21 or later renders kustomizations)"
        )
    return found


def render(folder: Path) -> Rendering:
    """Return the output of `kubectl kustomize folder`, offline."""
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr, f"kustomize warns: {done.stderr.decode()}"
    return Rendering(parse(done.stdout))


def over(overlay: str, *components: str, patches: str = "[]") -> Rendering:
    """Render an overlay on top of one of shoal's, with components, from a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        below = os.path.relpath(OVERLAYS / overlay, folder.resolve())
        named = [os.path.relpath(MANIFESTS / "components" / each, folder.resolve()) for each in components]
        (folder / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
            f"resources: [{below}]\ncomponents: {json.dumps(named)}\npatches: {patches}\n"
        )
        return render(folder)


def parse(text: bytes | str) -> list[Document]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document is not None]


def name_of(document: Document) -> str:
    metadata = document["metadata"]
    return f"{document['kind']} {metadata.get('namespace', '-')}/{metadata['name']}"
