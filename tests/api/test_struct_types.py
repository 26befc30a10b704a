"""Struct types are ready before a process has threads.

Otherwise, on a busy machine, one agent in fifty hung for ever: two threads decoded the first two manifests at once.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROLES = (
    "functions.controller.__main__",
    "functions.controller.kubernetes.__main__",
    "functions.engines.sim.__main__",
    "functions.gateway.__main__",
    "functions.registry.__main__",
    "functions.replica.__main__",
    "functions.replica.adapter_cache.__main__",
    "functions.replica.node_fetch.__main__",
)
PROGRAM = """
import importlib, sys
import msgspec._utils

def looked(type_):
    raise SystemExit(f"{type_} is looked at when it is decoded")

def below(parent):
    for each in parent.__subclasses__():
        yield each
        yield from below(each)

role = importlib.import_module(sys.argv[1])
assert role.struct_types.prepare() > 0
msgspec._utils.get_class_annotations = looked
undecodable = 0
for each in set(below(msgspec.Struct)):
    if each.__module__.startswith("functions."):
        try:
            msgspec.json.Decoder(each)
        except (SystemExit, TypeError):
            undecodable += 1  # of a kind that no decoder takes
assert undecodable <= 2, undecodable
"""


@pytest.mark.parametrize("role", ROLES)
def test_struct_types_are_resolved_before_threads_start(role: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, role], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_each_role_prepares_before_it_begins(role: str) -> None:
    file = ROOT / f"{role.replace('.', '/')}.py"
    assert "    struct_types.prepare()\n" in file.read_text()
