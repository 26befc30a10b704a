"""A failed accelerator drains its replica until the fault file is deleted, also across restarts of the agent."""

from pathlib import Path
from types import SimpleNamespace

from functions.replica.accelerator_fault import AcceleratorFault
from functions.replica.accelerators import Accelerators
from functions.replica.heartbeat_loop import compose
from functions.replica.status import AgentStatus
from tests.replica.statuses import make_status
from tests.replica.test_accelerators import Library


def played() -> tuple[Accelerators, Library]:
    library = Library()
    devices = Accelerators("base", "r0", library)
    devices.open()
    devices.read()
    return devices, library


def fault_of(status: AgentStatus, devices: Accelerators, file: Path | None, told: list[str]) -> AcceleratorFault:
    return AcceleratorFault(status, devices, file, lambda: told.append(status.accelerator_fault))


def test_a_fatal_error_drains_the_replica_and_its_heartbeat_says_why(tmp_path: Path) -> None:
    status, told, (devices, library) = make_status(), list[str](), played()
    fault = fault_of(status, devices, tmp_path / "r0" / "fault", told)
    library.events.append(SimpleNamespace(device=101, eventData=31))
    devices.read()
    fault.check_fault()
    assert (status.phase()[0], told) == ("ready", []), "a program's fault"
    library.events.append(SimpleNamespace(device=101, eventData=79))
    devices.read()
    fault.check_fault()
    fault.check_fault()
    heartbeat = compose(status, sequence=1, sent_unix_s=1.0)
    assert (heartbeat.phase, len(told)) == ("draining", 1)
    assert (
        heartbeat.accelerator_fault
        == heartbeat.reason
        == "accelerator 1: XID 79, fallen off the bus: " + ("the machine has to be restarted")
    )
    assert status.not_ready().startswith("draining")


def test_fault_survives_a_restart_until_the_file_is_deleted(tmp_path: Path) -> None:
    file, (devices, library) = tmp_path / "fault", played()
    library.events.append(SimpleNamespace(device=100, eventData=48))
    devices.read()
    fault_of(make_status(), devices, file, []).check_fault()
    status, told, (devices, _) = make_status(), list[str](), played()
    again = fault_of(status, devices, file, told)
    again.check_fault()
    assert status.accelerator_fault.startswith("accelerator 0: XID 48")
    file.unlink()
    again.check_fault()
    assert (status.accelerator_fault, told[-1], status.phase()[0]) == ("", "", "ready")


def test_errors_before_clearing_are_ignored(tmp_path: Path) -> None:
    status, file, (devices, library) = make_status(), tmp_path / "fault", played()
    fault = fault_of(status, devices, file, [])
    library.events.append(SimpleNamespace(device=100, eventData=95))
    devices.read()
    fault.check_fault()
    file.unlink()
    fault.check_fault()
    fault.check_fault()
    assert status.accelerator_fault == "" and not file.exists()
    library.events.append(SimpleNamespace(device=100, eventData=95))
    devices.read()
    fault.check_fault()
    assert status.accelerator_fault


def test_an_operator_takes_it_out_by_the_file(tmp_path: Path) -> None:
    status, file, (devices, _) = make_status(), tmp_path / "fault", played()
    fault = fault_of(status, devices, file, [])
    file.write_text("fans\nare loud\n")
    fault.check_fault()
    assert status.phase() == ("draining", "fans are loud")


def test_fault_without_a_file_ends_with_the_agent() -> None:
    status, (devices, library) = make_status(), played()
    fault = fault_of(status, devices, None, [])
    library.events.append(SimpleNamespace(device=100, eventData=119))
    devices.read()
    fault.check_fault()
    fault.check_fault()
    assert status.accelerator_fault
