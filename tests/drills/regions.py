"""Two whole regions on this machine, each a `shoal up --region`, and a front before them."""

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.fleets import PROJECT, SHOAL, free_blocks, git, processes_of, wait_until

PORTS_APART = 200
MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Regions:
    state_dir: Path
    port_base: int

    @property
    def environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        places = {"SHOAL_STATE_DIR": self.state_dir, "SHOAL_PROJECT_DIR": PROJECT, "SHOAL_PORT_BASE": self.port_base}
        return own | {name: str(value) for name, value in places.items()}

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.state_dir / "tls" / "ca.pem"))

    @property
    def front_url(self) -> str:
        return f"https://localhost:{self.port_base + 3}"

    def url(self, region: str, offset: int = 3) -> str:
        known = json.loads((self.state_dir / "regions.json").read_text())
        return f"https://localhost:{known[region]['port_base'] + offset}"

    def key(self, tenant: str = "acme") -> str:
        return str(json.loads((self.state_dir / "secrets" / "demo-keys.json").read_text())[tenant]["key"])

    def gateway(self, region: str, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key or self.key()}"}
        return httpx.Client(base_url=self.url(region), headers=headers, verify=self.tls, timeout=60)

    def registry(self, region: str) -> httpx.Client:
        token = (self.state_dir / "regions" / region / "secrets" / "internal-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url(region, 4), headers=headers, verify=self.tls, timeout=60)

    def metric(self, region: str, name: str, offset: int = 5) -> float:
        """Return a metric of a region's gateway, or of its registry with offset 4."""
        base = self.url(region, offset)
        verify: ssl.SSLContext | bool = self.tls if offset == 4 else False
        text = httpx.get(base.replace("https", "http" if offset == 5 else "https") + "/metrics", verify=verify).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def shoal(self, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SHOAL, *arguments], env=self.environment, cwd=PROJECT, capture_output=True, text=True,
            timeout=timeout_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def others(self, region: str) -> list[dict]:
        with self.registry(region) as registry:
            return list(registry.get("/internal/v1/regions").json()["others"])

    def new_key(self, region: str, **body: object) -> dict:
        with self.registry(region) as registry:
            answer = registry.post("/v1/tenants/acme/keys", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def pace(self, slow_factor: float) -> None:
        """Make each step of every engine this many times longer."""
        for region in ("a", "b"):
            with self.registry(region) as registry:
                replicas = registry.get("/v1/fleet").json()["replicas"]
            for replica in replicas:
                url = f"http://127.0.0.1:{replica['port']}/sim/faults"
                httpx.post(url, json={"slow_factor": slow_factor}, timeout=30).raise_for_status()

    def kill(self, region: str) -> int:
        """Kill every process of the region at once, its controller first; return their number."""
        root = str(self.state_dir / "regions" / region)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environ = process.environ()
                named = environ.get("SHOAL_REGION") == region and environ.get("SHOAL_STATE_DIR") == str(self.state_dir)
                said = " ".join((*process.cmdline(), *environ.values()))
                if (named or root in said) and process.pid != os.getpid():
                    found.append(process)
        for process in sorted(found, key=lambda process: "functions.controller" not in " ".join(process.cmdline())):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        return len(found)

    def push(self, files: dict[str, str]) -> str:
        """Commit on the branch that both regions follow; return git's output."""
        clone = self.state_dir.parent / "clone"
        if not clone.is_dir():
            git("clone", "--quiet", str(self.state_dir / "gitops.git"), str(clone))
        git("pull", "--quiet", "--rebase", "origin", "main", at=clone)
        for path, text in files.items():
            (clone / path).write_text(text)
        git("add", "--all", at=clone)
        git("commit", "--quiet", "--allow-empty", "--message", "a change", at=clone)
        return git("push", "origin", "HEAD:main", at=clone).stderr


@contextmanager
def two_regions(state_dir: Path, *, replicas: int = 1) -> Iterator[Regions]:
    with free_blocks(4) as port_base:  # ports of the front, and 200 for each region
        regions = Regions(state_dir, port_base)
        try:
            for name in ("a", "b"):
                up = regions.shoal("up", "--region", name, "--engine", "sim", "--replicas", str(replicas))
                assert up.returncode == 0, f"{up.stdout}\n{up.stderr}"
            wait_until("each hears the other", lambda: all(
                other["connected"] for name in ("a", "b") for other in regions.others(name)
            ), 30)  # fmt: skip
            yield regions
        finally:
            for name in ("a", "b"):
                regions.shoal("down", "--region", name)
        left = processes_of(state_dir)
        assert not left, f"processes are left: {left}"


@contextmanager
def front_of(regions: Regions) -> Iterator[str]:
    """Start the front and yield its address; `haproxy` must be installed (HAPROXY)."""
    log = (regions.state_dir / "front.log").open("wb")
    front = subprocess.Popen([*SHOAL, "front"], env=regions.environment, cwd=PROJECT, stdout=log, stderr=log)
    try:
        wait_until("the front answers", lambda: _answers(regions), 60, 0.2)
        yield regions.front_url
    finally:
        front.terminate()
        front.wait(30)
        log.close()


HAPROXY = shutil.which("haproxy")


def _answers(regions: Regions) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{regions.front_url}/readyz", verify=regions.tls, timeout=5).status_code == 200
    return False


# Load: streams and plain requests at a rate, each with its result.


@dataclass(slots=True)
class Sent:
    at_s: float
    region: str = ""
    status: int = 0
    first_byte_s: float | None = None
    ended_s: float | None = None
    failure: str = ""  # empty: it ended as expected

    @property
    def is_lost(self) -> bool:
        return bool(self.failure)

    @property
    def lost_after_first_byte(self) -> bool:
        return self.is_lost and self.first_byte_s is not None


@dataclass
class Load:
    url: str
    tls: ssl.SSLContext
    keys: list[str]
    per_s: float
    max_tokens: int = 40
    sent: list[Sent] = field(default_factory=list)

    async def run(self, for_s: float) -> None:
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=100)
        async with httpx.AsyncClient(verify=self.tls, limits=limits, timeout=60, trust_env=False) as client:
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for number in range(int(for_s * self.per_s)):
                    await asyncio.sleep(max(0.0, began_s + number / self.per_s - time.monotonic()))
                    group.create_task(self._one(client, number))

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        sent = Sent(time.monotonic())
        self.sent.append(sent)
        body = {
            "model": MODEL, "stream": True, "max_tokens": self.max_tokens, "ignore_eos": True,
            "messages": [{"role": "user", "content": f"tell me of number {number}"}],
        }  # fmt: skip
        headers = {"authorization": f"Bearer {self.keys[number % len(self.keys)]}"}
        text = ""
        try:
            path = f"{self.url}/v1/chat/completions"
            async with client.stream("POST", path, json=body, headers=headers) as response:
                sent.status, sent.region = response.status_code, response.headers.get("x-shoal-region", "")
                async for piece in response.aiter_text():
                    if sent.first_byte_s is None and response.status_code == 200:
                        sent.first_byte_s = time.monotonic()
                    text = (text + piece)[-400:]
            if response.status_code != 200:
                sent.failure = f"status {response.status_code}: {text[:200]}"
            elif "[DONE]" not in text:
                sent.failure = "the stream ended without [DONE]"
        except httpx.HTTPError as error:
            sent.failure = f"{type(error).__name__}: {error}"
        sent.ended_s = time.monotonic()

    def rate_per_s(self, until_s: float) -> float:
        """Return the achieved rate; a busy machine may fall behind."""
        before = [sent.at_s for sent in self.sent if sent.at_s < until_s]
        return len(before) / (until_s - before[0])

    def count_outcomes(self) -> Counter[str]:
        return Counter(f"{sent.region or '-'} {sent.failure or 'whole'}"[:120] for sent in self.sent)


def most_in(came: list[tuple[float, int]], window_s: float) -> int:
    """Return the largest amount that arrived in any window of that length."""
    held = most = first = 0
    for at_s, amount in came:
        held += amount
        while came[first][0] <= at_s - window_s:
            held -= came[first][1]
            first += 1
        most = max(most, held)
    return most
