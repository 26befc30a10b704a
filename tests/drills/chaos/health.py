"""Health of the whole installation, checked from outside like an operator would.

The first check that fails is named, so that a missing recovery has a reason.
"""

import threading
import time
from contextlib import suppress

import httpx

from functions.controller.local.control import ControllerGone, OrderRefused
from tests.drills.chaos.rig import POOL, REPLICAS, Rig

_ANSWER_S = 5.0
_EVERY_S = 0.5
_ERRORS = (httpx.HTTPError, ControllerGone, OrderRefused, OSError, KeyError, ValueError, AssertionError, TimeoutError)


class Health:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._client = httpx.Client(verify=rig.fleet.tls, timeout=_ANSWER_S, trust_env=False)
        self._key = rig.fleet.key("acme")
        self._token = (rig.fleet.state_dir / "secrets" / "internal-token").read_text().split()[0]

    def until_well(self, timeout_s: float) -> tuple[float, str]:
        """Return the seconds until every check passed and the last failure; `timeout_s` if they never all passed."""
        began_s, amiss = time.monotonic(), ""
        while time.monotonic() - began_s < timeout_s:
            found = self.amiss()
            if not found:
                return time.monotonic() - began_s, amiss
            amiss = found
            time.sleep(_EVERY_S)
        return timeout_s, amiss

    def amiss(self) -> str:
        checks = {
            "Postgres": self._postgres, "registry-1": self._registry, "registry-2": self._registry,
            "s3": self._store, "traces": self._traces, "replicas": self._replicas, "branch": self._branch,
            "gateway-1": self._gateway, "gateway-2": self._gateway,
        }  # fmt: skip
        for name, check in checks.items():
            try:
                wrong = check(name)
            except _ERRORS as error:
                wrong = f"{type(error).__name__} {str(error)[:80]}"
            if wrong:
                return f"{name}: {wrong}"
        return ""

    def _postgres(self, _: str) -> str:
        return "" if self._rig.postgres.answers("shoal") else "does not answer"

    def _registry(self, name: str) -> str:
        answer = self._client.get(self._rig.url(name) + "/readyz").json()
        return "" if answer.get("database_ready") else f"not ready: {answer}"

    def _store(self, name: str) -> str:
        status = self._client.get(f"http://127.0.0.1:{self._rig.port(name)}/healthz").status_code
        return "" if status == 200 else str(status)

    def _traces(self, name: str) -> str:
        status = self._client.get(f"http://127.0.0.1:{self._rig.port(name)}/ping").status_code
        return "" if status == 200 else str(status)

    def _replicas(self, _: str) -> str:
        headers = {"authorization": f"Bearer {self._token}"}
        answer = self._client.get(self._rig.url("registry-1") + "/v1/fleet", headers=headers).json()
        phases = [replica["phase"] for replica in answer["replicas"]]
        return "" if phases.count("ready") == REPLICAS else f"{phases}"

    def _branch(self, _: str) -> str:
        status = self._rig.fleet.status()
        snapshot = status["snapshot"]
        applied = status["revision"]["last_applied"] == f"main@{self._rig.fleet.tip()}"
        wanted = {
            "applied": applied, "settled": status["settled"], "complete": snapshot["complete"],
            "gateway": snapshot["gateway_epoch"] == snapshot["epoch"],
        }  # fmt: skip
        return ", ".join(f"not {name}" for name, held in wanted.items() if not held)

    def _gateway(self, name: str) -> str:
        """Check that the gateway answers, and so that it evaluates every replica."""
        body = {"model": POOL, "max_tokens": 8, "messages": [{"role": "user", "content": "well"}]}
        headers = {"authorization": f"Bearer {self._key}"}
        answer = self._client.post(self._rig.url(name) + "/v1/chat/completions", json=body, headers=headers)
        return "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:100]}"


class Balancer:
    """Gateways that receive requests: those whose /readyz succeeded lately, as for a load balancer."""

    def __init__(self, rig: Rig) -> None:
        self._urls = {name: rig.url(name) for name in ("gateway-1", "gateway-2")}
        self._tls = rig.fleet.tls
        self.ready: dict[str, bool] = dict.fromkeys(self._urls, True)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(name,), daemon=True) for name in self._urls]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()

    def _watch(self, name: str) -> None:
        while not self._over.wait(0.5):
            said = False
            with suppress(httpx.HTTPError), httpx.Client(verify=self._tls, timeout=2.0, trust_env=False) as client:
                said = client.get(self._urls[name] + "/readyz").status_code == 200
            self.ready[name] = said
