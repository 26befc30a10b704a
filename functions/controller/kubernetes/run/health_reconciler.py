"""Health of one term on a cluster: replace slow pods, taint nodes with failed accelerators, report nodes.

A pass runs every few seconds while this process leads, and immediately when a node's state changes:

    1  report nodes with replicas that are not ready to the registry, and by it to every gateway
    2  taint the node of a replica with a failed accelerator: `shoal.dev/accelerator-error:NoSchedule`, the error as an
       annotation; then delete its pod, so that another node gets it
    3  remove the taint from a node that somebody has annotated with `shoal.dev/accelerator-cleared`
    4  delete the pod of a replica that is slow by itself

A deleted pod drains first: the engine's preStop hook calls the agent, which notifies the fleet and waits until no
request is left. At most a quarter of the nodes with replicas is tainted (`may_taint`): an error on many nodes is more
likely the driver's than the devices'. A holder of the agents' secret can report it for any replica. So a report
counts only if the API server has that pod on that node, and one pod of a pool at a time is deleted for it. Each
action is recorded as an Event on the pool's InferenceService. While suspended, nodes are only reported.

Neighbours: `functions.controller.health.watch` decides, `node_watch` has the nodes.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from functions.controller.autoscaling.clients import PoolsClient
from functions.controller.health.notifier import VerdictNotifier
from functions.controller.health.watch import FaultyReplica, FleetHealth, Judgement, SlowReplica
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict, Gone, KindMissing, LeadershipLost, Retryable, Terminal
from functions.controller.kubernetes.objects import (
    INFERENCE_SERVICE,
    Body,
    Kind,
    is_being_deleted,
    mapping_at,
    uid_of,
    version_of,
)
from functions.controller.kubernetes.run.event_notes import EventNote, Regarding
from functions.controller.kubernetes.run.node_watch import CLEARED_ANNOTATION, NODE, TAINT, NodeFacts, taints_of
from functions.decisions.health.accelerator_errors import may_taint
from functions.fleet.pool_board import PoolReport
from functions.fleet.verdicts import MAX_NODES, Verdicts

POD = Kind("v1", "Pod")
POOL_LABEL = "shoal.dev/pool"
EFFECT = "NoSchedule"
LOOK_EVERY_S = 3.0
_KUBE_ERRORS = (Retryable, Conflict, Terminal, KindMissing, Gone)  # not LeadershipLost: that ends the term

_log = logging.getLogger(__name__)


class HealthReconciler:
    """Health reconciler of one term, owned by one event loop."""

    def __init__(
        self,
        models_namespace: str,
        registry: PoolsClient,
        health: FleetHealth,
        *,
        report: Callable[[], PoolReport | None],
        nodes: Callable[[], Mapping[str, NodeFacts]],
        changed: asyncio.Event,
        is_suspended: Callable[[], bool],
        on_notes: Callable[[Iterable[EventNote]], None],
    ) -> None:
        """`changed` is set when a node's state changes."""
        self._namespace = models_namespace
        self._registry = registry
        self._health = health
        self._report = report
        self._nodes = nodes
        self._changed = changed
        self._is_suspended = is_suspended
        self._on_notes = on_notes
        self._notifier = VerdictNotifier()
        self._going: dict[str, tuple[str, str]] = {}  # by pool: the pod deleted last for its accelerator
        self._said: dict[str, str] = {}  # the last trouble of each subject, logged once

    async def run(self, api: KubeApi) -> None:
        """Run passes, every LOOK_EVERY_S and when a node changes, until the term ends with LeadershipLost, which is
        raised. Other errors are logged."""
        while True:
            self._changed.clear()
            try:
                await self.step(api)
            except LeadershipLost:
                raise
            except Exception:  # a failure here must not end the term
                _log.exception("unexpected error in a pass over the fleet's health")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()

    async def step(self, api: KubeApi) -> None:
        report, nodes = self._report(), self._nodes()
        used = {each.node for each in report.replicas if each.node} if report is not None else set()
        judged = self._health.step(report)
        await self._report_verdicts(judged, nodes, used)
        if self._is_suspended():
            return
        await self._remove_faulty(api, judged.faulty, nodes, used)
        faulty_nodes = {each.node for each in judged.faulty}
        for name, facts in sorted(nodes.items()):
            if facts.is_tainted and facts.is_cleared and name not in faulty_nodes:
                await self._try_action(f"node {name}", _clear, api, name)
        for slow in judged.restart:
            await self._replace(api, slow)

    # inside

    async def _report_verdicts(self, judged: Judgement, nodes: Mapping[str, NodeFacts], used: set[str]) -> None:
        troubled = {name: facts.trouble for name, facts in sorted(nodes.items()) if facts.trouble and name in used}
        verdicts = Verdicts(dict(list(troubled.items())[:MAX_NODES]), judged.troubles, dict(self._health.slow_restarts))
        await self._notifier.notify(self._registry, verdicts)

    async def _remove_faulty(
        self, api: KubeApi, faulty: Iterable[FaultyReplica], nodes: Mapping[str, NodeFacts], used: set[str]
    ) -> None:
        tainted = {name for name, facts in nodes.items() if facts.is_tainted}
        for each in faulty:
            subject = f"{each.replica_id}'s node"
            if not each.node:
                self._log_trouble(subject, f"{each.replica_id} reports no node, so no node can be tainted")
                continue
            if not await self._is_on_its_node(api, each, subject):
                continue
            if each.node not in tainted:
                if not may_taint(len(used), len(tainted & used)):
                    share = f"{len(tainted & used)} of {len(used)} nodes are tainted already, the limit"
                    self._log_trouble(subject, f"{each.node} is not tainted: {share}")
                    continue
                if not await self._try_action(f"node {each.node}", _taint, api, each.node, each.fault):
                    continue
                tainted.add(each.node)
                await self._note(api, each.pool, "AcceleratorError", "Taint", f"{each.replica_id}: {each.fault}")
            await self._try_action(f"pod {each.replica_id}", self._delete_alone, api, each)

    async def _is_on_its_node(self, api: KubeApi, told: FaultyReplica, subject: str) -> bool:
        """Return True if the API server has a pod of that name and pool on the reported node; otherwise, or if the
        request failed, log why and return False."""
        try:
            pod = await asyncio.to_thread(api.get, POD, self._namespace, told.replica_id)
        except _KUBE_ERRORS as error:
            self._log_trouble(subject, f"pod {told.replica_id}: {error}")
            return False
        if pod is None or _pool_of(pod) != told.pool or mapping_at(pod, "spec").get("nodeName") != told.node:
            self._log_trouble(
                subject, f"there is no pod {told.replica_id} of {told.pool} on {told.node}; its report is ignored"
            )
            return False
        return True

    async def _replace(self, api: KubeApi, slow: SlowReplica) -> None:
        if await self._try_action(f"pod {slow.replica_id}", self._delete, api, slow.pool, slow.replica_id):
            self._health.mark_restarting(slow)
            await self._note(api, slow.pool, "SlowReplica", "Restart", f"{slow.replica_id} is replaced: {slow.why}")

    def _delete(self, api: KubeApi, pool: str, name: str) -> str:
        """Delete the pod (it drains) unless it is already being deleted, and return its uid. Do nothing and return ""
        if it is missing or of another pool. Blocks."""
        pod = api.get(POD, self._namespace, name)
        if pod is None or _pool_of(pod) != pool:
            return ""
        if not is_being_deleted(pod):
            api.delete(POD, self._namespace, name, uid=uid_of(pod))
            _log.warning("pod %s of %s is deleted; it drains and is replaced", name, pool)
        return uid_of(pod)

    def _delete_alone(self, api: KubeApi, told: FaultyReplica) -> None:
        """Delete the pod unless another one of its pool is still being deleted for its accelerator. Blocks."""
        name, uid = self._going.get(told.pool, ("", ""))
        pod = api.get(POD, self._namespace, name) if name else None
        if pod is None or uid_of(pod) != uid:
            self._going[told.pool] = told.replica_id, self._delete(api, told.pool, told.replica_id)

    async def _note(self, api: KubeApi, pool: str, reason: str, action: str, words: str) -> None:
        with contextlib.suppress(*_KUBE_ERRORS):  # the log has it
            selector = f"{POOL_LABEL}={pool}"
            found = await asyncio.to_thread(api.list, INFERENCE_SERVICE, self._namespace, label_selector=selector)
            live = [each for each in found.items if not is_being_deleted(each)]
            if live:
                regarding = Regarding.from_live(INFERENCE_SERVICE, live[0])
                self._on_notes([EventNote(regarding, "Warning", reason, action, words)])

    async def _try_action(self, subject: str, act: Callable[..., object], *arguments: object) -> bool:
        """Return True if the action succeeded. A failure is logged once and retried by the next pass."""
        try:
            await asyncio.to_thread(act, *arguments)
        except _KUBE_ERRORS as error:
            self._log_trouble(subject, f"{subject}: {error}")
            return False
        self._log_trouble(subject, "")
        return True

    def _log_trouble(self, subject: str, trouble: str) -> None:
        if trouble and self._said.get(subject) != trouble:
            _log.warning("%s", trouble)
        if trouble:
            self._said[subject] = trouble
        else:
            self._said.pop(subject, None)


def _pool_of(pod: Body) -> object:
    return mapping_at(pod, "metadata", "labels").get(POOL_LABEL)


def _taint(api: KubeApi, name: str, fault: str) -> None:
    """Taint the node and annotate the fault, unless it is missing or tainted already. Blocks."""
    node = api.get(NODE, "", name)
    if node is None or any(each.get("key") == TAINT for each in taints_of(node)):
        return
    ours: dict[str, object] = {"key": TAINT, "effect": EFFECT}
    _patch(api, node, [*taints_of(node), ours], {TAINT: fault, CLEARED_ANNOTATION: None})
    _log.error("node %s is tainted %s:%s: %s", name, TAINT, EFFECT, fault)


def _clear(api: KubeApi, name: str) -> None:
    node = api.get(NODE, "", name)
    if node is None:
        return
    others = [each for each in taints_of(node) if each.get("key") != TAINT]
    _patch(api, node, others, {TAINT: None, CLEARED_ANNOTATION: None})
    _log.warning("node %s: its accelerators are marked as cleared, the taint is removed", name)


def _patch(api: KubeApi, node: Body, taints: list[dict[str, object]], annotations: Mapping[str, str | None]) -> None:
    """Patch the node as it was read. A merge replaces all taints, so the version guards taints of others."""
    head = {"resourceVersion": version_of(node), "annotations": dict(annotations)}
    patch: Body = {"metadata": head, "spec": {"taints": taints or None}}
    api.merge_patch(NODE, "", node["metadata"]["name"], patch)
