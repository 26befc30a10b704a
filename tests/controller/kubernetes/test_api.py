"""Requests to the API server: their content, time limits and rate."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client import Configuration

from functions.controller.kubernetes.api import PAGE_ITEMS, KubeApi
from functions.controller.kubernetes.errors import KindMissing, Retryable, Stale, Terminal
from functions.controller.kubernetes.objects import CONFIG_MAP, INFERENCE_SERVICE, Body, Kind
from functions.controller.kubernetes.run.client import connect
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Leader

real_server = pytest.mark.servers


@pytest.fixture
def api(space: Space) -> KubeApi:
    return KubeApi(space.client, Leader(), timeout_s=60.0)


def config_map(space: Space, name: str = "a", **data: str) -> Body:
    metadata = {"name": name, "namespace": space.models}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@real_server
class TestAgainstAServer:
    def test_a_missing_object_is_none(self, api: KubeApi, space: Space) -> None:
        assert api.get(CONFIG_MAP, space.models, "nobody") is None

    def test_unserved_kind_is_reported(self, api: KubeApi, space: Space) -> None:
        for kind in (Kind("policy/v9", "PodDisruptionBudget"), Kind("no.such/v1", "Thing"), Kind("v1", "Thing")):
            assert not api.serves(kind)
            with pytest.raises(KindMissing, match="is its CRD installed"):
                api.get(kind, space.models, "a")

    def test_applies_creates_and_deletes(self, api: KubeApi, space: Space) -> None:
        first = api.server_side_apply(config_map(space, x="1"))
        with pytest.raises(Stale):
            api.create(config_map(space, x="1"))
        with pytest.raises(Stale):
            api.delete(CONFIG_MAP, space.models, "a", uid="another")
        with pytest.raises(Stale):
            api.delete(CONFIG_MAP, space.models, "a", uid=first["metadata"]["uid"], resource_version="1")
        api.delete(CONFIG_MAP, space.models, "a", uid=first["metadata"]["uid"])
        assert api.counts.writes == 5

    def test_deleting_a_missing_object_is_no_error(self, api: KubeApi, space: Space) -> None:
        api.delete(CONFIG_MAP, space.models, "nobody", uid="x")

    def test_recreated_object_refuses_an_apply_for_the_old_one(self, api: KubeApi, space: Space) -> None:
        """resourceVersion alone is not enough: an old server creates the object again (seen on 1.20)."""
        old = api.create(config_map(space))["metadata"]
        space.client.request("delete", api.path(CONFIG_MAP, space.models, "a"), serializer=lambda _c, data: data)
        body = config_map(space, x="1")
        body["metadata"] |= {"uid": old["uid"], "resourceVersion": old["resourceVersion"]}
        with pytest.raises((Stale, Terminal)):
            api.server_side_apply(body)
        assert api.get(CONFIG_MAP, space.models, "a") is None

    def test_a_dry_run_changes_and_counts_nothing(self, api: KubeApi, space: Space) -> None:
        tried = api.server_side_apply(config_map(space, x="1"), dry_run=True)
        assert tried["data"] == {"x": "1"}
        assert api.get(CONFIG_MAP, space.models, "a") is None
        assert (api.counts.writes, api.counts.dry_runs) == (0, 1)

    def test_lists_all_pages_with_kind_and_version(self, api: KubeApi, space: Space) -> None:
        path = api.path(CONFIG_MAP, space.models)
        for number in range(PAGE_ITEMS + 3):
            space.client.request("post", path, body=config_map(space, f"n{number}"), serializer=lambda _c, data: data)
        before = api.counts.reads
        listing = api.list(CONFIG_MAP, space.models)
        assert api.counts.reads == before + 2
        assert len({item["metadata"]["name"] for item in listing.items}) == PAGE_ITEMS + 3
        assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "ConfigMap")}
        assert int(listing.resource_version) > 0

    def test_lists_by_label(self, api: KubeApi, space: Space) -> None:
        body = config_map(space)
        body["metadata"]["labels"] = {"x": "y"}
        api.server_side_apply(body)
        api.server_side_apply(config_map(space, "b"))
        assert [
            item["metadata"]["name"] for item in api.list(CONFIG_MAP, space.models, label_selector="x=y").items
        ] == ["a"]

    def test_writes_the_status_and_nothing_else(self, api: KubeApi, space: Space) -> None:
        service = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "metadata": {"name": "a", "namespace": space.models},
            "spec": {"predictor": {"model": {"modelFormat": {"name": "vLLM"}}}},
        }
        before = api.server_side_apply(service)["metadata"]
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        api.patch_status(INFERENCE_SERVICE, space.models, "a", status, resource_version=before["resourceVersion"])
        after = api.get(INFERENCE_SERVICE, space.models, "a")
        assert after is not None
        assert after["status"] == status
        assert after["metadata"]["generation"] == before["generation"]
        with pytest.raises(Stale):
            api.patch_status(INFERENCE_SERVICE, space.models, "a", status, resource_version=before["resourceVersion"])

    def test_missing_namespace_is_a_terminal_error(self, api: KubeApi, space: Space) -> None:
        body = config_map(space)
        body["metadata"]["namespace"] = "nowhere"
        with pytest.raises(Terminal, match='namespaces "nowhere" not found'):
            api.server_side_apply(body)

    def test_wrong_token_is_retryable(self, space: Space) -> None:
        api = KubeApi(space.server.client("wrong"), Leader())
        with pytest.raises(Retryable, match="Unauthorized"):
            api.get(CONFIG_MAP, space.models, "a")


@dataclass
class Stub:
    """An HTTP server with one answer for everything, which records its requests."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    cuts: bool = False
    asked: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def stub() -> Iterator[tuple[Stub, Any]]:
    state = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path == "/api/v1":
                self.send(200, b'{"resources": [{"kind": "ConfigMap", "name": "configmaps", "namespaced": true}]}')
                return
            state.asked.append(f"{self.command} {self.path}")
            if state.hangs:
                state.released.wait(60)
            if state.cuts or state.hangs:
                self.close_connection = True
                self.connection.close()
                return
            self.send(state.status, b'{"message": "so it is", "metadata": {}}')

        do_GET = do_PATCH = do_POST = do_DELETE = answer  # noqa: N815

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state, connect(Configuration(host=f"http://127.0.0.1:{server.server_address[1]}"))
    state.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


MAP: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "m"}}


@pytest.mark.parametrize(("status", "error"), [(429, Retryable), (503, Retryable), (500, Retryable)])
def test_client_library_does_not_resend_requests(stub: Any, status: int, error: type[Exception]) -> None:
    state, client = stub
    state.status, state.headers = status, {"Retry-After": "7"}
    api = KubeApi(client, Leader())
    for send in (lambda: api.server_side_apply(MAP), lambda: api.get(CONFIG_MAP, "m", "a"), lambda: api.create(MAP)):
        state.asked.clear()
        with pytest.raises(error) as raised:
            send()
        assert len(state.asked) == 1
        assert raised.value.after_s == 7.0  # type: ignore[attr-defined]


def test_a_connection_that_breaks_is_retryable_and_not_retried(stub: Any) -> None:
    state, client = stub
    state.cuts = True
    api = KubeApi(client, Leader())
    for send in (lambda: api.server_side_apply(MAP), lambda: api.list(CONFIG_MAP, "m")):
        state.asked.clear()
        with pytest.raises(Retryable):
            send()
        assert len(state.asked) == 1


def test_hanging_request_ends_at_its_time_limit(stub: Any) -> None:
    state, client = stub
    api = KubeApi(client, Leader(), timeout_s=1.0)
    assert api.serves(CONFIG_MAP)
    state.hangs = True
    with pytest.raises(Retryable):
        api.get(CONFIG_MAP, "m", "a")


def test_write_ends_before_the_term_does(stub: Any) -> None:
    class Soon(Leader):
        def remaining_s(self) -> float:
            return 2.5

    state, client = stub
    api = KubeApi(client, Soon(), timeout_s=20.0)
    api.server_side_apply(MAP)
    assert "timeout=2.500s" in state.asked[0]
    assert "fieldValidation=Strict" in state.asked[0]
    assert "fieldManager=shoal-controller" in state.asked[0]
    assert "force=false" in state.asked[0]


def test_refused_connection_is_retryable() -> None:
    api = KubeApi(connect(Configuration(host="http://127.0.0.1:1")), Leader())
    with pytest.raises(Retryable):
        api.get(CONFIG_MAP, "m", "a")
