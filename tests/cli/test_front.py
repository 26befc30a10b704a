"""haproxy's configuration before the regions of a machine: retries and routing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from functions.cli.front import REPEATED, configuration
from functions.controller.local.layout import StateLayout
from functions.controller.local.prepare.certificates import ensure_certificates
from functions.fleet.regions import RegionAddress

REGIONS = {
    "b": RegionAddress("https://127.0.0.1:8844", "https://127.0.0.1:8843"),
    "a": RegionAddress("https://127.0.0.1:8644", "https://a.example.com"),
}


def sections(text: str) -> dict[str, list[str]]:
    """Return the lines of each section by its first line."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            found[line] = lines = []
        elif line.strip():
            lines.append(line.partition("#")[0].strip())
    return found


def made(folder: Path = Path("/tls")) -> dict[str, list[str]]:
    text = configuration(REGIONS, port=8443, certificate=folder / "server.pem", ca_file=folder / "ca.pem")
    return sections(text)


def test_only_what_keeps_no_state_is_repeated_where_nothing_came_back() -> None:
    parts = made()
    assert "retry-on conn-failure 503 empty-response" in parts["backend answers"]
    assert "retry-on conn-failure 503" in parts["backend state"]
    (acl,) = [line for line in parts["frontend front"] if line.startswith("acl ")]
    assert acl.split()[3:] == list(REPEATED) and not {"/v1/files", "/v1/batches", "/v1/artifacts"} & set(REPEATED)


def test_each_region_is_a_server_by_its_address_and_a_key_has_a_home() -> None:
    parts = made()
    for backend in ("backend answers", "backend state"):
        assert [line for line in parts[backend] if line.startswith("server ")] == [
            "server a a.example.com:443",
            "server b 127.0.0.1:8843",
        ]
    assert {"balance hdr(authorization)", "hash-type consistent", "option redispatch 1"} <= set(parts["defaults"])
    assert "option http-buffer-request" in parts["defaults"], "else a body that comes late is never sent again"


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed: apt-get install haproxy")
def test_haproxy_takes_it(tmp_path: Path) -> None:
    layout = StateLayout.at(tmp_path)
    layout.make_directories()
    ensure_certificates(layout)
    pem, file = tmp_path / "server.pem", tmp_path / "haproxy.cfg"
    pem.write_bytes(layout.server_cert_file.read_bytes() + layout.server_key_file.read_bytes())
    file.write_text(configuration({"b": REGIONS["b"]}, port=8443, certificate=pem, ca_file=layout.ca_file))
    done = subprocess.run(["haproxy", "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
