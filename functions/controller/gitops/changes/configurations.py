"""What a configuration would change, before anybody publishes it.

Compiling needs to know what artifacts hold. What is not known is assumed: something that is the same for the same
address. So a version that is only declared yet is told as one that comes, and not left out.
"""

import hashlib
from collections.abc import Mapping

from functions.api.ids import Digest
from functions.api.loader import Loaded
from functions.api.snapshot import Snapshot
from functions.controller.gitops.changes.describe import Change, describe
from functions.controller.snapshot.compile import compile_snapshot, unpinned_artifacts


def changes_of(
    present: Loaded | Snapshot | None, candidate: Loaded, digests: Mapping[str, Digest] | None = None
) -> tuple[Change, ...]:
    """From what is (a configuration, or what the registry holds) to what would be."""
    known = dict(digests or {})
    if isinstance(present, Snapshot):
        known |= {version.artifact_uri: version.digest for model in present.models for version in model.versions}
    old = compiled(present, known) if isinstance(present, Loaded) else present
    return describe(old, compiled(candidate, known))


def compiled(loaded: Loaded, known: Mapping[str, Digest]) -> Snapshot:
    """As it would be published, with assumed digests for artifacts that are not known."""
    assumed = {uri: _assumed(uri) for uri in unpinned_artifacts(loaded.objects) if uri not in known}
    digests = {**known, **assumed}
    return compile_snapshot(loaded.objects, digests, epoch=0, revision="", compiled_unix_s=0.0).snapshot


def _assumed(artifact_uri: str) -> Digest:
    return Digest("sha256:" + hashlib.sha256(artifact_uri.encode()).hexdigest())
