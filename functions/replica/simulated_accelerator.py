"""A simulated device behind NVML's calls, for a simulated engine: idle, cool, with the errors listed in a file.

The file is JSON, `{"xids": [79]}`: the driver's errors so far, in order. Each added error is reported once, as the
driver does. A missing file has no errors, and a new file is read from its beginning. Error counters, drains and
alerts can thus be tested without an accelerator.

Neighbours: `accelerators` uses only these calls; `shoal drill accelerator-error` writes the file.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

MEMORY_BYTES = 80 * 2**30
_MAX_BYTES = 64 * 1024


class NothingTold(Exception):
    """No event is waiting; it stands for NVML's timeout."""


@dataclass(slots=True)
class SimulatedDevice:
    """The calls that `Accelerators` makes, by NVML's names."""

    file: Path
    _told: int = 0

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return self

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:  # noqa: N802
        """Do nothing: errors are reported from the beginning."""

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        xids = self._xids()
        if len(xids) <= self._told:
            self._told = len(xids)
            raise NothingTold
        self._told += 1
        return SimpleNamespace(device=0, eventData=xids[self._told - 1])

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=0)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=0, total=MEMORY_BYTES)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 60_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 35

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        return 0

    def _xids(self) -> list[int]:
        """Return the XIDs in the file; none if it is missing, malformed or being written."""
        try:
            found = json.loads(self.file.read_bytes()[:_MAX_BYTES])["xids"]
            return [int(number) for number in found]
        except (OSError, ValueError, KeyError, TypeError):
            return []
