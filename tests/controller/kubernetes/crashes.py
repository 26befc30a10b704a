"""Controllers that die: a client that lets only so many requests through."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kubernetes.dynamic import DynamicClient

from functions.controller.kubernetes.render import Desired
from tests.controller.kubernetes.fleet import Fleet, Leader


class Killed(Exception):
    """The process is dead: no later line runs."""


@dataclass
class DyingClient:
    """Dies at the `at_call`-th request (from 1): before it is sent, or with `after` once the server has executed it."""

    client: DynamicClient
    at_call: int
    after: bool = False
    calls: int = 0

    def request(self, *arguments: Any, **parameters: Any) -> Any:
        self.calls += 1
        if self.calls < self.at_call:
            return self.client.request(*arguments, **parameters)
        if self.after and self.calls == self.at_call:
            self.client.request(*arguments, **parameters)
        raise Killed(f"at call {self.calls}: {arguments[:2]}")


@dataclass
class InterruptedClient:
    """Calls `interrupt` once, right before the `at_call`-th request, and continues: a process stopped for a while."""

    client: DynamicClient
    at_call: int
    interrupt: Callable[[], None]
    calls: int = 0

    def request(self, *arguments: Any, **parameters: Any) -> Any:
        self.calls += 1
        if self.calls == self.at_call:
            self.interrupt()
        return self.client.request(*arguments, **parameters)


CALLS_MAX = 200


def killed_at_each_call(
    fleet: Fleet, prepare: Callable[[], None], desired: Callable[[], Desired], *, after: bool, every: int = 1
) -> Iterator[tuple[int, Desired]]:
    """Yield a fleet for each request of a reconcile, or each `every`-th: prepared anew, its controller killed there.

    The last reconcile completes. The yielded fleet has a fresh controller with a later token.
    """
    for call in range(1, CALLS_MAX, every):
        prepare()
        wanted = desired()
        client = DyingClient(fleet.space.client, call, after=after)
        fleet.make_client = lambda client=client: client
        fleet.restart()
        died = False
        try:
            fleet.applier.reconcile(wanted)
        except Killed:
            died = True
        fleet.make_client = None
        fleet.restart(Leader(token=fleet.guard.token + 1))
        yield call, wanted
        if not died:
            return
    raise AssertionError(f"a reconcile of more than {CALLS_MAX} requests")
