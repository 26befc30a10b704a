"""`python -m loadtests.traces lane|faults|questions [--rows N]`: figures for docs/measurements/README.md."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from loadtests.traces.faults import faults
from loadtests.traces.lane import lane
from loadtests.traces.questions import questions


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.traces")
    parser.add_argument("what", choices=["lane", "faults", "questions"])
    parser.add_argument("--rows", type=int, default=10_000_000, help="Number of rows for `questions`.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="traces-") as folder:
        if options.what == "lane":
            asyncio.run(lane(Path(folder)))
        elif options.what == "faults":
            sys.exit(0 if faults(Path(folder)) else 1)
        else:
            questions(Path(folder), options.rows)


if __name__ == "__main__":
    main()
