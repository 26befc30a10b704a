"""`shoal logs --context`: the end of the logs of a process's pods, and new lines, through the API server.

A name is a process (gateway, registry, controller, bus), a pool, or a pod. `NAME/CONTAINER` selects another container
than the default one (an engine's pod has `kserve-container` and `shoal-agent`). With several pods, each line begins
with the pod's name.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from functions.api.kinds.inference_service import POOL_LABEL
from functions.cli.cluster.access import Body, Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.facts import Items
from functions.cli.cluster.finding import labels_of, name_of, namespace_of
from functions.cli.cluster.picture import PROCESSES
from functions.cli.refused import CommandRefused

_POLL_S = 1.0
_USUAL = (*PROCESSES, "valkey", "kserve-container")  # default containers


@dataclass(frozen=True, slots=True)
class Source:
    namespace: str
    pod: str
    container: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/log"


@dataclass(slots=True)
class Tail:
    """Log of one pod. Each request starts at the last second read; its repeated lines are dropped."""

    read: Callable[..., str | None]
    source: Source
    _since: str = ""
    _told: set[str] = field(default_factory=set)  # lines read in that second

    def first(self, lines: int) -> Iterator[str]:
        return self._new(self._fetch_log(tailLines=str(lines)))

    def more(self) -> Iterator[str]:
        return self._new(self._fetch_log(sinceTime=self._since) if self._since else self._fetch_log())

    def _fetch_log(self, **which: str) -> str:
        return self.read(self.source.path, container=self.source.container, timestamps="true", **which) or ""

    def _new(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            stamp, _, words = line.partition(" ")
            second = stamp.partition(".")[0].removesuffix("Z") + "Z"
            if line in self._told or (self._since and second < self._since):
                continue
            if second != self._since:
                self._since, self._told = second, set()
            self._told.add(line)
            yield words


def logs(choice: ClusterChoice, name: str, *, follow: bool, lines: int) -> None:
    cluster = KubeCluster(choice)
    sources = sources_of(name, pods_of(cluster))
    tails = [Tail(cluster.text, source) for source in sources]
    for tail in tails:
        _write(tail, tail.first(lines), several=len(tails) > 1)
    while follow:
        time.sleep(_POLL_S)
        for tail in tails:
            _write(tail, tail.more(), several=len(tails) > 1)


def pods_of(cluster: Cluster) -> Items:
    spaces = (cluster.choice.system, cluster.choice.models)
    return tuple(pod for space in spaces for pod in cluster.list(f"/api/v1/namespaces/{space}/pods"))


def sources_of(name: str, pods: Items) -> list[Source]:
    """Return the logs that a name selects. If there are none, fail with the known names."""
    name, _, container = name.partition("/")
    own = [pod for pod in pods if name in (name_of(pod), *_group_names(pod))]
    if not own:
        known = sorted({each for pod in pods for each in _group_names(pod)} | {name_of(pod) for pod in pods})
        raise CommandRefused(f"there is no process, pool or pod {name!r}; there are: {', '.join(known) or 'none'}")
    return [Source(namespace_of(pod), name_of(pod), _container(pod, container)) for pod in own]


def _group_names(pod: Body) -> list[str]:
    labels = labels_of(pod)
    process = labels.get("app.kubernetes.io/name", "")
    return [*([process] if process in PROCESSES else []), *([labels[POOL_LABEL]] if POOL_LABEL in labels else [])]


def _container(pod: Body, wanted: str) -> str:
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    if wanted and wanted not in names:
        raise CommandRefused(f"{name_of(pod)} has no container {wanted!r}; it has {', '.join(names)}")
    return wanted or next((name for name in names if name in _USUAL), names[0])


def _write(tail: Tail, lines: Iterator[str], *, several: bool) -> None:
    before = f"{tail.source.pod}  " if several else ""
    for line in lines:
        sys.stdout.write(f"{before}{line}\n")
    sys.stdout.flush()
