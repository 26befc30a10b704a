"""One file with the authorities that this machine trusts, and ours: what a whole shell may be pointed at.

SSL_CERT_FILE and its like replace what a program trusts; a file with our authority alone would cut off everything else.
"""

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import replace_file

# Where distributions keep theirs; Python's own build may look in none of these.
USUAL_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/cert.pem",  # macOS, BSD
)
BUNDLE_MAX_BYTES = 16 * 1024 * 1024


def write_bundle(layout: StateLayout, environ: Mapping[str, str]) -> None:
    """Ours alone where the machine has none that we can find."""
    theirs = next(_readable(layout, environ), b"")
    replace_file(layout.ca_bundle_file, theirs + layout.ca_file.read_bytes(), mode=0o644)


def _readable(layout: StateLayout, environ: Mapping[str, str]) -> Iterator[bytes]:
    compiled_in = ssl.get_default_verify_paths().openssl_cafile
    for place in (environ.get("SSL_CERT_FILE"), compiled_in, *USUAL_PLACES):
        path = Path(place) if place else None
        if path is None or path == layout.ca_bundle_file or not path.is_file():
            continue
        if path.stat().st_size <= BUNDLE_MAX_BYTES:
            yield path.read_bytes().rstrip() + b"\n"
