"""Accelerator errors: which errors reported by the driver take a replica out for good.

An XID is the NVIDIA driver's number of an error. Most are caused by a program or were already handled. An XID is
fatal if NVIDIA's catalogue answers it with a reset of the device, a restart of the machine, or an inspection (its
column "Resolution Bucket (Immediate Action)", https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
The table leaves out errors answered with "restart the application" (8, 11, 13, 31, 32, 94) or "ignore" (43, 63, 92),
and errors that follow from another (45): the engine is restarted if it dies, and nothing else. An XID outside the
table is counted and reported, and takes no replica out: drivers add new ones.

Uncorrected memory errors count only if the driver reports no XIDs. Otherwise each comes with one (48, 94, 95), which
says whether the error was contained.

Worked example (test_worked_example_of_a_device_that_fell_off_the_bus): XID 31, then 79 on device 1: "accelerator 1:
XID 79, fallen off the bus: the machine has to be restarted". XID 94 alone: nothing.

Neighbours: `functions.replica.accelerators` reads the driver's events, `functions.replica.accelerator_fault` stores
the verdict.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Remedy = Literal["the device has to be reset", "the machine has to be restarted", "its links have to be inspected"]


@dataclass(frozen=True, slots=True)
class FatalXid:
    what: str
    remedy: Remedy


FATAL_XIDS: dict[int, FatalXid] = {
    46: FatalXid("the device stopped processing", "the device has to be reset"),  # RESET_GPU
    48: FatalXid("a memory error of two bits", "the device has to be reset"),  # WORKFLOW_XID_48: RESET_GPU
    62: FatalXid("its micro-controller halted", "the device has to be reset"),  # RESET_GPU
    64: FatalXid("no memory row is left to remap to", "the device has to be reset"),  # RESET_GPU
    74: FatalXid("an NVLink failed", "its links have to be inspected"),  # WORKFLOW_NVLINK_ERR
    79: FatalXid("fallen off the bus", "the machine has to be restarted"),  # RESTART_BM
    95: FatalXid("a memory error that was not contained", "the device has to be reset"),  # RESET_GPU
    119: FatalXid("its system processor does not answer", "the device has to be reset"),  # RESET_GPU
    120: FatalXid("its system processor failed", "the device has to be reset"),  # RESET_GPU
    140: FatalXid("a memory error that was not recovered", "the device has to be reset"),  # RESET_GPU
}


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """Errors of one device since the agent started."""

    device: int
    xids: tuple[int, ...] = ()  # in order of arrival
    ecc_uncorrected: int = 0  # increase since the agent started
    tells_xids: bool = True  # False if the driver reports no XIDs


TAINTED_MAX_RATIO = 0.25


def may_taint(nodes: int, tainted: int) -> bool:
    """Return True if one more of the `nodes` with replicas may be tainted; the first always may be."""
    return tainted < max(1, int(TAINTED_MAX_RATIO * nodes))


def describe_fatal(devices: Iterable[DeviceErrors]) -> str:
    """Return why the replica is taken out; "" if there is no reason. The first faulty device by number is named."""
    for each in sorted(devices, key=lambda each: each.device):
        number = next((xid for xid in each.xids if xid in FATAL_XIDS), None)
        if number is not None:
            found = FATAL_XIDS[number]
            return f"accelerator {each.device}: XID {number}, {found.what}: {found.remedy}"
        if each.ecc_uncorrected > 0 and not each.tells_xids:
            count = each.ecc_uncorrected
            return f"accelerator {each.device}: {count} memory errors that were not corrected; it has to be reset"
    return ""
