"""Virtual environments of the other gateways under `.bench/`; `python -m loadtests.bench.peers` creates them all.

Versions are pinned in `peers.txt`, because figures of an unknown version are useless. An environment is created once.
Its mark is written last, so that an interrupted installation is repeated.
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
    """Return the environment's `bin` folder. Create the environment if it is missing or has another version."""
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
    """Return `name==version` from the constraints."""
    lines = _CONSTRAINTS.read_text().splitlines()
    return next(line.strip() for line in lines if line.startswith(f"{name}=="))


if __name__ == "__main__":
    for peer in REQUIREMENTS:
        bin_of(peer, Console(stderr=True))
