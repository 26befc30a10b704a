"""Accelerators of a replica as NVIDIA's management library sees them: use, memory, power, temperature, XID and ECC.

Where there is no library, no driver or no device, there are none, and nothing is said of them; the module is imported
when it is asked for, not before. A device that is failing can hold a call for seconds, so a thread of its own reads
every `READ_EVERY_S` and a scrape shows what was read last. What a device does not measure (ECC on a small card) is left
out. The driver tells each XID once; they are counted from when the agent began to listen, and the last one's number
is kept beside the count, which begins at 0 so that the first one shows as an increase.

In a pod the engine's container alone is told which devices of the node are its own: it leaves word in a file
(`own_devices`), and until that is there, none are read. Devices are numbered from 0, in the order of that file or as
the library does. `shoal_replica_accelerators` is what a rate of tokens is divided by.
"""

import importlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.decisions.health.accelerator_errors import DeviceErrors

READ_EVERY_S = 2.0
_XID_EVENT = 8  # nvmlEventTypeXidCriticalError
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_ECC = {"ecc_corrected": 0, "ecc_uncorrected": 1}
_SINCE_DRIVER_LOADED = 0  # NVML_VOLATILE_ECC
_UNCORRECTED = "ecc_uncorrected"
_MAX_DISTINCT_XIDS = 64
_MAX_DEVICES = 64  # of a node
_FILE_MAX_CHARS = 4096

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """One device; None where it does not measure that."""

    used_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    ecc_errors: dict[str, int] = field(default_factory=dict)  # since the driver was loaded


def management_library() -> Any | None:
    """NVML, initialised; None where there is none or it finds no driver."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except ImportError:
        return None
    except Exception as error:  # NVMLError, of many kinds: no driver, no permission, another version
        _log.info("accelerators are not measured: %s", error)
        return None
    return library


def own_devices(file: Path) -> tuple[str, ...] | None:
    """UUIDs or numbers, as NVIDIA_VISIBLE_DEVICES has them; `all`, or nothing at all. None: the file is not there."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            words = opened.read(_FILE_MAX_CHARS).strip()
    except OSError:
        return None
    if words in ("", "none", "void"):
        return ()
    return tuple(word.strip() for word in words.split(","))[:_MAX_DEVICES]


class Accelerators(Collector):
    """`start` makes the thread; readings are replaced whole. `own`: see `own_devices`; None: all are the replica's."""

    def __init__(self, pool: str, replica: str, library: Any | None, own: Path | None = None) -> None:
        self._pool, self._replica = pool, replica
        self._library = library
        self._own = own
        self._is_open = False
        self._positions: dict[int, int] = {}  # of our devices, by the library's numbers
        self._stop = threading.Event()
        self._events: Any | None = None
        self._handles: list[Any] = []
        self.readings: tuple[Reading, ...] = ()
        self._xids: Counter[int] = Counter()  # by device
        self._last_xid: dict[int, int] = {}
        self._distinct_xids: dict[int, tuple[int, ...]] = {}  # by device, each once, in order
        self._ecc_base: dict[int, int] = {}  # by device, errors that were not corrected when we began
        self._tells_xids: set[int] = set()  # devices

    def start(self) -> None:
        if self._library is not None:
            threading.Thread(target=self._run, name="accelerators", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def open(self) -> None:
        """Find the devices, and listen for their errors; nothing as long as nobody has said which they are."""
        library = self._library
        own = own_devices(self._own) if self._own is not None else ("all",)
        if library is None or own is None:
            return
        self._is_open = True
        self._handles = self._found(own)
        for position, handle in enumerate(self._handles):
            number = self._asked(library.nvmlDeviceGetIndex, handle)
            self._positions[position if number is None else number] = position
        self._events = self._asked(library.nvmlEventSetCreate)
        for index, handle in enumerate(self._handles if self._events is not None else ()):
            if self._is_done(library.nvmlDeviceRegisterEvents, handle, _XID_EVENT, self._events):
                self._tells_xids.add(index)

    def read(self) -> None:
        """Once."""
        if not self._is_open:
            self.open()
        self.readings = tuple(self._reading(handle) for handle in self._handles)
        self._take_xids()
        for index, reading in enumerate(self.readings):
            if _UNCORRECTED in reading.ecc_errors:
                self._ecc_base.setdefault(index, reading.ecc_errors[_UNCORRECTED])

    def errors(self) -> tuple[DeviceErrors, ...]:
        """What the devices have told since we began to listen; any thread."""
        return tuple(
            DeviceErrors(
                device=index,
                xids=self._distinct_xids.get(index, ()),
                ecc_uncorrected=max(0, reading.ecc_errors.get(_UNCORRECTED, 0) - self._ecc_base.get(index, 0)),
                tells_xids=index in self._tells_xids,
            )
            for index, reading in enumerate(self.readings)
        )

    def forget_errors(self) -> None:
        """Somebody has looked after them: only what comes from now on counts."""
        self._distinct_xids = {}
        self._ecc_base = {index: reading.ecc_errors.get(_UNCORRECTED, 0) for index, reading in enumerate(self.readings)}

    def collect(self) -> Iterator[Metric]:
        labels = ["pool", "accelerator"]
        count = GaugeMetricFamily("shoal_replica_accelerators", "Accelerators it has.", labels=["pool", "replica"])
        count.add_metric([self._pool, self._replica], len(self.readings))
        yield count
        used = GaugeMetricFamily("shoal_accelerator_used_ratio", "Time with work on it, 0 to 1.", labels=labels)
        memory = GaugeMetricFamily("shoal_accelerator_memory_used_bytes", "Memory in use.", labels=labels)
        total = GaugeMetricFamily("shoal_accelerator_memory_bytes", "Memory in all.", labels=labels)
        power = GaugeMetricFamily("shoal_accelerator_power_watts", "Power that it draws.", labels=labels)
        heat = GaugeMetricFamily("shoal_accelerator_temperature_celsius", "Temperature of its chip.", labels=labels)
        errors = CounterMetricFamily(
            "shoal_accelerator_errors",
            "Errors that the driver told of (xid) and of memory (ecc_corrected, ecc_uncorrected).",
            labels=["pool", "accelerator", "kind"],
        )
        last = GaugeMetricFamily("shoal_accelerator_last_xid", "Number of the last XID; 0: none.", labels=labels)
        for index, it in enumerate(self.readings):
            of = [self._pool, str(index)]
            values = (it.used_ratio, it.memory_used_bytes, it.memory_total_bytes, it.power_w, it.temperature_c)
            for family, value in zip((used, memory, total, power, heat), values, strict=True):
                if value is not None:
                    family.add_metric(of, value)
            for kind, number in {"xid": self._xids[index], **it.ecc_errors}.items():
                errors.add_metric([*of, kind], number)
            last.add_metric(of, self._last_xid.get(index, 0))
        yield from (used, memory, total, power, heat, errors, last)

    # on the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self.read()
            self._stop.wait(READ_EVERY_S)

    def _found(self, own: tuple[str, ...]) -> list[Any]:
        """The devices' handles, in that order; one that is not there is left out."""
        library: Any = self._library
        if own == ("all",):
            own = tuple(str(number) for number in range(self._asked(library.nvmlDeviceGetCount) or 0))
        handles = [
            self._asked(library.nvmlDeviceGetHandleByIndex, int(name))
            if name.isascii() and name.isdigit()
            else self._asked(library.nvmlDeviceGetHandleByUUID, name)
            for name in own
        ]
        return [handle for handle in handles if handle is not None]

    def _reading(self, handle: Any) -> Reading:
        library: Any = self._library
        use = self._asked(library.nvmlDeviceGetUtilizationRates, handle)
        memory = self._asked(library.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._asked(library.nvmlDeviceGetPowerUsage, handle)
        ecc = {
            kind: self._asked(library.nvmlDeviceGetTotalEccErrors, handle, number, _SINCE_DRIVER_LOADED)
            for kind, number in _ECC.items()
        }
        return Reading(
            used_ratio=use.gpu / 100 if use is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            memory_total_bytes=memory.total if memory is not None else None,
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=self._asked(library.nvmlDeviceGetTemperature, handle, _GPU_SENSOR),
            ecc_errors={kind: errors for kind, errors in ecc.items() if errors is not None},
        )

    def _take_xids(self) -> None:
        """All that wait; a wait of 0 ms that finds none raises."""
        library: Any = self._library
        while self._events is not None and (event := self._asked(library.nvmlEventSetWait_v2, self._events, 0)):
            index = self._positions.get(self._asked(library.nvmlDeviceGetIndex, event.device) or 0, 0)
            self._xids[index] += 1
            number = int(event.eventData)
            self._last_xid[index] = number
            known = self._distinct_xids.get(index, ())
            if number not in known and len(known) < _MAX_DISTINCT_XIDS:
                self._distinct_xids = {**self._distinct_xids, index: (*known, number)}
            _log.error("accelerator %d: XID %d", index, event.eventData)

    def _asked(self, call: Callable[..., T], *arguments: object) -> T | None:
        """None where the device does not measure that, or is gone."""
        try:
            return call(*arguments)
        except Exception:  # NVMLError: not supported, lost, timed out; there is nothing else to do about either
            return None

    def _is_done(self, call: Callable[..., object], *arguments: object) -> bool:
        """Of a call that answers nothing."""
        try:
            call(*arguments)
        except Exception:  # as above
            return False
        return True
