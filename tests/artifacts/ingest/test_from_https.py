"""Fetch from a real TLS server on loopback: sources that are accepted, refused, or never connected to."""

import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from functions.api.ids import TenantId
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused, StoreUnavailable
from functions.artifacts.ingest import Expectation, Ingest, IngestPolicy
from functions.artifacts.locations import manifest_key
from functions.artifacts.manifest import ADAPTER_LIMITS, hex_of
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.ingest.https_host import Answer, HttpsHost, endless, https_host, plain, status
from tests.artifacts.memory_store import MemoryStore
from tests.gateway.certificates import self_signed
from tests.ports import free_ports

pytestmark = pytest.mark.servers
EXPECT = Expectation(tenant=TenantId("acme"))
WEIGHTS = "/adapter/adapter_model.safetensors"
CONFIG = "/adapter/adapter_config.json"


class Resolving:
    """Resolver that returns the given lists one after the other and counts its calls."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def host(certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[HttpsHost]:
    """Serves a good adapter below /adapter."""
    with https_host(*certificate) as host:
        host.serve_files(make_adapter(tmp_path / "good"))
        yield host


@pytest.fixture
def policy(host: HttpsHost, certificate: tuple[Path, Path]) -> IngestPolicy:
    return IngestPolicy(
        https_hosts=(f"localhost:{host.port}",),
        https_networks=(ip_network("127.0.0.1/32"),),
        https_ca_file=certificate[0],
    )


@pytest.fixture
def ingest(policy: IngestPolicy, tmp_path: Path) -> Ingest:
    return Ingest(MemoryStore(), tmp_path / "staging", policy, resolver=Resolving(["127.0.0.1"]))


def uri(host: HttpsHost, path: str = "/adapter", name: str = "localhost") -> str:
    return f"https://{name}:{host.port}{path}"


def refused(ingest: Ingest, where: str, words: str, kind: type[ArtifactError] = ArtifactRefused) -> None:
    """Check that `where` is refused with `words` and leaves nothing behind."""
    with pytest.raises(kind, match=words):
        ingest.from_uri(where, EXPECT)
    assert ingest.store.objects == {}
    assert list(ingest.staging_root.iterdir()) == []


def test_a_folder_of_files_becomes_an_artifact(host: HttpsHost, ingest: Ingest) -> None:
    ingested = ingest.from_uri(uri(host), EXPECT)
    assert manifest_key(hex_of(ingested.digest)) in ingest.store.objects
    assert (ingested.facts.rank, ingested.signature) == (4, "unsigned")
    names = [path.rpartition("/")[2] for path, _, _ in host.requests]
    assert names == ["adapter_config.json", "adapter_model.safetensors", "README.md", "model.sig"]
    assert {request[1:] for request in host.requests} == {(f"localhost:{host.port}", "identity")}
    assert set(host.server_names) == {"localhost"}
    assert list(ingest.staging_root.iterdir()) == []


def test_files_that_need_not_be_there(host: HttpsHost, ingest: Ingest) -> None:
    host.answers["/adapter/README.md"] = status(403)
    assert ingest.from_uri(uri(host), EXPECT).total_bytes > 0


def test_a_missing_file_is_missing(host: HttpsHost, ingest: Ingest) -> None:
    del host.answers[WEIGHTS]
    refused(ingest, uri(host), "answers 404 for adapter_model.safetensors", ArtifactMissing)


def test_the_name_is_resolved_once_and_the_answer_pinned(
    certificate: tuple[Path, Path], host: HttpsHost, ingest: Ingest
) -> None:
    """A second resolution would return another server, so the name is resolved only once."""
    rebinding = Resolving(["127.0.0.1"], ["127.0.0.2"])
    with https_host(*certificate, address="127.0.0.2", port=host.port) as other:
        replace(ingest, resolver=rebinding).from_uri(uri(host), EXPECT)
        assert other.requests == []
    assert rebinding.asked == [("localhost", host.port)]
    assert len(host.requests) == 4


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.2"],
        ["127.0.0.1", "127.0.0.2"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.2"],
        ["64:ff9b::7f00:2"],
        ["fe80::1%lo"],
    ],
)
def test_name_with_an_internal_address_is_refused_without_connecting(
    certificate: tuple[Path, Path], host: HttpsHost, ingest: Ingest, answer: list[str]
) -> None:
    with https_host(*certificate, address="127.0.0.2", port=host.port) as inside:
        words = "which is not an address of the public internet"
        refused(replace(ingest, resolver=Resolving(answer)), uri(host), words)
        assert inside.server_names == host.server_names == []


def test_the_next_address_is_tried_when_one_does_not_answer(host: HttpsHost, ingest: Ingest) -> None:
    networks = (ip_network("127.0.0.0/8"),)
    policy = replace(ingest.policy, https_networks=networks)
    both = replace(ingest, policy=policy, resolver=Resolving(["127.0.0.9", "127.0.0.1"]))
    assert both.from_uri(uri(host), EXPECT).total_bytes > 0


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(certificate: tuple[Path, Path], host: HttpsHost, ingest: Ingest, code: int) -> None:
    with https_host(*certificate, address="127.0.0.2") as inside:
        host.answers[CONFIG] = status(code, Location=f"https://127.0.0.2:{inside.port}/adapter_config.json")
        refused(ingest, uri(host), f"answers {code} for adapter_config.json: redirects are not followed")
        assert inside.server_names == []


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (401, ArtifactRefused, "without credentials"),
        (403, ArtifactRefused, "without credentials"),
        (404, ArtifactMissing, "answers 404"),
        (206, ArtifactRefused, "200 is expected"),
        (204, ArtifactRefused, "200 is expected"),
        (429, StoreUnavailable, "try again later"),
        (500, StoreUnavailable, "try again later"),
        (503, StoreUnavailable, "try again later"),
    ],
)
def test_other_statuses(host: HttpsHost, ingest: Ingest, code: int, kind: type[ArtifactError], words: str) -> None:
    host.answers[CONFIG] = status(code)
    refused(ingest, uri(host), words, kind)


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        (WEIGHTS, plain(b"", Content_Length=str(5 * 1024**3)), f"announced with {5 * 1024**3} bytes, over the limit"),
        (CONFIG, plain(b" " * 300_000), "announced with 300000 bytes, over the limit of 262144"),
        (CONFIG, endless(chunked(b" " * 60_000)), "adapter_config.json is over the limit of 262144 bytes"),
        (WEIGHTS, endless(chunked(b"\0" * 60_000)), "adapter_model.safetensors is over the limit of 1000000 bytes"),
        ("/adapter/README.md", endless(chunked(b"x" * 60_000)), "README.md is over the limit of 1000000 bytes"),
        (WEIGHTS, plain(b"\x1f\x8b", Content_Encoding="gzip"), "comes with Content-Encoding gzip; send it plain"),
        (CONFIG, plain(b"{}", Content_Encoding="br, gzip"), "comes with Content-Encoding br, gzip"),
        (CONFIG, plain(b'{"r": NaN}'), "adapter_config.json"),
        (WEIGHTS, plain(b"PK\x03\x04 a pickle in a zip"), "adapter_model.safetensors"),
    ],
    ids=["announced", "announced-config", "endless-config", "endless", "endless-readme", "gzip", "br", "json", "zip"],
)
def test_invalid_bodies_are_refused(host: HttpsHost, ingest: Ingest, path: str, answer: Answer, words: str) -> None:
    limits = replace(ADAPTER_LIMITS, max_file_bytes=1_000_000)
    host.answers[path] = answer
    refused(replace(ingest, policy=replace(ingest.policy, limits=limits)), uri(host), words)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Length: 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000,
    ],
    ids=["two lengths", "negative", "float", "encoding", "no http", "header bomb"],
)
def test_answers_that_are_not_plain_http(host: HttpsHost, ingest: Ingest, head: bytes) -> None:
    host.answers[CONFIG] = endless(b"", head=head)
    refused(ingest, uri(host), "failed on adapter_config.json", StoreUnavailable)


def test_a_body_cut_short_is_no_file(host: HttpsHost, ingest: Ingest) -> None:
    def cut(handler: object) -> None:
        plain(b"half", Content_Length="1000")(handler)
        handler.close_connection = True

    host.answers[WEIGHTS] = cut
    refused(ingest, uri(host), "failed on adapter_model.safetensors", StoreUnavailable)


@dataclass
class Hurried:
    """Clock that runs ten times faster once the weights are requested: a limit of 20 s expires after two.

    Before that it runs normally, since successful requests may be slow on a shared machine.
    """

    host: HttpsHost
    _began_s: float | None = None

    def __call__(self) -> float:
        now_s = time.monotonic()
        if self._began_s is None and any(path == WEIGHTS for path, _, _ in self.host.requests):
            self._began_s = now_s
        return now_s if self._began_s is None else now_s + 9 * (now_s - self._began_s)


@pytest.mark.parametrize(
    ("answer", "read_timeout_s", "words"),
    [
        (endless(chunked(b"x"), every_s=0.05), 15.0, "delivers .* bytes/s; at least 32768 are expected"),
        (endless(b"1;" + b"y" * 20 + b"\r\nx\r\n", every_s=0.05), 15.0, "delivers .* bytes/s"),
        (endless(b"X-More: 1\r\n", every_s=0.05, head=b"HTTP/1.1 200 OK\r\n"), 15.0, "delivers|takes too long"),
        (endless(b"", every_s=0.05, head=b""), 3.0, "takes too long|timed out"),
    ],
    ids=["body", "chunk extensions", "headers", "silence"],
)
def test_dripping_host_is_abandoned(
    host: HttpsHost, ingest: Ingest, answer: Answer, read_timeout_s: float, words: str
) -> None:
    host.answers[WEIGHTS] = answer
    policy = replace(ingest.policy, read_timeout_s=read_timeout_s)
    refused(replace(ingest, policy=policy, clock=Hurried(host)), uri(host), words, StoreUnavailable)


def test_ingest_has_a_total_deadline(host: HttpsHost, ingest: Ingest) -> None:
    host.answers[WEIGHTS] = endless(chunked(b"x" * 50_000), every_s=0.05)
    policy = replace(ingest.policy, deadline_s=30.0)
    refused(
        replace(ingest, policy=policy, clock=Hurried(host)), uri(host), "takes too long|timed out", StoreUnavailable
    )


def test_a_certificate_that_we_do_not_trust(host: HttpsHost, ingest: Ingest) -> None:
    untrusting = replace(ingest, policy=replace(ingest.policy, https_ca_file=_system_authorities()))
    refused(untrusting, uri(host), "certificate verify failed", StoreUnavailable)
    assert host.requests == []


def test_a_certificate_for_another_name(host: HttpsHost, ingest: Ingest) -> None:
    policy = replace(ingest.policy, https_hosts=(f"models.example.test:{host.port}",))
    refused(replace(ingest, policy=policy), uri(host, name="models.example.test"), "certificate", StoreUnavailable)
    assert host.requests == []


def test_proxies_of_the_environment_are_not_asked(
    host: HttpsHost, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nowhere)
    assert ingest.from_uri(uri(host), EXPECT).total_bytes > 0


def test_refused_connection_is_reported(host: HttpsHost, ingest: Ingest) -> None:
    port = free_ports(1)[0]
    policy = replace(ingest.policy, https_hosts=(f"localhost:{port}",))
    refused(replace(ingest, policy=policy), f"https://localhost:{port}/adapter", "failed on", StoreUnavailable)


def _system_authorities() -> Path | None:
    """Return the system's CA file if it exists, else the default."""
    found: Callable[[], ssl.DefaultVerifyPaths] = ssl.get_default_verify_paths
    return Path(found().cafile) if found().cafile else None
