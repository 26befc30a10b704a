"""`shoal front`: one address for all regions of this machine, served by haproxy with a generated configuration.

    home region     chosen by a consistent hash of the key, so that a client stays where its prompts are cached
    another region  if the connection fails, the region answers 503 (no capacity), or it sends nothing back
    no retry        once a byte of the answer was sent, or if the request is larger than the front's buffer

A tenant's own limit (429) and a failure after retries (502, 504) are passed on. Requests that create state in a region
(files, batches, uploads) are not repeated after an empty response. The same configuration works in front of clusters
with other addresses (docs/how-to/regions.md).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from functions.cli.context import read_settings
from functions.cli.refused import CommandRefused
from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout
from functions.controller.local.ports import plan_ports
from functions.controller.local.regions import regions_of
from functions.fleet.regions import RegionAddress, RegionsUnreadable

HAPROXY = "haproxy"
BUFFER_BYTES = 65_536  # largest request that can be sent to another region; each connection has two buffers
# Paths without state in a region: such a request may be repeated after an empty response.
REPEATED = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/classify",
    "/v1/score", "/v1/rerank", "/v1/tokenize", "/v1/detokenize", "/v1/models",
)  # fmt: skip


def configuration(regions: Mapping[str, RegionAddress], *, port: int, certificate: Path, ca_file: Path) -> str:
    servers = "\n".join(
        f"    server {name} {_host_and_port(address.gateway_url or '')}" for name, address in sorted(regions.items())
    )
    return f"""\
# Written by `shoal front`.
global
    tune.bufsize {BUFFER_BYTES}
    ssl-default-bind-options ssl-min-ver TLSv1.2
    log stdout format raw local0 info

defaults
    mode http
    log global
    option httplog
    option dontlog-normal    # what was sent on to another region, or failed
    timeout connect 2s
    timeout http-request 30s
    timeout http-keep-alive 75s
    timeout client 15m    # silence; longer than any deadline of a request
    timeout server 15m
    timeout queue 5s
    option http-buffer-request    # all of it, or a full buffer: only what is held whole can be sent again
    retries 3
    option redispatch 1
    balance hdr(authorization)
    hash-type consistent
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr host localhost
    http-check expect status 200
{_errors()}
    default-server ssl verify required ca-file {ca_file} verifyhost localhost check inter 1s fall 2 rise 2 maxconn 10000

frontend front
    bind 127.0.0.1:{port} ssl crt {certificate} alpn h2,http/1.1
    acl repeated path {" ".join(REPEATED)}
    use_backend answers if repeated
    default_backend state
    http-response set-header x-shoal-region %s

backend answers
    retry-on conn-failure 503 empty-response
{servers}

backend state
    retry-on conn-failure 503
{servers}
"""


def _errors() -> str:
    """Return the lines of haproxy's configuration for the front's own errors, in the gateways' error format."""
    told = (
        (502, "upstream_failed", "the region failed before it answered: send the request again"),
        (503, "no_region", "no region can be reached: try again"),
        (504, "upstream_timeout", "the region did not answer in time"),
    )
    lines = []
    for status, code, message in told:
        body = f'{{"error":{{"message":"{message}","type":"server_error","param":null,"code":"{code}"}}}}'
        lines.append(f"    http-error status {status} content-type application/json string '{body}' hdr retry-after 1")
    return "\n".join(lines)


def front(*, print_only: bool) -> None:
    """Run haproxy in front of the regions of this machine, in place of this process; with `print_only`, print its
    configuration instead."""
    settings = read_settings()
    layout = StateLayout.at(settings.state_dir)
    try:
        regions = regions_of(layout)
    except RegionsUnreadable as error:
        raise CommandRefused(str(error)) from error
    if not regions:
        raise CommandRefused("there are no regions here: `shoal up --region a` and `shoal up --region b` start two")
    folder = layout.root / "front"
    certificate, file = folder / "server.pem", folder / "haproxy.cfg"
    port = plan_ports(settings).gateway
    text = configuration(regions, port=port, certificate=certificate, ca_file=layout.ca_file)
    if print_only:
        sys.stdout.write(text)
        return
    program = shutil.which(HAPROXY)
    if program is None:
        raise CommandRefused(
            f"{HAPROXY} is not installed: use `apt-get install haproxy`; `--print` shows its configuration"
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    replace_file(certificate, layout.server_cert_file.read_bytes() + layout.server_key_file.read_bytes())
    replace_file(file, text.encode())
    checked = subprocess.run([program, "-c", "-q", "-f", str(file)], capture_output=True, text=True, check=False)
    if checked.returncode != 0:
        raise CommandRefused(f"{HAPROXY} rejects {file}:\n{checked.stderr.strip()}")
    sys.stderr.write(f"https://localhost:{port} for the regions {', '.join(sorted(regions))}; Ctrl-C ends it\n")
    sys.stderr.flush()
    os.execv(program, [program, "-db", "-f", str(file)])  # noqa: S606 - haproxy handles signals itself


def _host_and_port(url: str) -> str:
    scheme, _, authority = url.partition("://")
    return authority if ":" in authority else f"{authority}:{443 if scheme == 'https' else 80}"
