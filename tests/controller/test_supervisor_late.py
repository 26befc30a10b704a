"""A supervisor that stalled: deadlines expire only after answers from the meantime have been read."""

from dataclasses import replace
from pathlib import Path

from functions.controller.local.layout import StateLayout
from functions.controller.local.supervisor import TICK_S, Supervisor
from tests.controller.conftest import tiny


def test_supervisor_stall_does_not_end_a_start_in_time(tmp_path: Path) -> None:
    """The process had been ready for long, but the check ran before the probe that would have reported it."""
    now_s = [100.0]
    layout = StateLayout(tmp_path)
    layout.ledger_file.parent.mkdir(parents=True)
    supervisor = Supervisor(layout, environ={}, controller_pid=1, clock=lambda: now_s[0])
    instance = supervisor.add(tiny())
    instance.state = replace(instance.state.moved("starting", 100.0), deadline_s=160.0)
    instance.probing = True  # its answer is still unread
    for after_s, phase in ((TICK_S, "starting"), (61.0, "starting"), (TICK_S, "crashed")):
        now_s[0] += after_s
        supervisor.run_round()
        assert instance.state.phase == phase
