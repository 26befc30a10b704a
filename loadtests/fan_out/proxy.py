"""A proxy process between nodes and store: counts and caps the store's bytes, and answers 503 during a fault.

Bytes pass unchanged, because signatures cover host and path. During a fault the proxy itself answers new requests. The
parent process controls it over a pipe.
"""

import asyncio
import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from functions.artifacts.swarm.chunk_clients import Bandwidth

_BLOCK_BYTES = 128 * 1024
_METHODS = (b"GET ", b"HEAD", b"PUT ", b"POST", b"DELE")
_FAULT = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(slots=True)
class _Proxy:
    store_port: int
    rate: Bandwidth
    given_bytes: int = 0
    refused: int = 0
    broken_until_s: float = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            store_reader, store_writer = await asyncio.open_connection("127.0.0.1", self.store_port)
            try:
                async with asyncio.TaskGroup() as group:
                    down = group.create_task(self._down(store_reader, writer))
                    await self._up(reader, store_writer, writer)
                    down.cancel()
            finally:
                store_writer.close()
        except* (OSError, asyncio.IncompleteReadError):
            pass  # the node was killed or closed the connection
        finally:
            writer.close()

    async def _up(self, reader: asyncio.StreamReader, store: asyncio.StreamWriter, node: asyncio.StreamWriter) -> None:
        while block := await reader.read(_BLOCK_BYTES):
            if block.startswith(_METHODS) and time.monotonic() < self.broken_until_s:
                self.refused += 1
                node.write(_FAULT)
                await node.drain()
                return
            store.write(block)
            await store.drain()

    async def _down(self, store: asyncio.StreamReader, node: asyncio.StreamWriter) -> None:
        while block := await store.read(_BLOCK_BYTES):
            wait_s = self.rate.reserve(len(block))
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.given_bytes += len(block)
            node.write(block)
            await node.drain()
        node.close()


@dataclass(slots=True)
class StoreProxy:
    """The proxy as its parent process controls it."""

    store_port: int
    bytes_per_s: float | None
    port: int = 0
    _pipe: Connection = field(init=False)
    _process: BaseProcess = field(init=False)

    def __enter__(self) -> "StoreProxy":
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, self.store_port, self.bytes_per_s), daemon=True)
        self._process.start()
        self.port = self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def break_for(self, seconds: float) -> None:
        """Answer 503 for `seconds`."""
        self._send_command(("break", seconds))

    def counts(self) -> tuple[int, int]:
        """Return the bytes that the store sent and the requests that were answered 503, so far."""
        return self._send_command(("counts", 0.0))

    def _send_command(self, what: tuple[str, float]) -> tuple[int, int]:
        self._pipe.send(what)
        counts: tuple[int, int] = self._pipe.recv()
        return counts


def _main(pipe: Connection, store_port: int, bytes_per_s: float | None) -> None:
    asyncio.run(_serve(pipe, _Proxy(store_port, Bandwidth(bytes_per_s))))


async def _serve(pipe: Connection, proxy: _Proxy) -> None:
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    while True:
        what, value = await asyncio.to_thread(pipe.recv)
        if what == "break":
            proxy.broken_until_s = time.monotonic() + value
        pipe.send((proxy.given_bytes, proxy.refused))
