"""`python -m loadtests.fan_out measure|simulate`: see the package."""

import argparse
import sys

from loadtests.fan_out import scenarios, virtual


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.fan_out", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    scenarios.add_arguments(commands.add_parser("measure", help="real processes on this machine"))
    virtual.add_arguments(commands.add_parser("simulate", help="many nodes, in virtual time"))
    arguments = parser.parse_args()
    return {"measure": scenarios.main, "simulate": virtual.main}[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
