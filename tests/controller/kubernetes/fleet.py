"""Configurations of pools for the Kubernetes target, and an applier with KServe's double, for tests to drive."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kubernetes.dynamic.exceptions import NotFoundError

from functions.api.loader import Loaded, load_texts
from functions.controller.kubernetes.api import KubeApi, WriteGuard
from functions.controller.kubernetes.applier import Applier, ApplierSettings
from functions.controller.kubernetes.inventory import RECORD_NAME, RecordStore
from functions.controller.kubernetes.objects import CONFIG_MAP, INFERENCE_SERVICE, Body, Kind
from functions.controller.kubernetes.outcome import ApplyOutcome
from functions.controller.kubernetes.render import Desired, render
from tests.controller.kubernetes.api_server import budget_kind
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.kserve_double import KServe

_revisions = itertools.count(1)


def pool(
    name: str,
    *,
    args: str = "--enable-lora",
    replicas: int | None = 2,
    annotations: str = "",
    more: str = "",
) -> str:
    """YAML of one InferenceService with a pool."""
    least = f"minReplicas: {replicas}, maxReplicas: 8, " if replicas is not None else "maxReplicas: 8, "
    extra = f", {annotations}" if annotations else ""
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  labels: {{shoal.dev/pool: {name}}}
  annotations: {{serving.kserve.io/deploymentMode: Standard, serving.kserve.io/autoscalerClass: none{extra}}}
spec:
  predictor:
    {{{least}{more}model: {{modelFormat: {{name: vLLM}}, storageUri: "pvc://shoal-models/{name}",
    args: [--max-model-len=2048, {args}]}}}}
"""


def autoscaling(pool_name: str, least: int = 2, most: int = 8) -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {pool_name}}}
spec: {{pool: {pool_name}, replicas: {{min: {least}, max: {most}}}}}
"""


def load(*documents: str) -> Loaded:
    return load_texts((f"{number}.yaml", document.encode()) for number, document in enumerate(documents))


@dataclass
class Leader:
    """A guard that always leads, with one token."""

    token: int = 1

    def check(self) -> None:
        return None

    def remaining_s(self) -> float:
        return 60.0


@dataclass
class Clock:
    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Fleet:
    """One test's cluster: an applier, KServe's double, and helpers that read the state."""

    space: Space
    guard: WriteGuard = field(default_factory=Leader)
    settings: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    make_client: Callable[[], Any] | None = None  # in place of the administrator's client

    def __post_init__(self) -> None:
        self.kserve = KServe(self.space.client, self.space.models)
        self.budget_kind = budget_kind(self.space.client)
        self.restart()

    def restart(self, guard: WriteGuard | None = None) -> None:
        """Replace the controller, as after a crash: only the cluster's content survives."""
        self.guard = guard or self.guard
        client = self.make_client() if self.make_client is not None else self.space.client
        self.api = KubeApi(client, self.guard, timeout_s=60.0)
        settings = ApplierSettings(models_namespace=self.space.models, **self.settings)
        store = RecordStore(self.api, self.space.system)
        self.store = store
        self.applier = Applier(self.api, store, settings, unix_s=self.clock, monotonic_s=self.clock)

    def desired(self, *documents: str, revision: str = "") -> Desired:
        revision = revision or f"main@{next(_revisions):040x}"
        rendered = render(load(*documents), revision, namespace=self.space.models, budget_kind=self.budget_kind)
        assert rendered.problems == ()
        return rendered.desired

    def push(self, *documents: str) -> ApplyOutcome:
        """Reconcile a new revision."""
        return self.applier.reconcile(self.desired(*documents))

    def converge(self, desired: Desired, rounds: int = 20) -> ApplyOutcome:
        """Reconcile, with passes of KServe in between, until everything is applied and healthy."""
        for _ in range(rounds):
            outcome = self.applier.reconcile(desired)
            if outcome.is_healthy and not outcome.written and not outcome.pruned:
                return outcome
            self.kserve.settle()
        raise AssertionError(f"not converged after {rounds} rounds: {outcome}")

    def service(self, name: str) -> Body | None:
        return self._admin().get(INFERENCE_SERVICE, self.space.models, name)

    def budget(self, name: str) -> Body | None:
        return self._admin().get(self.budget_kind, self.space.models, name)

    def record(self) -> Body | None:
        return self._admin().get(CONFIG_MAP, self.space.system, RECORD_NAME)

    def replicas(self, name: str) -> Any:
        service = self.service(name)
        assert service is not None
        return service["spec"]["predictor"].get("minReplicas")

    def edit(self, name: str, patch: Body, *, manager: str = "kubectl-edit", kind: Kind = INFERENCE_SERVICE) -> None:
        """Change the object as `kubectl edit` does."""
        api = self._admin()
        api._client.request(
            "patch",
            api.path(kind, self.space.models, name),
            body=patch,
            content_type="application/merge-patch+json",
            field_manager=manager,
            serializer=lambda _client, data: data,
        )

    def delete(self, name: str) -> None:
        """Delete the service in the background, as a person would: it and its Deployment disappear at once."""
        client, path = self.space.client, self._admin().path(INFERENCE_SERVICE, self.space.models, name)
        client.request("delete", path, serializer=lambda _client, data: data)
        child = f"/apis/apps/v1/namespaces/{self.space.models}/deployments/{name}-predictor"
        with suppress(NotFoundError):
            client.request("delete", child, serializer=lambda _client, data: data)

    def apply_as(self, manager: str, body: Body, *, force: bool = False) -> Body:
        """Apply server-side as another field manager."""
        return self._admin().server_side_apply(body, manager=manager, force=force)

    def seen_since(self, version: str, last: Body) -> Iterator[Body]:
        """Return each state of a service after a resourceVersion, up to and including `last`, from a watch."""
        resource = f"{self._admin().path(INFERENCE_SERVICE, self.space.models)}"
        query = [("watch", "true"), ("resourceVersion", version), ("timeoutSeconds", "60")]
        response = self.space.client.request(
            "get", resource, query_params=query, serialize=False, _request_timeout=(30, 120)
        )
        buffered = b""
        try:
            for part in response.stream(amt=None, decode_content=True):
                *lines, buffered = (buffered + part).split(b"\n")
                for event in map(json.loads, lines):
                    if event["object"]["metadata"]["name"] == last["metadata"]["name"]:
                        yield event["object"]
                        if event["object"]["metadata"]["resourceVersion"] == last["metadata"]["resourceVersion"]:
                            return
        finally:
            response.close()

    def annotate_record(self, name: str, value: str) -> None:
        self.edit_record({"metadata": {"annotations": {name: value}}})

    def edit_record(self, patch: Body) -> None:
        """Change the controller's own ConfigMap, as a person would."""
        api = self._admin()
        api._client.request(
            "patch",
            api.path(CONFIG_MAP, self.space.system, RECORD_NAME),
            body=patch,
            content_type="application/merge-patch+json",
            field_manager="kubectl",
            serializer=lambda _client, data: data,
        )

    def _admin(self) -> KubeApi:
        return KubeApi(self.space.client, Leader(token=10**9), timeout_s=60.0)
