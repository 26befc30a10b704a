"""Bounds of files and batches, each with its reason. Frozen; one instance per process."""

from dataclasses import dataclass

_MIB = 1024 * 1024


EXPIRY_MIN_S, EXPIRY_MAX_S = 3600, 30 * 24 * 3600  # that an owner may give a file, as OpenAI bounds it


@dataclass(frozen=True, slots=True)
class BatchLimits:
    # Files
    file_bytes: int = 200 * _MIB  # OpenAI's own bound for a batch's input
    file_retention_s: float = 30 * 24 * 3600.0  # then a file is gone, unless an open batch reads it
    files_per_tenant: int = 1000
    uploads_at_once: int = 8  # 20 MiB of memory each, at worst
    uploads_per_tenant: int = 2
    listings_per_tenant: int = 2  # of files or batches; each reads up to 1000 records, 8 at a time

    # Batches
    open_per_tenant: int = 50  # that are not over; the next is refused until one is
    running: int = 16  # that one gateway works on
    running_per_tenant: int = 4
    lines_in_flight: int = 96  # of one gateway, over all its batches
    lines_in_flight_per_tenant: int = 48
    lines_in_flight_per_batch: int = 32

    # Memory of one gateway, once for lines that have no answer and once for the answers that they may get
    held_bytes: int = 64 * _MIB  # every batch may have one line beside this, whatever its size
    held_bytes_per_tenant: int = 32 * _MIB

    # What is not durable yet: the lines that may be asked twice after a kill
    undurable_lines: int = 256  # of one batch: in flight, or answered and not yet in a part
    undurable_bytes: int = 8 * _MIB  # answers of one batch in memory; beyond, no further line begins
    part_lines: int = 128
    part_bytes: int = 2 * _MIB
    part_age_s: float = 5.0  # an answer waits no longer for company

    # How often
    look_s: float = 5.0  # for batches that nobody works on: one listing
    watch_s: float = 2.0  # for somebody's request to cancel: one HEAD a running batch
    collect_s: float = 3600.0
