"""Which accelerator errors take a replica out of service."""

import pytest

from functions.decisions.health.accelerator_errors import FATAL_XIDS, DeviceErrors, describe_fatal


def test_worked_example_of_a_device_that_fell_off_the_bus() -> None:
    found = describe_fatal([DeviceErrors(0), DeviceErrors(1, (31, 79))])
    assert found == "accelerator 1: XID 79, fallen off the bus: the machine has to be restarted"
    assert describe_fatal([DeviceErrors(0, (94,), ecc_uncorrected=1)]) == "", (
        "contained: the engine is restarted, no more"
    )


@pytest.mark.parametrize("xid", [8, 11, 13, 31, 32, 43, 45, 63, 68, 92, 94, 9999])
def test_program_faults_and_handled_errors_are_not_fatal(xid: int) -> None:
    assert describe_fatal([DeviceErrors(0, (xid,))]) == ""


@pytest.mark.parametrize("xid", sorted(FATAL_XIDS))
def test_each_fatal_xid_has_a_remedy(xid: int) -> None:
    assert describe_fatal([DeviceErrors(0, (13, xid))]).endswith(FATAL_XIDS[xid].remedy)


def test_uncorrected_memory_errors_count_only_without_xids() -> None:
    assert "not corrected" in describe_fatal([DeviceErrors(2, ecc_uncorrected=3, tells_xids=False)])
    assert describe_fatal([DeviceErrors(2, ecc_uncorrected=3)]) == ""


def test_the_first_device_is_named_whatever_the_order() -> None:
    assert describe_fatal([DeviceErrors(3, (48,)), DeviceErrors(1, (95,))]).startswith("accelerator 1: XID 95")
