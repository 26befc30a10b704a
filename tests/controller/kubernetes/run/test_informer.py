"""List and watch against the real API server: changes, restarts, 410 in several forms, and kinds installed later."""

import base64
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.dynamic.exceptions import ConflictError

from functions.controller.kubernetes.errors import Gone
from functions.controller.kubernetes.run.informer import Informer, InformerTiming, WatchedKind
from functions.controller.kubernetes.run.watch_client import Cut, WatchClient
from functions.decisions.health.backoff import BackoffPolicy
from tests.controller.kubernetes.crds import create_crds, delete_crd
from tests.controller.kubernetes.fixtures import Space, create
from tests.controller.kubernetes.run.waiting import until

pytestmark = pytest.mark.servers

QUICK = InformerTiming(page_objects=2, missing_kind_s=0.2, backoff=BackoffPolicy(base_s=0.05, cap_s=0.5))
InThread = Callable[[Callable[[], None], Callable[[], None]], None]


class Watching:
    """An informer of ConfigMaps and the number of its change notices."""

    def __init__(self, space: Space, timing: InformerTiming = QUICK, client: WatchClient | None = None) -> None:
        self.space = space
        self.news = 0
        watched = WatchedKind("v1", "ConfigMap", "configmaps", space.system, label_selector="shoal.dev/test=yes")
        self.informer = Informer(client or WatchClient(space.client.client), watched, self._count_news, timing)

    def _count_news(self) -> None:
        self.news += 1

    def has_told(self, times: int) -> bool:
        """Wait for this many notices; return False if there were more. The store changes right before its notice."""
        until(lambda: self.news >= times, f"news number {times}")
        return self.news == times

    def names(self) -> list[str]:
        return [one.name for one in self.informer.store.objects()]


def put(space: Space, name: str, value: str = "", **metadata: Any) -> dict[str, Any]:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"shoal.dev/test": "yes"}, **metadata},
        "data": {"value": value},
    }
    return create(space.client, f"/api/v1/namespaces/{space.system}/configmaps", body)


def change(space: Space, name: str, patch: dict[str, Any]) -> None:
    path = f"/api/v1/namespaces/{space.system}/configmaps/{name}"
    space.client.request("patch", path, body=patch, content_type="application/merge-patch+json")


def remove(space: Space, name: str) -> None:
    space.client.request("delete", f"/api/v1/namespaces/{space.system}/configmaps/{name}")


def test_informer_lists_in_pages_then_watches(plain_space: Space, in_thread: InThread) -> None:
    for number in range(5):
        put(plain_space, f"c{number}")
    put(plain_space, "other", labels={"shoal.dev/test": "no"})
    watching = Watching(plain_space)
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.store.synced)
    assert watching.names() == ["c0", "c1", "c2", "c3", "c4"]
    assert watching.has_told(1)
    put(plain_space, "c5")
    until(lambda: "c5" in watching.names())
    remove(plain_space, "c0")
    until(lambda: "c0" not in watching.names())
    change(plain_space, "c1", {"data": {"value": "new"}})
    one = watching.informer.store.get
    until(lambda: b'"new"' in (one("c1").document if one("c1") else b""))  # type: ignore[union-attr]
    assert watching.has_told(4)


def test_own_writes_are_not_news(plain_space: Space, in_thread: InThread) -> None:
    put(plain_space, "c0")
    watching = Watching(plain_space)
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.store.synced)
    change(plain_space, "c0", {"metadata": {"finalizers": ["shoal.dev/test"]}})
    until(lambda: watching.informer.store.objects()[0].finalizers == ("shoal.dev/test",))
    put(plain_space, "c1")
    assert watching.has_told(2), "the list, and what somebody else made after our own write"


@pytest.mark.soak
def test_a_restart_of_the_server_loses_nothing(plain_space: Space, in_thread: InThread) -> None:
    """A restarted server has no event history: it answers the old version with 410, and the informer lists again."""
    put(plain_space, "c0")
    watching = Watching(plain_space)
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.store.synced)
    plain_space.server.stop(kill=True)
    until(lambda: watching.informer.problem, "it is told that the server is away")
    assert watching.names() == ["c0"], "what is in hand stays"
    plain_space.server.start_again()
    remove(plain_space, "c0")
    put(plain_space, "c1")
    until(lambda: watching.names() == ["c1"])
    until(lambda: not watching.informer.problem)


class _Compacting(WatchClient):
    """Compacts etcd between the first and the second page of a list, which loses the list's version.

    Newer servers cache the lists of the last minutes, so the second page is requested as of the first version ever.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space.client.client)
        self.space = space
        self.pages = 0

    def page(self, path: str, query: dict[str, str], timeout_s: float) -> dict[str, Any]:
        self.pages += 1
        if self.pages == 2:
            put(self.space, "late")
            compact(self.space)
            query = {**query, "continue": _as_of_the_first(query["continue"])}
        return super().page(path, query, timeout_s)


def _as_of_the_first(token: str) -> str:
    """Return a continue token of a list as of resourceVersion 1."""
    fields = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return base64.urlsafe_b64encode(json.dumps({**fields, "rv": 1}).encode()).decode().rstrip("=")


def compact(space: Space) -> None:
    """Compact etcd so that it holds only the present."""
    revision = etcd(space, "kv/range", {"key": "AA==", "limit": "1"})["header"]["revision"]
    etcd(space, "kv/compaction", {"revision": revision, "physical": True})


def etcd(space: Space, call: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{space.server.etcd_url}/v3/{call}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_expired_page_restarts_the_list(plain_space: Space, in_thread: InThread) -> None:
    for number in range(4):
        put(plain_space, f"c{number}")
    client = _Compacting(plain_space)
    watching = Watching(plain_space, client=client)
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.store.synced)
    assert watching.names() == ["c0", "c1", "c2", "c3", "late"]
    assert client.pages == 2 + 3, "two of the list that expired, three of the next"


@pytest.mark.soak
def test_a_watch_from_a_version_that_is_compacted_away_is_gone(plain_space: Space) -> None:
    old = put(plain_space, "c0")["metadata"]["resourceVersion"]
    for number in range(1, 5):
        put(plain_space, f"c{number}")
    compact(plain_space)
    plain_space.server.stop()
    plain_space.server.start_again()
    watching = Watching(plain_space)
    client = WatchClient(plain_space.client.client)
    with pytest.raises(Gone):
        list(
            client.events(
                watching.informer.watched.path, {"resourceVersion": old, "timeoutSeconds": "20"}, 30, lambda _cut: None
            )
        )


class _Expiring(WatchClient):
    """The first watch starts normally and ends with the line that a server sends when it cannot continue."""

    def __init__(self, space: Space) -> None:
        super().__init__(space.client.client)
        self.expired = threading.Event()

    def events(
        self, path: str, query: dict[str, str], silence_s: float, opened: Callable[[Cut], None]
    ) -> Iterator[dict[str, Any]]:
        if not self.expired.is_set():
            self.expired.set()
            query = {**query, "resourceVersion": "1"}
        yield from super().events(path, query, silence_s, opened)


def test_an_expiry_inside_the_stream_lists_again(plain_space: Space, in_thread: InThread) -> None:
    put(plain_space, "c0")
    compact(plain_space)
    watching = Watching(plain_space, client=_Expiring(plain_space))
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.lists_total == 2)
    put(plain_space, "c1")
    until(lambda: watching.names() == ["c0", "c1"])
    assert watching.has_told(2), "a list that shows the same is no news"


def test_ended_watch_resumes_at_its_last_version(plain_space: Space, in_thread: InThread) -> None:
    """With watches of one second: many connections, one list."""
    watching = Watching(plain_space, InformerTiming(watch_s=1.0, shortest_watch_s=0.1))
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.store.synced)
    for number in range(30):
        put(plain_space, f"c{number:02}")
        if number % 10 == 0:
            threading.Event().wait(1.2)  # past the end of a watch
    until(lambda: len(watching.names()) == 30)
    assert watching.informer.lists_total == 1


def test_a_relist_is_made_when_it_is_due(plain_space: Space, in_thread: InThread) -> None:
    watching = Watching(plain_space, InformerTiming(watch_s=1.0, shortest_watch_s=0.1, relist_s=0.5))
    in_thread(watching.informer.run, watching.informer.stop)
    until(lambda: watching.informer.lists_total >= 3)
    assert watching.news == 1


WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.shoal.dev}
spec:
  group: test.shoal.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


def test_a_kind_that_is_installed_later_is_waited_for(plain_space: Space, in_thread: InThread, tmp_path: Path) -> None:
    (tmp_path / "widgets.yaml").write_text(WIDGETS)
    watched = WatchedKind("test.shoal.dev/v1", "Widget", "widgets", plain_space.system)
    informer = Informer(WatchClient(plain_space.client.client), watched, lambda: None, QUICK)
    in_thread(informer.run, informer.stop)
    until(lambda: "not installed" in informer.problem)
    assert "Widget (test.shoal.dev/v1)" in informer.problem
    assert not informer.store.synced
    create_crds(plain_space.client, tmp_path / "widgets.yaml")
    until(lambda: informer.store.synced and informer.problem == "")
    path = f"/apis/test.shoal.dev/v1/namespaces/{plain_space.system}/widgets"
    body = {"apiVersion": "test.shoal.dev/v1", "kind": "Widget", "metadata": {"name": "w"}}
    create(plain_space.client, path, body)
    until(lambda: informer.store.get("w"))
    delete_crd(plain_space.client, "widgets.test.shoal.dev")
    until(lambda: not informer.store.synced, "a kind that is taken away is unknown, not empty")


def test_a_name_that_exists_is_refused_so_that_the_helpers_here_can_fail(plain_space: Space) -> None:
    put(plain_space, "c0")
    with pytest.raises(ConflictError):
        put(plain_space, "c0")
