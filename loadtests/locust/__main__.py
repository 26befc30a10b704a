"""`python -m loadtests.locust PROFILE [Locust's options]`: run one profile headless and write reports to a folder.

The environment names the fleet; without OPENAI_BASE_URL it is the local fleet (`shoal env`).
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROFILES = Path(__file__).parent / "profiles"
_ENV_S = 60.0


def names() -> list[str]:
    return sorted(file.stem for file in PROFILES.glob("*.py") if file.stem != "__init__")


def arguments(profile: str, folder: Path, more: list[str]) -> list[str]:
    """Return Locust's command line. Options in `more` come last and override the others."""
    reports = [
        "--csv",
        str(folder / "report"),
        "--html",
        str(folder / "report.html"),
        "--verdict",
        str(folder / "verdict.json"),
    ]
    file = str(PROFILES / f"{profile}.py")
    return [sys.executable, "-m", "locust", "-f", file, "--headless", "--only-summary", *reports, *more]


def main() -> None:
    profile, more = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if profile not in names():
        print(f"usage: python -m loadtests.locust {'|'.join(names())} [options of Locust and --slo NAME=VALUE]")
        sys.exit(2)
    environment = os.environ | ({} if os.environ.get("OPENAI_BASE_URL") else _local_fleet())
    state_dir = Path(os.environ.get("SHOAL_STATE_DIR", ".shoal"))
    folder = state_dir / "loadtests" / f"{profile}-{time.strftime('%Y%m%dT%H%M%S')}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"reports: {folder}/", flush=True)
    command = arguments(profile, folder, more)
    os.execve(command[0], command, environment)


def _local_fleet() -> dict[str, str]:
    command = [sys.executable, "-m", "functions.cli.main", "env", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_ENV_S, check=False)
    if done.returncode != 0:
        print(done.stderr or done.stdout, file=sys.stderr)
        sys.exit(2)
    return {name: value for name, value in json.loads(done.stdout).items() if name.isupper()}


if __name__ == "__main__":
    main()
