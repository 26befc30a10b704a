"""`shoal drain`: stop one replica of a cluster without losing a request.

    1  the command orders the agent, through the API server, to drain; gateways see it in the next heartbeat
    2  running requests end
    3  the pod is evicted, which respects the pool's disruption budget; its Deployment creates another one

If that does not succeed (timeout, disruption budget, Ctrl-C), the drain is cancelled and the replica accepts work
again.
"""

import contextlib
import time
from collections.abc import Iterator

import httpx

from functions.api.kinds.inference_service import POOL_LABEL
from functions.cli.cluster.access import Body, ClusterChoice, KubeCluster, ServerBusy
from functions.cli.cluster.finding import labels_of, name_of
from functions.cli.cluster.tunnel import Tunnel
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local.prepare.steps import ReportedStep

_AGENT = "shoal-agent"
_PORT = 8480  # the agent's port in the ServingRuntime
_LOOK_S = 5.0
_ANSWER_S = 30.0


def drain(choice: ClusterChoice, replica: str, timeout_s: float) -> None:
    cluster = KubeCluster(choice)
    pod = replica_pod(cluster, replica)
    deadline_s = time.monotonic() + timeout_s
    tunnel = Tunnel(cluster, replica, agent_port(pod), choice.models)
    with (
        contextlib.closing(tunnel),
        httpx.Client(base_url=tunnel.url, timeout=_ANSWER_S, trust_env=False) as agent,
        TerminalReporter(make_console()).step(f"Draining {replica}") as step,
        _called_off_unless_done(agent),
    ):
        _wait_empty(agent, deadline_s, step)
        _evict(cluster, replica, deadline_s, step)
        step.note("no request is left; its pod is evicted, and another one is created")


def replica_pod(cluster: KubeCluster, replica: str) -> Body:
    models = cluster.choice.models
    pods = [each for each in cluster.list(f"/api/v1/namespaces/{models}/pods") if POOL_LABEL in labels_of(each)]
    found = next((pod for pod in pods if name_of(pod) == replica), None)
    if found is None:
        known = ", ".join(sorted(map(name_of, pods))) or "none"
        raise CommandRefused(f"there is no replica {replica!r} in {models}; replicas: {known}")
    return found


def agent_port(pod: Body) -> int:
    agents = [each for each in pod["spec"]["containers"] if each["name"] == _AGENT]
    ports = [port for agent in agents for port in agent.get("ports") or () if port.get("name") == "agent"]
    return int(ports[0]["containerPort"]) if ports else _PORT


@contextlib.contextmanager
def _called_off_unless_done(agent: httpx.Client) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(httpx.HTTPError):  # the replica stays drained; the original error is raised
            agent.delete("/drain")
        raise


def _wait_empty(agent: httpx.Client, deadline_s: float, step: ReportedStep) -> None:
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            answer = agent.post("/drain", params={"wait_s": min(_LOOK_S, left_s)})
            told = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise CommandRefused(f"its agent does not answer: {error or type(error).__name__}") from error
        if answer.status_code not in (200, 202):
            raise CommandRefused(f"its agent refuses to drain: {told}")
        if told["drained"]:
            return
        if not left_s:
            raise CommandRefused(
                f"{told['outstanding']} requests are still running, so it accepts work again; --timeout waits longer"
            )
        step.update(f"{told['outstanding']} requests are left")


def _evict(cluster: KubeCluster, replica: str, deadline_s: float, step: ReportedStep) -> None:
    models = cluster.choice.models
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": replica, "namespace": models}}
    while True:
        try:
            cluster.create(f"/api/v1/namespaces/{models}/pods/{replica}/eviction", body)
        except ServerBusy as error:
            if time.monotonic() > deadline_s:
                raise CommandRefused(f"its pod may not be evicted now, so it accepts work again: {error}") from error
            step.update(f"its pod may not be evicted yet: {error}")
            time.sleep(_LOOK_S)
        else:
            return
