"""Who serves: the process that listens on a handover socket, by the kernel's own word (SO_PEERCRED).

A gateway opens that socket only once it accepts connections, replacing its predecessor's. Asking the shared port would
prove nothing, since either may answer there.
"""

import socket
import struct
from pathlib import Path

_TIMEOUT_S = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def serving_pid(door: Path) -> int | None:
    """The pid of whoever listens on the socket; None where nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TIMEOUT_S)
        try:
            probe.connect(str(door))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    return int(_CREDENTIALS.unpack(credentials)[0])
