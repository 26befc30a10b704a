"""Other gateways, each in an environment of its own under `.bench/`: `python -m loadtests.bench.peers` makes them all.

Versions are pinned in `peers.txt`, since figures of an unnamed version say nothing. An environment is made once; its
mark is written last, so that a run that was stopped half-way is done again.
"""

import subprocess
import sys
from pathlib import Path

from rich.console import Console

HOME = Path(".bench")
_CONSTRAINTS = Path(__file__).with_name("peers.txt")
REQUIREMENTS = {
    "sglang-router": "sglang-router",
    "vllm-router": "vllm-router",
    "litellm": "litellm[proxy]",
    "py-spy": "py-spy",
}


def bin_of(name: str, console: Console) -> Path:
    """The environment's programs; made where it is not there or has another version."""
    environment = HOME / name
    mark = environment / ".made"
    pinned = pin_of(name)
    if not mark.exists() or mark.read_text() != pinned:
        console.print(f"[dim]installing {pinned} into {environment} (once; a minute or so)[/dim]")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(_CONSTRAINTS), REQUIREMENTS[name]], check=True)
        mark.write_text(pinned)
    return (environment / "bin").absolute()


def pin_of(name: str) -> str:
    """`name==version`, as the constraints have it."""
    lines = _CONSTRAINTS.read_text().splitlines()
    return next(line.strip() for line in lines if line.startswith(f"{name}=="))


if __name__ == "__main__":
    for peer in REQUIREMENTS:
        bin_of(peer, Console(stderr=True))
