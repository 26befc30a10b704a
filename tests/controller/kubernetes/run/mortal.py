"""The controller, killed with SIGKILL right after its n-th write has been answered: an entry point for tests only.

    MORTAL_AT=3 python -m tests.controller.kubernetes.run.mortal

Writes are what changes something: at the API server (dry runs and the Lease's taking included, its renewals not, which
come by the clock) and at the registry. To die before write n is, seen from outside, to die after write n - 1; 0 dies at
the first write, before it is sent.
"""

import itertools
import os
import signal
import sys
import threading
from typing import Any

import httpx
from kubernetes.client import ApiClient

from functions.controller.kubernetes.__main__ import main

_READS = {"GET", "HEAD"}


class _Mortal:
    def __init__(self, dies_at: int) -> None:
        self._dies_at = dies_at
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.began = False  # the first write was answered: the Lease is acquired

    def before(self) -> None:
        if self._dies_at == 0:
            self._die()

    def after(self) -> None:
        self.began = True
        with self._lock:
            if next(self._numbers) == self._dies_at:
                self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _haunt(mortal: _Mortal) -> None:
    call_api, request = ApiClient.call_api, httpx.AsyncClient.request

    def counted(self: ApiClient, method: str, url: str, *arguments: Any, **named: Any) -> Any:
        if method in _READS or (method == "PUT" and "/leases/" in url and mortal.began):
            return call_api(self, method, url, *arguments, **named)
        mortal.before()
        answer = call_api(self, method, url, *arguments, **named)
        mortal.after()
        return answer

    async def published(self: httpx.AsyncClient, method: str, *arguments: Any, **named: Any) -> Any:
        if method in _READS:
            return await request(self, method, *arguments, **named)
        mortal.before()
        answer = await request(self, method, *arguments, **named)
        mortal.after()
        return answer

    ApiClient.call_api = counted  # type: ignore[method-assign]
    httpx.AsyncClient.request = published  # type: ignore[method-assign]


if __name__ == "__main__":
    _haunt(_Mortal(int(os.environ["MORTAL_AT"])))
    sys.exit(main())
