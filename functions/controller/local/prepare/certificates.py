"""Create this installation's certificate authority and the server certificate for loopback that it signs.

Name constraints limit the authority to localhost, so trusting it exposes nothing else. The server certificate is
renewed when it is close to its end. The authority is kept as long as it is valid, because clients hold it.
"""

import ipaddress
import os
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout

# Bundle of the authorities that this machine trusts, and ours, for use in a whole shell. SSL_CERT_FILE and similar
# variables replace what a program trusts; a file with only our authority would break all other connections.


# Bundle locations of common distributions; Python's own build may search none of them.
USUAL_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/cert.pem",  # macOS, BSD
)
BUNDLE_MAX_BYTES = 16 * 1024 * 1024


def write_bundle(layout: StateLayout, environ: Mapping[str, str]) -> None:
    """Write the bundle of the machine's authorities and ours, or only ours if no bundle of the machine is found."""
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


CA_VALID = timedelta(days=3650)
SERVER_VALID = timedelta(days=90)
RENEW_BEFORE = timedelta(days=15)
BACKDATED = timedelta(hours=1)  # tolerance for clocks that are slightly behind
HOST_NAMES = ("localhost",)
ADDRESSES = ("127.0.0.1", "::1")


def ensure_certificates(layout: StateLayout, now: datetime | None = None) -> str:
    """Create or renew certificates that are missing or near their end, and write the bundle. Return "made" if the
    authority was created, "renewed" if only the server's certificate was, or else "kept"."""
    now = now if now is not None else datetime.now(UTC)
    done = "kept"
    ca = _load(layout.ca_file, _ca_key_file(layout), now)
    if ca is None:
        ca = _make_ca(layout, now)
        done = "made"
    server = _load(layout.server_cert_file, layout.server_key_file, now)
    if server is None or server[0].issuer != ca[0].subject or not _signed_by(server[0], ca[0]):
        _make_server(layout, ca, now)
        done = "made" if done == "made" else "renewed"
    write_bundle(layout, os.environ)
    return done


def _load(cert: Path, key: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """Return the certificate and the key on disk, or None if they are missing, broken, mismatched or close to their
    end. A matching key's file is made private."""
    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError):
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or certificate.public_key() != private.public_key():
        return None
    key.chmod(0o600)
    return (certificate, private) if certificate.not_valid_after_utc - now > RENEW_BEFORE else None


def _make_ca(layout: StateLayout, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"shoal local authority {now:%Y-%m-%d %H:%M:%S}")])
    allowed: list[x509.GeneralName] = [x509.DNSName(host) for host in HOST_NAMES]
    allowed += [x509.IPAddress(ipaddress.ip_network(address)) for address in ADDRESSES]
    certificate = (
        _builder(name, name, key.public_key(), now, CA_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(permitted_subtrees=allowed, excluded_subtrees=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(layout.ca_file, _ca_key_file(layout), certificate.public_bytes(serialization.Encoding.PEM), key)
    return certificate, key


def _make_server(layout: StateLayout, ca: tuple[x509.Certificate, ec.EllipticCurvePrivateKey], now: datetime) -> None:
    authority, authority_key = ca
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal local server")])
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in HOST_NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(name, authority.subject, key.public_key(), now, SERVER_VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    chain = certificate.public_bytes(pem) + authority.public_bytes(pem)
    _write_pair(layout.server_cert_file, layout.server_key_file, chain, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + valid)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(cert: Path, key_file: Path, chain: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the key, then the certificate: a certificate without its key is created again, and a key alone is
    replaced."""
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    replace_file(key_file, pem, mode=0o600)
    replace_file(cert, chain, mode=0o644)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _ca_key_file(layout: StateLayout) -> Path:
    return layout.tls_dir / "ca.key"
