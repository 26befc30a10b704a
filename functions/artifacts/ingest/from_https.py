"""Receive an adapter from an https folder: a fixed list of files, one request each, at addresses resolved once.

Redirects are not followed (an allowed host must not redirect elsewhere), proxies of the environment are ignored, and
content encodings are rejected (a small body must not expand). Body sizes and time are limited.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

import httpcore

from functions.artifacts.adapters import CONFIG_MAX_BYTES, CONFIG_NAME, WEIGHTS_NAME
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused, StoreUnavailable
from functions.artifacts.ingest.addresses import Resolver, resolve
from functions.artifacts.ingest.pinned import PinnedBackend, Watch
from functions.artifacts.ingest.policy import IngestPolicy
from functions.artifacts.ingest.sources import HttpsSource
from functions.artifacts.ingest.upload import Upload
from functions.artifacts.signatures import SIGNATURE_MAX_BYTES, SIGNATURE_NAME

_README_MAX_BYTES = 1024 * 1024
_ABSENT = (403, 404, 410)  # object stores answer 403 for a missing object that may not be listed


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    name: str
    max_bytes: int
    optional: bool = False


def receive(
    place: HttpsSource, upload: Upload, policy: IngestPolicy, resolver: Resolver, clock: Callable[[], float]
) -> None:
    """Download the adapter's configuration and weights, and its README and signature if there are any, from `place`
    into `upload`. Raise StoreUnavailable if the host fails or takes too long."""
    addresses = resolve(place.host, place.port, resolver, policy.https_networks)
    watch = Watch(policy, clock)
    wanted = (
        _RemoteFile(CONFIG_NAME, CONFIG_MAX_BYTES),
        _RemoteFile(WEIGHTS_NAME, policy.limits.max_file_bytes),
        _RemoteFile("README.md", _README_MAX_BYTES, optional=True),
        _RemoteFile(SIGNATURE_NAME, SIGNATURE_MAX_BYTES, optional=True),
    )
    with httpcore.ConnectionPool(
        ssl_context=_ssl_context(policy), http2=False, retries=0, network_backend=PinnedBackend(addresses, watch)
    ) as pool:
        for file in wanted:
            try:
                _receive_file(pool, place, file, upload, watch)
            except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
                reason = str(error) or type(error).__name__
                raise StoreUnavailable(f"{place.authority} failed on {file.name}: {reason}") from error


def _receive_file(
    pool: httpcore.ConnectionPool, place: HttpsSource, file: _RemoteFile, upload: Upload, watch: Watch
) -> None:
    url = httpcore.URL(
        scheme=b"https", host=place.host.encode(), port=place.port, target=_target(place, file.name).encode()
    )
    headers = (("Host", place.authority), ("Accept-Encoding", "identity"), ("User-Agent", "shoal"), ("Accept", "*/*"))
    timeouts = {"connect": upload.policy.connect_timeout_s, "read": upload.policy.read_timeout_s}
    timeouts |= {"write": upload.policy.read_timeout_s, "pool": upload.policy.read_timeout_s}
    watch.request()
    with pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response:
        watch.answered()
        if file.optional and response.status in _ABSENT:
            return
        _check_status(response.status, place, file.name)
        announced_bytes = _check_headers(response, file)
        received_bytes = 0
        with upload.file(file.name, announced_bytes) as writer:
            for block in response.iter_stream():
                received_bytes += len(block)
                if received_bytes > file.max_bytes:
                    raise ArtifactRefused(f"{file.name} is over the limit of {file.max_bytes} bytes")
                writer.write(block)


def _target(place: HttpsSource, name: str) -> str:
    return f"{place.path.removesuffix('/')}/{name}"


def _check_status(status: int, place: HttpsSource, name: str) -> None:
    if status == 200:
        return
    where = f"{place.authority} answers {status} for {name}"
    error: type[ArtifactError] = ArtifactRefused
    advice = "the files must be readable without credentials"
    if 300 <= status < 400:
        advice = "redirects are not followed; name the place where the files are"
    elif status in (404, 410):
        error, advice = ArtifactMissing, "the URI names a folder that holds the adapter's files"
    elif status == 429 or status >= 500:
        error, advice = StoreUnavailable, "try again later"
    elif status not in (401, 403):
        advice = "200 is expected"
    raise error(f"{where}: {advice}")


def _check_headers(response: httpcore.Response, file: _RemoteFile) -> int | None:
    """Return the body size in bytes that the response announces, or None; raise ArtifactRefused for an encoded or too
    large body."""
    headers = {name.lower(): value for name, value in response.headers}
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        raise ArtifactRefused(
            f"{file.name} comes with Content-Encoding {encoding[:40].decode('latin-1')}; send it plain"
        )
    announced = headers.get(b"content-length")
    if announced is None:
        return None
    announced_bytes = int(announced)  # the protocol reader has rejected non-numbers
    if announced_bytes > file.max_bytes:
        raise ArtifactRefused(
            f"{file.name} is announced with {announced_bytes} bytes, over the limit of {file.max_bytes}"
        )
    return announced_bytes


def _ssl_context(policy: IngestPolicy) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=policy.https_ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
