"""URIs of adapters: parsed by one strict grammar, checked against the policy, rejected with a reason.

    s3://<bucket>/<tenant>/<name…>          a bucket of the policy at the store's own endpoint; the tenant's own folder
    https://<host>[:port]/<path>            a host that the operator allowed; files are below the path

Nothing is decoded, normalised or guessed. Percent signs, user names, queries, fragments, backslashes, trailing dots,
numeric hosts and names outside ASCII are not in the grammar, so two parsers cannot read a URI differently.
"""

import re
from dataclasses import dataclass

from functions.api.ids import TenantId
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.ingest.policy import IngestPolicy
from functions.artifacts.locations import URI_MAX_CHARS, parse_artifact_uri

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_HTTPS = re.compile(r"https://(?P<authority>[^/?#]*)(?P<path>(?:/[^/?#]*)*)(?P<rest>.*)", re.DOTALL)
_SEGMENT = re.compile(r"[A-Za-z0-9_~][A-Za-z0-9._~-]{0,127}")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}):")
# A last label that some resolvers read as a number: 127.0.0.1, 2130706433, 0x7f.1, 0177.0.0.1.
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
_MAX_SEGMENTS = 16
_HTTPS_PORT = 443


@dataclass(frozen=True, slots=True)
class S3Source:
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class HttpsSource:
    host: str
    port: int
    path: str  # starts with a slash; ends with one only if it is the root

    @property
    def authority(self) -> str:
        return self.host if self.port == _HTTPS_PORT else f"{self.host}:{self.port}"


def parse_source(uri: str, policy: IngestPolicy, *, own_bucket: str, tenant: TenantId | None) -> S3Source | HttpsSource:
    """Return the source that `uri` (`s3://` or `https://`) names; raise ArtifactRefused if the URI is malformed or this
    tenant may not fetch from it."""
    if len(uri) > URI_MAX_CHARS:
        raise ArtifactRefused(f"artifact_uri is over {URI_MAX_CHARS} characters")
    if not uri.isascii() or not uri.isprintable() or any(character in uri for character in " \\%"):
        raise ArtifactRefused(
            "artifact_uri holds characters outside plain ASCII, a space, a backslash or a percent sign"
        )
    if uri.startswith("s3://"):
        return _s3_source(uri, policy, own_bucket, tenant)
    if uri.startswith("https://"):
        return _https_source(uri, policy)
    match = _SCHEME.match(uri)
    raise ArtifactRefused(
        f"artifact_uri has the scheme {match['scheme']!r}; allowed: s3, https"
        if match
        else "artifact_uri has no scheme; it begins with s3:// or https://"
    )


def _s3_source(uri: str, policy: IngestPolicy, own_bucket: str, tenant: TenantId | None) -> S3Source:
    bucket = uri.removeprefix("s3://").partition("/")[0]
    allowed = policy.s3_buckets or (own_bucket,)
    if bucket not in allowed:
        raise ArtifactRefused(f"artifact_uri lies in bucket {bucket[:100]!r}; allowed: {', '.join(allowed)}")
    location = parse_artifact_uri(uri.rstrip("/"), bucket=bucket)
    owner, _, rest = location.prefix.partition("/")
    if tenant is not None and (owner != tenant or not rest):
        raise ArtifactRefused(f"artifact_uri is not below s3://{bucket}/{tenant}/: a tenant names only its own folder")
    return S3Source(bucket, location.prefix)


def _https_source(uri: str, policy: IngestPolicy) -> HttpsSource:
    match = _HTTPS.fullmatch(uri)
    if match is None or match["rest"]:
        raise ArtifactRefused("artifact_uri has a query or a fragment; name a folder by its plain path")
    authority = match["authority"]
    if "@" in authority:
        raise ArtifactRefused("artifact_uri names a user; credentials do not belong in a URI")
    host, colon, port_text = authority.partition(":")
    _check_host(host, authority)
    port = _port(port_text) if colon else _HTTPS_PORT
    place = HttpsSource(host, port, _path(match["path"]))
    if authority not in policy.https_hosts and place.authority not in policy.https_hosts:
        allowed = ", ".join(policy.https_hosts) or "none; the operator allows hosts by name"
        raise ArtifactRefused(f"artifact_uri is on {authority}, which is not allowed (allowed: {allowed})")
    return place


def _check_host(host: str, authority: str) -> None:
    if authority.startswith("[") or _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise ArtifactRefused(f"artifact_uri names the address {authority[:100]}; name the host instead")
    if host.endswith("."):
        raise ArtifactRefused("artifact_uri has a host that ends in a dot")
    if len(host) > 253 or _HOST.fullmatch(host) is None:
        raise ArtifactRefused(f"artifact_uri has the host {host[:100]!r}, which is not a plain lower-case name")


def _port(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{0,4}", text) is None or int(text) > 65535:
        raise ArtifactRefused(f"artifact_uri has the port {text[:20]!r}")
    return int(text)


def _path(path: str) -> str:
    segments = path.removesuffix("/").split("/")[1:]
    if len(segments) > _MAX_SEGMENTS or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise ArtifactRefused("artifact_uri has a path with other than letters, digits and ._~- between its slashes")
    return "/" + "/".join(segments)
