"""A real TLS server for ingests to fetch from; the test sets a function that answers each path."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Answer = Callable[[BaseHTTPRequestHandler], None]


class HttpsHost:
    """TLS server that records each request's path, Host and Accept-Encoding."""

    def __init__(self, address: str, port: int, certificate: Path, key: Path) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, Host, Accept-Encoding
        self.server_names: list[str | None] = []
        self._server = _Server((address, port), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.sni_callback = lambda socket, name, _: self.server_names.append(name)
        self._server.context = context
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve_files(self, directory: Path, below: str = "/adapter") -> None:
        for path in directory.iterdir():
            self.answers[f"{below}/{path.name}"] = plain(path.read_bytes())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host.requests.append((self.path, self.headers.get("Host"), self.headers.get("Accept-Encoding")))
                host.answers.get(self.path, status(404))(self)

            def log_message(self, *_: object) -> None:
                """Write no log."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    context: ssl.SSLContext

    def finish_request(self, request: object, client_address: object) -> None:
        with suppress(OSError), self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: in several tests the client disconnects on purpose."""


@contextmanager
def https_host(certificate: Path, key: Path, address: str = "127.0.0.1", port: int = 0) -> Iterator[HttpsHost]:
    host = HttpsHost(address, port, certificate, key)
    host.start()
    try:
        yield host
    finally:
        host.stop()


def plain(body: bytes, **headers: str) -> Answer:
    """Answer 200 with `body`; header names have underscores for dashes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"Content_Length": "0", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


def endless(
    block: bytes, every_s: float = 0.0, head: bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
) -> Answer:
    """Answer `head`, then `block` repeatedly until the client disconnects or the test has long ended."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        pause = threading.Event()
        handler.close_connection = True
        handler.wfile.write(head)
        for _ in range(100_000):
            handler.wfile.write(block)
            if every_s:
                pause.wait(every_s)

    return answer
