"""Namespaces for the chaos drill: network, mounts and processes that end with it.

Partitions, full disks and kills affect nothing outside, and no process outlives the namespace: the kernel kills the
rest.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fleets import PROJECT

_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_TRIED = (
    "mount -t tmpfs -o size=1m none /mnt && ip link set lo up"
    " && iptables -A OUTPUT -p tcp -m owner --gid-owner 1 -j ACCEPT"
)
_GRACE_S = 900.0  # until the fleet is up, after the last fault, and until it is down


def missing() -> str | None:
    """Return why namespaces are not available here, or None."""
    for tool in ("unshare", "ip", "iptables", "bash", "fallocate"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install util-linux iproute2 iptables"
    tried = subprocess.run([*_UNSHARE, "bash", "-c", _TRIED], capture_output=True, text=True, timeout=60, check=False)
    return None if tried.returncode == 0 else f"no namespaces here (root is needed): {tried.stderr.strip()[-200:]}"


def run(folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Run the drill and return its report. Its output is in `chaos.log` in the folder."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "tests.drills.chaos", "--minutes", str(minutes), "--seed", str(seed)]
    # bash is the first process of the namespace: it reaps orphans.
    script = f"{' '.join(command)} --folder '{folder}' > '{folder}/chaos.log' 2>&1; exit $?"
    done = subprocess.run([*_UNSHARE, "bash", "-c", script], cwd=PROJECT, timeout=minutes * 60 + _GRACE_S, check=False)
    assert report.exists(), f"it ended with {done.returncode}:\n{(folder / 'chaos.log').read_text()[-6000:]}"
    found: dict[str, Any] = json.loads(report.read_text())
    return found
