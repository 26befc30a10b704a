"""Check the fleet's ports before anything is started: which are taken, and by which process."""

import errno
import socket
from collections.abc import Collection, Iterable

import psutil

from functions.controller.local.context import HOST
from functions.controller.local.ports import PortUse


class PortsTaken(Exception):
    """Ports are held by other processes; the message lists them and the settings that move them."""


def check_ports(uses: Iterable[PortUse], ours: Collection[int] = ()) -> None:
    """Raise PortsTaken if other processes hold ports. `ours` are pids of this fleet, which may keep their ports."""
    taken = [use for use in uses if not _is_free(use.port)]
    if not taken:
        return
    holders = _holders({use.port for use in taken})
    lines = [_port_line(use, holders.get(use.port)) for use in taken if holders.get(use.port) not in ours]
    if lines:
        advice = "Stop those processes, set the variable named in the line, or move all ports with SHOAL_PORT_BASE."
        raise PortsTaken("\n".join(["ports are in use by other processes:", *lines, advice]))


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger do not count
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def _holders(ports: Collection[int]) -> dict[int, int]:
    """Return the pid that listens on each of the ports, as far as this user may see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return {}
    holders: dict[int, int] = {}
    for connection in connections:
        port = connection.laddr.port if connection.laddr else None
        if port is None or port not in ports or connection.pid is None:
            continue
        if connection.status == psutil.CONN_LISTEN:
            holders[port] = connection.pid
    return holders


def _port_line(use: PortUse, pid: int | None) -> str:
    return f"  {use.port} for {use.purpose}: held by {_holder_text(pid)}; setting: {use.setting}"


def _holder_text(pid: int | None) -> str:
    if pid is None:
        return "a process that this user cannot see"
    try:
        command = " ".join(psutil.Process(pid).cmdline())[:80]
    except psutil.Error:
        command = ""
    return f"process {pid} ({command})" if command else f"process {pid}"
