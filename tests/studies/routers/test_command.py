"""`python -m studies routers` as a command: one line per router, and clear errors."""

import subprocess
import sys

import pytest


def study(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "studies", "routers", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


SMALL = ("--requests", "200", "--replicas", "2", "--seeds", "2", "--load", "0.5")


@pytest.mark.soak
@pytest.mark.soak
def test_table_lists_routers_and_the_fleets_capacity() -> None:
    done = study(*SMALL, "--router", "shoal", "--router", "round-robin")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("synthetic chats on 2 x h100-8b: the fleet keeps up with ")
    assert [line.split()[:2] for line in lines[2:4]] == [["50%", "shoal"], ["round-robin", lines[3].split()[1]]]
    assert "round-robin at 50%" not in done.stdout, "progress is not part of the answer"


def test_unknown_router_error_lists_the_known_ones() -> None:
    done = study("--router", "fastest")
    assert done.returncode == 1
    assert "there is no router 'fastest': one of shoal, oracle, round-robin" in done.stderr
