"""A git server with a certificate of a private authority: trusted if the authority is configured, refused otherwise."""

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from functions.controller.gitops.git import Git, GitFailed, Remote
from tests.fleets import git
from tests.gateway.certificates import self_signed

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a repository over https with git's own http-backend; return its address and the authority."""
    work, bare = tmp_path / "work", tmp_path / "served" / "fleet.git"
    git("init", "--quiet", "--initial-branch", "main", str(work), at=tmp_path)
    (work / "a.yaml").write_text("a: 1\n")
    git("add", "a.yaml", at=work)
    git("commit", "--quiet", "-m", "one", at=work)
    git("clone", "--quiet", "--bare", str(work), str(bare), at=tmp_path)

    class Backend(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("content-length", "0"))))

        def _answer(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            env = os.environ | {
                "GIT_PROJECT_ROOT": str(bare.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("content-type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
                "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            }
            said = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=True).stdout
            head, _, content = said.partition(b"\r\n\r\n")
            self.send_response(200)
            for line in head.decode().splitlines():
                name, _, value = line.partition(": ")
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    certificate, key = self_signed(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}/fleet.git", certificate
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_configured_private_authority_is_trusted(served: tuple[str, Path], tmp_path: Path) -> None:
    url, certificate = served
    local = tmp_path / "local.git"
    with pytest.raises(GitFailed, match="certificate"):
        Remote(url).fetch(local)
    Remote(url, ca_file=certificate).fetch(local)
    assert Git(local).run("show", "main:a.yaml") == b"a: 1\n"


def test_unreadable_authority_file_is_reported(served: tuple[str, Path], tmp_path: Path) -> None:
    with pytest.raises(GitFailed):
        Remote(served[0], ca_file=tmp_path / "nowhere.pem").fetch(tmp_path / "local.git")
