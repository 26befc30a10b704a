"""Accelerator metrics of the agent, read from a fake management library."""

# ruff: noqa: N802 - the names are the library's

import importlib.util
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from functions.replica import accelerators
from functions.replica.accelerators import Accelerators, management_library


class NotSupported(Exception):
    pass


class Library:
    """Fake NVML of a machine with two devices; the second has no ECC."""

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.registered: list[tuple[int, int]] = []

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return 100 + index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"GPU-aa": 100, "GPU-bb": 101}[uuid]

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle - 100

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        self.registered.append((handle, kinds))

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        if not self.events:
            raise NotSupported("timeout")
        return self.events.popleft()

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=93, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=60 << 30, total=80 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 412_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 71

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        if handle == 101:
            raise NotSupported("ECC is off")
        return 3 * kind


def shown(devices: Accelerators, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(devices)
    return registry.get_sample_value(name, labels)


def test_each_device_is_reported_without_unsupported_metrics() -> None:
    devices = Accelerators("base", "r0", Library())
    devices.open()
    devices.read()
    first, second = {"pool": "base", "accelerator": "0"}, {"pool": "base", "accelerator": "1"}
    assert shown(devices, "shoal_replica_accelerators", pool="base", replica="r0") == 2
    assert shown(devices, "shoal_accelerator_used_ratio", **second) == 0.93
    assert shown(devices, "shoal_accelerator_memory_used_bytes", **first) == 60 << 30
    assert shown(devices, "shoal_accelerator_memory_bytes", **first) == 80 << 30
    assert shown(devices, "shoal_accelerator_power_watts", **first) == 412.5
    assert shown(devices, "shoal_accelerator_temperature_celsius", **first) == 71
    assert shown(devices, "shoal_accelerator_errors_total", **first, kind="ecc_uncorrected") == 3
    assert shown(devices, "shoal_accelerator_errors_total", **second, kind="ecc_uncorrected") is None
    assert shown(devices, "shoal_accelerator_errors_total", **second, kind="xid") == 0, "or the first is no increase"


def test_errors_of_the_driver_are_counted_once_each() -> None:
    library = Library()
    devices = Accelerators("base", "r0", library)
    devices.open()
    assert library.registered == [(100, 8), (101, 8)]
    library.events.extend(SimpleNamespace(device=101, eventData=number) for number in (13, 79))
    devices.read()
    devices.read()
    second = {"pool": "base", "accelerator": "1"}
    assert shown(devices, "shoal_accelerator_errors_total", **second, kind="xid") == 2
    assert shown(devices, "shoal_accelerator_last_xid", **second) == 79


def test_only_the_engines_devices_are_read(tmp_path: Path) -> None:
    library, file = Library(), tmp_path / "engine"
    devices = Accelerators("base", "r0", library, file)
    devices.read()
    assert devices.readings == () and library.registered == [], "nobody has said which they are"
    file.write_text("GPU-bb")
    devices.read()
    assert len(devices.readings) == 1 and library.registered == [(101, 8)]
    library.events.append(SimpleNamespace(device=101, eventData=79))
    devices.read()
    only = {"pool": "base", "accelerator": "0"}
    assert shown(devices, "shoal_accelerator_last_xid", **only) == 79, "an error is told of the device that had it"


@pytest.mark.parametrize(
    ("words", "count"),
    [("all", 2), ("1,0", 2), ("GPU-aa, GPU-bb", 2), ("", 0), ("none", 0), ("void", 0), ("GPU-zz,-1,\x00,7", 1)],
)
def test_device_file_decides_the_devices(tmp_path: Path, words: str, count: int) -> None:
    file = tmp_path / "engine"
    file.write_text(words)
    devices = Accelerators("base", "r0", Library(), file)
    devices.read()
    assert len(devices.readings) == count


def test_the_real_library_without_a_driver_is_none() -> None:
    """The library is installed with the agent, so a missing driver must not look like an error."""
    assert importlib.util.find_spec("pynvml") is not None
    library = management_library()
    assert library is None or library.nvmlDeviceGetCount() >= 0


def test_a_machine_without_accelerators_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(accelerators.importlib, "import_module", not_there)
    assert management_library() is None
    devices = Accelerators("base", "r0", None)
    devices.start()
    assert shown(devices, "shoal_replica_accelerators", pool="base", replica="r0") == 0


def test_a_library_without_a_driver_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NotSupported("Driver Not Loaded")

    monkeypatch.setattr(accelerators.importlib, "import_module", lambda name: SimpleNamespace(nvmlInit=no_driver))
    assert management_library() is None
