"""Handover of the listening sockets to a new gateway process: a restart without a rejected connection.

The new process requests the listeners from the old one over a unix socket (SCM_RIGHTS). Both then have the same
sockets and the same queue of connections to accept. When the new process accepts connections, it notifies the old
one, which stops accepting, finishes its streams and exits. The sockets are never closed and bound again, so every
connection finds a listener.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)
_ASK = b"listeners?"
_SERVING = b"serving"
_MAX_SOCKETS = 8
_TIMEOUT_S = 5.0
_BECOME_READY_S = 60.0  # timeout for a successor to become ready, so that a silent one does not block the next


class Handover:
    """The old process's side: passes on the listeners, and drains when notified."""

    def __init__(self, path: Path, listeners: list[socket.socket], drain: Callable[[], None]) -> None:
        self._path = path
        self._listeners = listeners
        self._drain = drain
        self._door: socket.socket | None = None

    def open(self) -> None:
        """Listen for a successor on a Unix socket at this path, which replaces the predecessor's."""
        self._path.unlink(missing_ok=True)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.setblocking(False)
        door.bind(str(self._path))
        self._path.chmod(0o600)
        door.listen(1)
        self._door = door

    async def serve(self) -> None:
        """Send the listening sockets to successors, one after the other, until cancelled or closed."""
        loop = asyncio.get_running_loop()
        while self._door is not None:
            successor, _ = await loop.sock_accept(self._door)
            with successor:
                await self._send_sockets(successor)

    def close(self) -> None:
        """Close the handover socket and this process's listeners: while a copy is open, the kernel accepts for it."""
        door, self._door = self._door, None
        if door is not None:
            door.close()
        for listener in self._listeners:
            listener.close()

    async def _send_sockets(self, successor: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if await loop.sock_recv(successor, len(_ASK)) != _ASK:
                    return
                socket.send_fds(successor, [b"listeners"], [listener.fileno() for listener in self._listeners])
            # The successor may need time to become ready, or fail: until it reports that it serves, this process does.
            async with asyncio.timeout(_BECOME_READY_S):
                word = await loop.sock_recv(successor, len(_SERVING))
            if word == _SERVING:
                _log.info("a successor serves the listeners; draining")
                self._drain()
        except (OSError, TimeoutError) as error:
            _log.warning("a successor requested the listeners and failed: %s", error)


class Inheritance:
    """The new process's side: the listeners received, and the notice to the predecessor once they are served."""

    def __init__(self, channel: socket.socket, listeners: list[socket.socket]) -> None:
        self._channel = channel
        self.listeners = listeners

    def announce_serving(self) -> None:
        with self._channel:
            try:
                self._channel.sendall(_SERVING)
            except OSError as error:
                _log.warning("the predecessor has already exited: %s", error)


def inherit(path: Path, expected: int) -> Inheritance | None:
    """Return the listeners of the gateway that runs at `path`, and the channel to it.

    Return None if none answers, or if it has other than `expected` listeners.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(_TIMEOUT_S)
    try:
        channel.connect(str(path))
        channel.sendall(_ASK)
        _, descriptors, _, _ = socket.recv_fds(channel, 64, _MAX_SOCKETS)
    except OSError:
        channel.close()
        return None
    listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if len(listeners) != expected:
        _log.error(
            "the running gateway has %d listeners, this one needs %d: stop the running one first",
            len(listeners),
            expected,
        )
        for listener in listeners:
            listener.close()
        channel.close()
        return None
    return Inheritance(channel, listeners)
