"""The engine's postStart hook: which accelerators its container was given, for the agent beside it.

NVIDIA's device plugin tells the container by NVIDIA_VISIBLE_DEVICES, and only that container. Whatever goes wrong here,
the engine must start: without the file the agent measures none.

    devices.py FILE
"""

import os
import sys
from pathlib import Path


def main(file: str) -> int:
    fresh = Path(file + ".new")
    try:
        fresh.write_text(os.environ.get("NVIDIA_VISIBLE_DEVICES", "none"))
        fresh.replace(file)
    except OSError as error:
        print(f"the accelerators are not told to the agent: {error}", file=sys.stderr)  # noqa: T201 - the kubelet's log
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
