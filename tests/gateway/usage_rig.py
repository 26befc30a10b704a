"""A spool whose process is killed."""

from functions.gateway.usage.spool import UsageSpool


def killed(spool: UsageSpool) -> None:
    """Act like the kernel when a process is killed: close descriptors and their locks, remove nothing."""
    for file in (spool._file, spool._lock):
        if file is not None:
            file.close()
    spool._file = spool._lock = None
