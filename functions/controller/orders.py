"""Orders of the control channel and their answers. Messages are returned as people see them.

{"do": "status"} | {"do": "stop"} | {"do": "restart", "name": …} | {"do": "configure", "engine": …, "replicas": …}
{"do": "clear", "name": …}      clear the error of a replica's accelerator after an operator has checked it
{"do": "suspend", "reason": …} | {"do": "resume"} | {"do": "reconcile"}
{"do": "review", "updates": …, "options": …, "objects": …}      from the repository's pre-receive hook
{"do": "follow", "updates": …, "wait_s": …}                     from its post-receive hook
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from functions.controller.autoscaling.local import LocalScaling
from functions.controller.gitops.following import BranchFollower
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.review import PushMalformed, Reviewer, push_from, verdict_document
from functions.controller.gitops.words import printable
from functions.controller.health.local import LocalHealth, NoFault
from functions.controller.local.control import OrderRefused
from functions.controller.local.layout import StateLayout
from functions.controller.local.operations import NoSuchProcess, NotReadyAgain, Operations
from functions.controller.local.pools import Target, write_target
from functions.controller.local.probes import GatewayEpoch
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.supervisor import Supervisor
from functions.controller.rollouts.driver import RolloutDriver, rollouts_in_words
from functions.controller.snapshot.publication import LocalClients, Publication
from functions.controller.snapshot.publish import PublishOutcome
from functions.controller.snapshot.registry_client import LastHeartbeat
from functions.controller.status import describe
from functions.fleet.tasks import Supervised

# Outcome of a push in a few lines for the pusher. Pure.


SHOWN_PROBLEMS = 5


def follow_words(
    following: BranchFollower, publication: PublishOutcome, *, live: bool, epoch: int, took_s: float
) -> list[str]:
    """Return the lines that the pusher sees. `live`: the gateway has this revision's snapshot, except held channels,
    `took_s` after the push was accepted."""
    if following.suspended:
        return ["accepted; the fleet is suspended, so nothing changes until `shoal resume`"]
    held = publication.held[:SHOWN_PROBLEMS]
    if not live:
        waiting = [f"  {flip}" for flip in held]
        return ["accepted and being applied: `shoal status` shows the progress", *waiting]
    desired = following.desired
    lines = [f"live on the gateway as epoch {epoch}, {took_s * 1000:.0f} ms after the push"]
    if desired is not None and not desired.converged:
        lines.append("processes are still changing: `shoal status` shows the progress")
    problems = publication.problems[:SHOWN_PROBLEMS]
    return [*lines, *(f"but {words}" for words in (*held, *problems))]


FOLLOW_MAX_S = 30.0
FOLLOW_POLL_S = 0.05  # a publication with held channels does not notify the follower
ASKED_FOR_S = 3.0  # limit for `status`, which waiting people request repeatedly
REASON_MAX_CHARS = 300


class Orders:
    """Owned by one event loop."""

    def __init__(
        self,
        *,
        layout: StateLayout,
        following: BranchFollower,
        reconciler: Reconciler,
        supervisor: Supervisor,
        operations: Operations,
        publication: Publication,
        source: LocalClients,
        driver: RolloutDriver,
        scaling: LocalScaling,
        health: LocalHealth,
        reviewer: Reviewer,
        tasks: Supervised,
        stopped: asyncio.Event,
    ) -> None:
        self._layout = layout
        self._following = following
        self._reconciler = reconciler
        self._supervisor = supervisor
        self._operations = operations
        self._publication = publication
        self._source = source
        self._driver = driver
        self._scaling = scaling
        self._health = health
        self._reviewer = reviewer
        self._tasks = tasks
        self._stopped = stopped
        self._gateway = GatewayEpoch(lambda: reconciler.context().ports.gateway_metrics)
        self._operation = ""  # running operation, or the result of the last one
        self._busy = False

    async def close(self) -> None:
        await self._gateway.close()

    async def handle(self, order: dict[str, Any]) -> Any:
        known: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "status": self._status,
            "stop": self._begin_stop,
            "restart": self._begin_restart,
            "clear": self._clear,
            "configure": self._configure,
            "suspend": self._suspend,
            "resume": self._resume,
            "reconcile": self._reconcile,
            "review": self._review,
            "follow": self._follow,
        }
        do = known.get(str(order.get("do")))
        if do is None:
            raise OrderRefused(f"unknown order; known orders: {', '.join(known)}")
        return await do(order)

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return describe(
            pid=os.getpid(),
            layout=self._layout,
            supervisor=self._supervisor,
            wanted=self._reconciler.wanted,
            following=self._following,
            publication=self._publication,
            rollouts=rollouts_in_words(self._source.rows, self._driver, self._publication.last.rollouts),
            replicas=await self._replicas(),
            scaling=self._scaling.pool_sizes(),
            gateway_epoch=await self._gateway.read(),
            operation=self._operation,
        )

    async def _replicas(self) -> tuple[LastHeartbeat, ...] | str:
        try:
            async with asyncio.timeout(ASKED_FOR_S):
                return await self._source.replicas()
        except TimeoutError:
            return f"the registry does not answer within {ASKED_FOR_S:.0f} s"

    # -- the fleet ----------------------------------------------------------------------------------------------------

    async def _begin_restart(self, order: dict[str, Any]) -> str:
        name = str(order.get("name"))
        if self._busy:
            raise OrderRefused(f"busy: {self._operation}; try again when that is done")
        try:
            names = self._operations.process_names(name)
        except NoSuchProcess as error:
            raise OrderRefused(str(error)) from error
        self._busy = True
        self._operation = f"restarting {', '.join(names)}"
        self._tasks.once(self._operation, self._restart(name))
        return self._operation

    async def _restart(self, name: str) -> None:
        try:
            self._operation = await self._operations.restart(name)
        except (NoSuchProcess, NotReadyAgain) as error:
            self._operation = f"failed: {error}"
        finally:
            self._busy = False

    async def _clear(self, order: dict[str, Any]) -> str:
        try:
            return self._health.clear_fault(str(order.get("name")))
        except NoFault as error:
            raise OrderRefused(str(error)) from error

    async def _configure(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            asked = {"engine": order.get("engine"), "replicas": order.get("replicas")}
            target = msgspec.convert(asked, Target)
        except msgspec.ValidationError as error:
            raise OrderRefused(f"invalid target: {error}") from error
        if self._following.suspended and target != self._reconciler.wanted.target:
            raise OrderRefused("the fleet is suspended: nothing changes until `shoal resume`")
        write_target(self._layout.target_file, target)
        self._reconciler.retarget(target)
        self._following.reconcile()
        return asked

    async def _begin_stop(self, _: dict[str, Any]) -> str:
        self._tasks.once("stop", self._stop())
        return "stopping"

    async def _stop(self) -> None:
        self._operation, self._busy = "stopping everything", True
        await self._operations.stop_all()
        self._supervisor.record()
        self._stopped.set()

    # -- the branch ---------------------------------------------------------------------------------------------------

    async def _suspend(self, order: dict[str, Any]) -> str:
        self._following.suspend(printable(str(order.get("reason", "")), REASON_MAX_CHARS))
        return "suspended"

    async def _resume(self, _: dict[str, Any]) -> str:
        if not self._following.suspended:
            raise OrderRefused("the fleet is not suspended")
        self._following.resume()
        return "resumed"

    async def _reconcile(self, _: dict[str, Any]) -> str:
        if self._following.suspended:
            raise OrderRefused("the fleet is suspended: run `shoal resume` first")
        self._following.reconcile()
        return "reconciling"

    async def _review(self, order: dict[str, Any]) -> dict[str, Any]:
        desired = self._following.desired
        try:
            push = push_from(order)
            verdict = await asyncio.to_thread(self._reviewer.review, push, desired.loaded if desired else None)
        except (PushMalformed, GitFailed) as error:
            raise OrderRefused(f"refused: the push could not be judged: {error}") from error
        if verdict.empty_is_meant:
            self._following.allow_empty(verdict.empty_is_meant)
        return verdict_document(verdict)

    async def _follow(self, order: dict[str, Any]) -> dict[str, Any]:
        """Read the moved branch now, and return lines for the pusher once the gateway has it or `wait_s` of the order
        is over; no lines if the push did not move the branch. Raise OrderRefused if the order is malformed."""
        began_s = asyncio.get_running_loop().time()
        wait_s = order.get("wait_s")
        limit_s = float(wait_s) if isinstance(wait_s, (int, float)) and 0 <= wait_s <= FOLLOW_MAX_S else 0.0
        following, branch = self._following, f"refs/heads/{self._following.branch.name}"
        try:
            moved = [update for update in push_from(order).updates if update.reference == branch]
        except PushMalformed as error:
            raise OrderRefused(str(error)) from error
        following.branch.wake()
        if not moved:
            return {"lines": []}
        revision = f"{following.branch.name}@{moved[0].new}"
        held_before = frozenset(self._publication.last.held)

        def published() -> bool:
            """Return True once the revision is published; channels held before this push are not waited for."""
            desired, last = following.desired, self._publication.last
            if following.suspended or desired is None or desired.revision != revision:
                return following.suspended
            went_out = last.revision == revision and last.kind in ("published", "unchanged")
            return desired.published or (went_out and held_before.issuperset(last.held))

        done = False
        while not done and asyncio.get_running_loop().time() < began_s + limit_s:
            done = await following.wait_until(published, FOLLOW_POLL_S)
        epoch = self._publication.last.epoch
        if done and not following.suspended:
            done = await self._gateway.wait_for_epoch(epoch, began_s + limit_s)
        took_s = asyncio.get_running_loop().time() - began_s
        return {"lines": follow_words(following, self._publication.last, live=done, epoch=epoch, took_s=took_s)}
