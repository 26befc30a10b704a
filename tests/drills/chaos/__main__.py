"""`python -m tests.drills.chaos --minutes 60 --seed 14 --folder DIR`, in its own namespaces (`namespace`).

1. Start an installation. 2. Start load, promises and pushes. 3. Run rounds of faults and wait for recovery after each.
4. End the load, check every promise and read the accounts. 5. Stop, and check that no process is left.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import subprocess
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.drills.chaos.accounts import bill
from tests.drills.chaos.faults import Striker
from tests.drills.chaos.health import Balancer, Health
from tests.drills.chaos.keepsakes import LINES, Keepsakes
from tests.drills.chaos.load import Load
from tests.drills.chaos.memory import Memory
from tests.drills.chaos.pushes import Pushes
from tests.drills.chaos.rig import Rig, running_rig
from tests.drills.chaos.schedule import Fault, rounds

RECOVERED_S = 180.0  # a component that has not recovered by then needs an operator
_PER_S = float(os.environ.get("SHOAL_CHAOS_REQUESTS_PER_S", "4"))
_AFTER_FAULT_S = 20.0  # a gateway's connections are affected for a while after a fault
_OWN_GROUP = 4300


class Chaos:
    def __init__(self, rig: Rig, minutes: float, seed: int) -> None:
        self.rig, self.minutes, self.seed = rig, minutes, seed
        self.health, self.balancer, self.memory = Health(rig), Balancer(rig), Memory()
        self.pushes = Pushes(rig.fleet, 30.0, seed)
        self.faults: list[dict[str, Any]] = []
        self.amiss: list[str] = []
        self._struck: list[tuple[Fault, float, float]] = []  # fault, start, end (or far in the future)
        self._over = threading.Event()

    def faulted(self, gateway: str, since_s: float) -> bool:
        """Return whether the gateway's process or port, or all engine streams, had a fault since then."""
        return any(
            fault.target.startswith(gateway) and until_s + _AFTER_FAULT_S >= since_s
            for fault, _, until_s in self._struck
        )

    def kills(self) -> list[tuple[str, float]]:
        return [(fault.target, began_s) for fault, began_s, _ in self._struck if fault.kind == "kill"]

    def rounds(self) -> None:
        """Run rounds until the minutes are over or a component does not recover."""
        striker, until_s = Striker(self.rig), time.monotonic() + self.minutes * 60
        for faults in rounds(self.seed):
            if time.monotonic() > until_s:
                return
            began_s = time.monotonic()
            self._struck += [(fault, began_s, began_s + fault.seconds + 3.0) for fault in faults]
            say(f"strike {' and '.join(map(str, faults))}")
            struck = striker.round(faults)
            took_s, last = self.health.until_well(RECOVERED_S)
            say(f"  well {took_s:.1f} s later; last amiss: {last}")
            self.faults += [
                {
                    **dataclasses.asdict(fault),
                    "struck": hit,
                    "with": len(faults) - 1,
                    "recovery_s": took_s,
                    "last": last,
                }
                for fault, hit in zip(faults, struck, strict=True)
            ]
            if took_s >= RECOVERED_S:
                self.amiss.append(f"not well {RECOVERED_S:.0f} s after {' and '.join(map(str, faults))}: {last}")
                return

    def watch_memory(self) -> None:
        while not self._over.wait(10.0):
            self.memory.sample()
            partial = {"faults": self.faults, "amiss": self.amiss, "memory": self.memory_told()}
            (self.rig.folder / "partial.json").write_text(json.dumps(partial))

    async def run(self) -> dict[str, Any]:
        fleet = self.rig.fleet
        token = (fleet.state_dir / "secrets" / "internal-token").read_text().split()[0]
        keys = {tenant: fleet.key(tenant) for tenant in ("acme", "globex")}
        urls = {name: self.rig.url(name) for name in ("gateway-1", "gateway-2", "registry-1", "registry-2")}
        gateways = {name: urls[name] for name in ("gateway-1", "gateway-2")}
        load = Load(gateways, keys, fleet.tls, self.balancer.ready, _PER_S, self.seed, self.faulted)
        kept = Keepsakes(urls, keys, token, fleet.tls, self.balancer, self.seed)
        before = await asyncio.to_thread(self.ledger, token)
        took_s, last = await asyncio.to_thread(self.health.until_well, RECOVERED_S)
        assert took_s < RECOVERED_S, f"it never came up whole: {last}"
        over = asyncio.Event()
        self.balancer.start()
        self.pushes.start()
        threading.Thread(target=self.watch_memory, daemon=True).start()
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(over))
            group.create_task(kept.run(over))
            await asyncio.to_thread(self.rounds)
            await asyncio.to_thread(self.pushes.close)
            over.set()
        say("load is over")
        ran_s = time.monotonic() - began_s
        took_s, last = await asyncio.to_thread(self.health.until_well, RECOVERED_S)
        if took_s >= RECOVERED_S:
            self.amiss.append(f"not well at the end: {last}")
        await kept.settle()
        await asyncio.sleep(12.0)  # a gateway reports its sums every ten seconds
        after = await asyncio.to_thread(self.ledger, token)
        self._over.set()
        self.balancer.close()
        return self.report(load, kept, {name: after[name] - before.get(name, 0) for name in after}, ran_s)

    def ledger(self, token: str) -> dict[str, int]:
        """Return the tokens by tenant."""
        client = httpx.Client(verify=self.rig.fleet.tls, timeout=60.0, trust_env=False)
        answer = client.get(
            self.rig.url("registry-1") + "/v1/usage?by=tenant", headers={"authorization": f"Bearer {token}"}
        )
        return {row["tenant"]: row["prompt_tokens"] + row["completion_tokens"] for row in answer.json()["data"]}

    def report(self, load: Load, kept: Keepsakes, used: dict[str, int], ran_s: float) -> dict[str, Any]:
        line_tokens = LINES * 200 * len(kept.batches)
        checks = 40 * 60 * int(ran_s)  # upper bound on the cost of the health checks
        besides = {"acme": (0, line_tokens + checks), "globex": (0, 3000 * (kept.told["turn 200"] + 1))}
        bills = [bill(name, used.get(name, 0), load.asked, self.kills(), besides[name]) for name in ("acme", "globex")]
        wrong = Counter(one.how for one in load.asked if one.end == "wrong")
        bus_faults = [(b, u) for fault, b, u in self._struck if "bus" in fault.target]
        return {
            "seed": self.seed, "minutes": ran_s / 60, "requests": len(load.asked), "requests_per_s": _PER_S,
            "ends": load.count_ends().most_common(), "wrong": wrong.most_common(), "amiss": self.amiss,
            "kept": {
                "files": len(kept.files), "batches": len(kept.batches), "conversations": len(kept.talks),
                "begun anew": len(kept.forgotten), "keys": len(kept.made_keys), "revoked": len(kept.revoked_keys),
                "told": dict(kept.told | self.pushes.told),
            },
            "broken_promises": kept.wrong, "refused_pushes": self.pushes.refused[:5],
            "bus_faults": len(bus_faults),
            "bills": [dataclasses.asdict(one) | {"holds": one.holds} for one in bills],
            "faults": self.faults, "memory": self.memory_told(),
        }  # fmt: skip

    def memory_told(self) -> list[dict[str, Any]]:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for series in self.memory.series.values():
            if len(series.points) < 6:
                continue
            found[series.name].append({
                "name": series.name, "lived_s": series.lived_s, "first": series.points[0][1],
                "last": series.points[-1][1], "most": max(mib for _, mib in series.points),
                "slope_mib_per_h": series.slope_mib_per_h(min(600.0, series.lived_s / 3)),
            })  # fmt: skip
        return [max(lives, key=lambda life: life["lived_s"]) for _, lives in sorted(found.items())]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def left_over() -> list[str]:
    """Describe the processes of this process namespace other than this one and the first."""
    ours = {1, os.getpid()}
    found = [
        process for process in psutil.process_iter(["pid", "cmdline", "status"])
        if process.pid not in ours and process.info["status"] != psutil.STATUS_ZOMBIE
    ]  # fmt: skip
    return [f"{process.pid} {' '.join(process.info['cmdline'] or [])}"[:200] for process in found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    os.setegid(_OWN_GROUP)  # rules that drop other processes' packets do not match this group
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with running_rig(given.folder) as rig:
        say(f"up in {rig.fleet.up_seconds:.0f} s")
        report = asyncio.run(Chaos(rig, given.minutes, given.seed).run())
        (given.folder / "report.json").write_text(json.dumps(report, indent=1))
    report["left"] = left_over()
    (given.folder / "report.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
