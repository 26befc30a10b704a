"""Pushes that git servers announce: this process fetches, and the leader, if it is another one, through the record.

A Service routes a delivery to any controller. One that does not lead also requests a reconcile by the annotation
`shoal.dev/reconcile-requested-at`, as an operator would, unless the controller is suspended.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from kubernetes.dynamic import DynamicClient

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import KubeError
from functions.controller.kubernetes.run.git_reconciler import GitReconciler
from functions.controller.kubernetes.run.loop import request_reconcile
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.controller.kubernetes.run.settings import ControllerStartFailed, KubernetesSettings
from functions.controller.kubernetes.run.webhook import SECRET_MIN_CHARS, Webhook
from functions.fleet.tasks import Supervised

_ORDER_S = 10.0

_log = logging.getLogger(__name__)


class AnyTime:
    """Guard of an API object that writes orders into the record. Anybody with the right may, also outside a term."""

    token = 0

    def check(self) -> None:
        return

    def remaining_s(self) -> float:
        return _ORDER_S


class Pushes:
    """Receiver of pushes, owned by one event loop."""

    def __init__(
        self,
        settings: KubernetesSettings,
        reconciler: GitReconciler,
        client: DynamicClient,
        *,
        leads: Callable[[], bool],
        metrics: ControllerMetrics,
        tasks: Supervised,
    ) -> None:
        self._settings = settings
        self._reconciler = reconciler
        self._client = client
        self._leads = leads
        self._metrics = metrics
        self._tasks = tasks
        self._asking = False  # a request to the leader is under way

    async def listen(self, port: int) -> asyncio.Server:
        """Start listening and return the server. Raises ControllerStartFailed if the secret is missing or too short, or
        the port is taken; OSError if the secret's file cannot be read."""
        settings, file = self._settings, self._settings.webhook_secret_file
        secret = file.read_text().strip() if file is not None else ""
        if len(secret) < SECRET_MIN_CHARS:
            raise ControllerStartFailed(f"{file} has no webhook secret of at least {SECRET_MIN_CHARS} characters")
        hook = Webhook(secret.encode(), settings.git_branch, self._pushed, self._metrics.count_delivery)
        try:
            server = await hook.listen(settings.host, port)
        except OSError as error:
            where = f"{settings.host}:{port}"
            message = f"cannot listen on {where}: {error.strerror}; free it or set SHOAL_CONTROLLER_WEBHOOK_PORT"
            raise ControllerStartFailed(message) from error
        _log.info("git servers tell of pushes on port %d", server.sockets[0].getsockname()[1])
        return server

    def _pushed(self) -> None:
        self._reconciler.fetch_soon()
        if not self._leads() and not self._asking:
            self._asking = True
            self._tasks.once("tell the leader of a push", self._ask_leader())

    async def _ask_leader(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            api = KubeApi(self._client, AnyTime())
            await asyncio.to_thread(request_reconcile, api, self._settings.namespace, f"{now} push")
        except KubeError as error:
            _log.warning("the leader could not be notified of a push, and fetches at its next poll: %s", error)
        finally:
            self._asking = False
