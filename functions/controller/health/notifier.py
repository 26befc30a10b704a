"""Notifier of verdicts: sends them to the registry when they change, and again every TELL_AGAIN_S.

A failed notification is sent again in the next round; the registry drops verdicts that are not repeated.
"""

import logging
import time
from collections.abc import Callable

from functions.controller.autoscaling.clients import PoolsClient
from functions.controller.snapshot.registry_client import EpochConflict, RegistryRefused, RegistryUnavailable
from functions.fleet.verdicts import TELL_AGAIN_S, Verdicts

_log = logging.getLogger(__name__)


class VerdictNotifier:
    """Owned by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: Verdicts | None = None
        self._told_s = 0.0
        self._trouble = ""

    async def notify(self, registry: PoolsClient, verdicts: Verdicts) -> None:
        now_s = self._clock()
        if verdicts == self._told and now_s - self._told_s < TELL_AGAIN_S:
            return
        try:
            await registry.put_verdicts(verdicts)
        except (RegistryUnavailable, RegistryRefused, EpochConflict) as error:
            if str(error) != self._trouble:
                _log.warning("verdicts about replicas and nodes cannot be sent: %s", error)
            self._trouble = str(error)
            return
        self._told, self._told_s, self._trouble = verdicts, now_s, ""
