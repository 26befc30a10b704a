"""Limits of files and batches, each with its reason. Frozen; one instance per process."""

from dataclasses import dataclass

_MIB = 1024 * 1024


EXPIRY_MIN_S, EXPIRY_MAX_S = 3600, 30 * 24 * 3600  # range of a file's expiry set by its owner, as in OpenAI's API


@dataclass(frozen=True, slots=True)
class BatchLimits:
    # Files
    file_bytes: int = 200 * _MIB  # OpenAI's own bound for a batch's input
    file_retention_s: float = 30 * 24 * 3600.0  # then a file is deleted, unless an open batch reads it
    files_per_tenant: int = 1000
    uploads_at_once: int = 8  # 20 MiB of memory each, at worst
    uploads_per_tenant: int = 2
    listings_per_tenant: int = 2  # listings of files or batches; each reads up to 1000 records, 8 at a time

    # Batches
    open_per_tenant: int = 50  # batches that are not over; more are rejected
    running: int = 16  # batches that one gateway runs
    running_per_tenant: int = 4
    lines_in_flight: int = 96  # on one gateway, over all its batches
    lines_in_flight_per_tenant: int = 48
    lines_in_flight_per_batch: int = 32

    # Memory of one gateway: one budget for lines without an answer, another for the answers in flight
    held_bytes: int = 64 * _MIB  # each batch may have one line in addition, of any size
    held_bytes_per_tenant: int = 32 * _MIB

    # Lines without a durable result, which may be sent twice after a kill
    undurable_lines: int = 256  # per batch: in flight, or answered and not yet in a part
    undurable_bytes: int = 8 * _MIB  # answers of one batch in memory; beyond this, no further line starts
    part_lines: int = 128
    part_bytes: int = 2 * _MIB
    part_age_s: float = 5.0  # an answer waits no longer for the part to fill

    # Intervals
    look_s: float = 5.0  # scan for abandoned batches: one listing
    watch_s: float = 2.0  # check for a request to cancel: one HEAD per running batch
    collect_s: float = 3600.0
