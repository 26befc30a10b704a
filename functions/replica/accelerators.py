"""Accelerators of a replica as NVIDIA's management library sees them: use, memory, power, temperature, XID and ECC.

Without a library, driver or device there are no metrics; the module is imported only when needed. A failing device
can block a call for seconds, so a separate thread reads every `READ_EVERY_S`, and a scrape returns the last reading.
Values that a device does not measure (ECC on a small card) are left out. The driver reports each XID once. XIDs are
counted from when the agent registered for them, together with the last one's number. The count begins at 0, so that
the first XID shows as an increase.

In a pod only the engine's container knows its devices. It writes them to a file (`own_devices`), and no device is
read until the file exists. Devices are numbered from 0, in the order of that file or of the library. Token rates are
divided by `shoal_replica_accelerators`.
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
_MAX_DEVICES = 64  # devices of a node
_FILE_MAX_CHARS = 4096

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """One device; `None` for a value that it does not measure."""

    used_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    ecc_errors: dict[str, int] = field(default_factory=dict)  # since the driver was loaded


def management_library() -> Any | None:
    """Return NVML, initialised; None if the library or the driver is missing or cannot be used."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except ImportError:
        return None
    except Exception as error:  # NVMLError has many kinds: no driver, no permission, another version
        _log.info("accelerators are not measured: %s", error)
        return None
    return library


def own_devices(file: Path) -> tuple[str, ...] | None:
    """Return UUIDs or numbers as NVIDIA_VISIBLE_DEVICES in `file` has them, `all` included; empty if it names none,
    None if the file cannot be read."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            words = opened.read(_FILE_MAX_CHARS).strip()
    except OSError:
        return None
    if words in ("", "none", "void"):
        return ()
    return tuple(word.strip() for word in words.split(","))[:_MAX_DEVICES]


class Accelerators(Collector):
    """Collector of readings from its own thread. `own` is the file of `own_devices`; None: all devices."""

    def __init__(self, pool: str, replica: str, library: Any | None, own: Path | None = None) -> None:
        self._pool, self._replica = pool, replica
        self._library = library
        self._own = own
        self._is_open = False
        self._positions: dict[int, int] = {}  # position of each own device, by the library's number
        self._stop = threading.Event()
        self._events: Any | None = None
        self._handles: list[Any] = []
        self.readings: tuple[Reading, ...] = ()
        self._xids: Counter[int] = Counter()  # by device
        self._last_xid: dict[int, int] = {}
        self._distinct_xids: dict[int, tuple[int, ...]] = {}  # by device, each XID once, in order
        self._ecc_base: dict[int, int] = {}  # by device, uncorrected errors at the first reading
        self._tells_xids: set[int] = set()  # devices that report XIDs

    def start(self) -> None:
        if self._library is not None:
            threading.Thread(target=self._run, name="accelerators", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def open(self) -> None:
        """Find the devices and register for their errors. Do nothing without the library, or until the own devices are
        known."""
        library = self._library
        own = own_devices(self._own) if self._own is not None else ("all",)
        if library is None or own is None:
            return
        self._is_open = True
        self._handles = self._find_devices(own)
        for position, handle in enumerate(self._handles):
            number = self._query(library.nvmlDeviceGetIndex, handle)
            self._positions[position if number is None else number] = position
        self._events = self._query(library.nvmlEventSetCreate)
        for index, handle in enumerate(self._handles if self._events is not None else ()):
            if self._is_done(library.nvmlDeviceRegisterEvents, handle, _XID_EVENT, self._events):
                self._tells_xids.add(index)

    def read(self) -> None:
        """Read all devices once, and their pending XIDs; open them first if they are not open yet."""
        if not self._is_open:
            self.open()
        self.readings = tuple(self._reading(handle) for handle in self._handles)
        self._read_xids()
        for index, reading in enumerate(self.readings):
            if _UNCORRECTED in reading.ecc_errors:
                self._ecc_base.setdefault(index, reading.ecc_errors[_UNCORRECTED])

    def errors(self) -> tuple[DeviceErrors, ...]:
        """Return each device's errors since the agent registered for them, or since `forget_errors`. Any thread may
        call this."""
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
        """Ignore all errors so far, because an operator has handled them."""
        self._distinct_xids = {}
        self._ecc_base = {index: reading.ecc_errors.get(_UNCORRECTED, 0) for index, reading in enumerate(self.readings)}

    def collect(self) -> Iterator[Metric]:
        labels = ["pool", "accelerator"]
        count = GaugeMetricFamily(
            "shoal_replica_accelerators", "Accelerators of the replica.", labels=["pool", "replica"]
        )
        count.add_metric([self._pool, self._replica], len(self.readings))
        yield count
        used = GaugeMetricFamily(
            "shoal_accelerator_used_ratio", "Share of time with work on the accelerator, 0 to 1.", labels=labels
        )
        memory = GaugeMetricFamily("shoal_accelerator_memory_used_bytes", "Accelerator memory in use.", labels=labels)
        total = GaugeMetricFamily("shoal_accelerator_memory_bytes", "Total accelerator memory.", labels=labels)
        power = GaugeMetricFamily("shoal_accelerator_power_watts", "Power draw of the accelerator.", labels=labels)
        heat = GaugeMetricFamily(
            "shoal_accelerator_temperature_celsius", "Temperature of the accelerator's chip.", labels=labels
        )
        errors = CounterMetricFamily(
            "shoal_accelerator_errors",
            "Errors that the driver reported (xid) and memory errors (ecc_corrected, ecc_uncorrected).",
            labels=["pool", "accelerator", "kind"],
        )
        last = GaugeMetricFamily(
            "shoal_accelerator_last_xid", "Number of the last XID; 0 if there was none.", labels=labels
        )
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

    # methods of the reading thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self.read()
            self._stop.wait(READ_EVERY_S)

    def _find_devices(self, own: tuple[str, ...]) -> list[Any]:
        """Return the handles of the devices that `own` names by number or UUID (`all`: every device), in its order,
        without missing ones."""
        library: Any = self._library
        if own == ("all",):
            own = tuple(str(number) for number in range(self._query(library.nvmlDeviceGetCount) or 0))
        handles = [
            self._query(library.nvmlDeviceGetHandleByIndex, int(name))
            if name.isascii() and name.isdigit()
            else self._query(library.nvmlDeviceGetHandleByUUID, name)
            for name in own
        ]
        return [handle for handle in handles if handle is not None]

    def _reading(self, handle: Any) -> Reading:
        library: Any = self._library
        use = self._query(library.nvmlDeviceGetUtilizationRates, handle)
        memory = self._query(library.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._query(library.nvmlDeviceGetPowerUsage, handle)
        ecc = {
            kind: self._query(library.nvmlDeviceGetTotalEccErrors, handle, number, _SINCE_DRIVER_LOADED)
            for kind, number in _ECC.items()
        }
        return Reading(
            used_ratio=use.gpu / 100 if use is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            memory_total_bytes=memory.total if memory is not None else None,
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=self._query(library.nvmlDeviceGetTemperature, handle, _GPU_SENSOR),
            ecc_errors={kind: errors for kind, errors in ecc.items() if errors is not None},
        )

    def _read_xids(self) -> None:
        """Record and log all pending XIDs by device; a wait of 0 ms that finds none raises."""
        library: Any = self._library
        while self._events is not None and (event := self._query(library.nvmlEventSetWait_v2, self._events, 0)):
            index = self._positions.get(self._query(library.nvmlDeviceGetIndex, event.device) or 0, 0)
            self._xids[index] += 1
            number = int(event.eventData)
            self._last_xid[index] = number
            known = self._distinct_xids.get(index, ())
            if number not in known and len(known) < _MAX_DISTINCT_XIDS:
                self._distinct_xids = {**self._distinct_xids, index: (*known, number)}
            _log.error("accelerator %d: XID %d", index, event.eventData)

    def _query(self, call: Callable[..., T], *arguments: object) -> T | None:
        """Call the library. Return None if the device does not support the call or is lost."""
        try:
            return call(*arguments)
        except Exception:  # NVMLError: not supported, lost or timed out; all mean that there is no value
            return None

    def _is_done(self, call: Callable[..., object], *arguments: object) -> bool:
        """Return True if the call, which has no result, succeeded."""
        try:
            call(*arguments)
        except Exception:  # as above
            return False
        return True
