"""Digest of the base weights that the engine has loaded, found once for each engine process.

The engine reports only the folder that it was started from, so the files are read, in a thread: 140 GB without a
manifest take minutes. Nothing is published until then, or if the folder cannot be read. Nothing is published either
if the engine names another folder that is visible here (in a pod it has its own path), or if a file is newer than the
engine's start time (from its metrics page, if present): the files may differ from those that the engine read. An
agent restarted next to its engine therefore publishes nothing after the weights were replaced, and an agent that was
already running keeps its result.

Neighbours: `functions.artifacts.loaded_weights` finds the digest; `monitor` reports a new engine.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactError
from functions.artifacts.loaded_weights import facts_of, weights_digest
from functions.engines.client import EngineModel
from functions.engines.errors import EngineError
from functions.replica.daemon_threads import in_daemon_thread
from functions.replica.status import AgentStatus

_log = logging.getLogger(__name__)


class LoadedWeights:
    """Digest of the weights that the engine has loaded. Owned by the agent's loop."""

    def __init__(
        self,
        status: AgentStatus,
        folder: Path | None,
        notes: Path,
        models: Callable[[], Awaitable[Iterable[EngineModel]]],
    ) -> None:
        """`folder` is the one that the engine was started from (None: unknown), `notes` that of earlier hashings;
        `models` returns the models that the engine lists."""
        self._status, self._folder, self._notes, self._models = status, folder, notes, models
        self._engines = 0  # number of processes so far: a result for an earlier one is discarded

    def forget(self) -> None:
        """Forget the weights of an engine that is gone, and discard a detection under way."""
        self._engines += 1
        self._status.weights = None

    async def detect_weights(self, started_unix_s: float | None) -> None:
        """Find the digest of a new engine's weights and report it in the status; if it cannot be known, nothing is
        reported. `started_unix_s` is the start of the engine's process, None if unknown."""
        self._engines += 1
        engine, folder = self._engines, self._folder
        if folder is None or await self._is_of_another(folder):
            return
        try:
            digest = await in_daemon_thread("weights", lambda: self._read(folder, started_unix_s))
        except (ArtifactError, OSError) as error:
            _log.warning("the engine's weights digest is not reported: %s", error)
            return
        if engine == self._engines and digest is not None:
            self._status.weights = digest
            _log.info("the engine has loaded the weights %s", digest)

    async def _is_of_another(self, folder: Path) -> bool:
        try:
            roots = [Path(model.root) for model in await self._models() if not model.is_adapter]
            seen = (root for root in roots if root.is_absolute() and root.is_dir())
            other = next((root for root in seen if not root.samefile(folder)), None)
        except (EngineError, OSError):
            return False  # the engine's folder is unknown, or nothing can be read
        if other is not None:
            _log.error("the engine runs from %s and not from %s, so its weights digest is not reported", other, folder)
        return other is not None

    def _read(self, folder: Path, started_unix_s: float | None) -> Digest | None:
        """Return the digest of the folder, or None if it was written to after the engine started or while it was
        read."""
        facts = facts_of(folder)
        newest_unix_s = max((time_ns for _, time_ns in facts.values()), default=0) / 1e9
        if started_unix_s is not None and newest_unix_s > started_unix_s:
            _log.warning(
                "%s was written to after the engine started from it, so the loaded weights are unknown", folder
            )
            return None
        digest = weights_digest(folder, self._notes, hashed=_log_hashing)
        if facts_of(folder) != facts:
            _log.warning("%s was written to while it was read, so the loaded weights are unknown", folder)
            return None
        return digest


def _log_hashing(folder: Path) -> None:
    _log.info("%s has no matching manifest, so all its files are read once (`shoal base manifest` avoids that)", folder)
