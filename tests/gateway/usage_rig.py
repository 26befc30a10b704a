"""A spool whose process is killed."""

from functions.gateway.usage.spool import UsageSpool


def killed(spool: UsageSpool) -> None:
    """What the kernel does: descriptors are closed, locks with them, and nothing is removed."""
    for file in (spool._file, spool._lock):
        if file is not None:
            file.close()
    spool._file = spool._lock = None
