"""A simulated device with NVML's interface: each injected error is counted once."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from functions.replica.accelerators import Accelerators
from functions.replica.simulated_accelerator import SimulatedDevice


def errors(accelerators: Accelerators) -> float | None:
    registry = CollectorRegistry()
    registry.register(accelerators)
    labels = {"pool": "base", "accelerator": "0", "kind": "xid"}
    return registry.get_sample_value("shoal_accelerator_errors_total", labels)


def test_simulated_error_is_reported_once(tmp_path: Path) -> None:
    file = tmp_path / "accelerator.json"
    accelerators = Accelerators("base", "base-0", SimulatedDevice(file))
    accelerators.open()
    accelerators.read()
    assert errors(accelerators) == 0, "a rate needs the time before the first one"
    file.write_text('{"xids": [79]}')
    for _ in range(3):
        accelerators.read()
    assert errors(accelerators) == 1
    file.write_text('{"xids": [79, 48]}')
    accelerators.read()
    assert errors(accelerators) == 2 and accelerators.errors()[0].xids == (79, 48)
    file.unlink()
    accelerators.read()
    file.write_text('{"xids": [')  # half written
    accelerators.read()
    assert errors(accelerators) == 2
    file.write_text('{"xids": [74]}')
    accelerators.read()
    assert errors(accelerators) == 3
