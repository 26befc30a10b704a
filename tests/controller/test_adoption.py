"""Which running processes a new controller keeps: a pure decision from the processes it found."""

from pathlib import Path

from functions.controller.local.adoption import AdoptionPlan, plan_adoption
from functions.controller.local.found import Found
from functions.controller.local.instances import LedgerEntry, ProcessLedger
from functions.controller.local.spec import ProcessSpec, TcpProbe

GATEWAY = ProcessSpec(name="gateway", role="gateway", argv=("g",), readiness=TcpProbe("127.0.0.1", 1))
ENGINE = ProcessSpec(name="engine-a-0", role="engine", argv=("e",), readiness=TcpProbe("127.0.0.1", 2))
WANTED = {"gateway": GATEWAY, "engine-a-0": ENGINE}
FORMER_ENGINE = ProcessSpec(name="engine-a-0", role="engine", argv=("e", "--former"), readiness=ENGINE.readiness)
REMOVED = ProcessSpec(name="engine-old-0", role="engine", argv=("o",), readiness=ENGINE.readiness)
FORMERLY = {"engine-a-0": FORMER_ENGINE, "engine-old-0": REMOVED}


def found(pid: int, name: str, spec_hash: str, *, leads: bool = True) -> Found:
    return Found(pid=pid, started_at=float(pid), name=name, spec_hash=spec_hash, leads=leads)


def plan(
    *processes: Found, sessions: dict[int, int] | None = None, ledger: ProcessLedger | None = None
) -> AdoptionPlan:
    leaders = {process.pid: process.pid for process in processes}
    return plan_adoption(processes, {**leaders, **(sessions or {})}, ledger or ProcessLedger(), [WANTED, FORMERLY])


def test_process_with_the_wanted_spec_is_kept_with_its_restarts() -> None:
    entry = LedgerEntry(name="engine-a-0", role="engine", spec_hash="x", phase="ready", restarts=4)
    result = plan(found(7, "engine-a-0", ENGINE.spec_hash), ledger=ProcessLedger(processes=(entry,)))
    assert [(adoption.pid, adoption.restarts) for adoption in result.keep] == [(7, 4)]
    assert result.end == ()


def test_process_with_another_spec_is_ended() -> None:
    result = plan(found(7, "engine-a-0", "old"))
    assert (result.keep, [process.pid for process in result.end]) == ((), [7])


def test_process_with_the_previous_spec_is_kept() -> None:
    """The controller was killed in the middle of a change: the next one completes the change in order."""
    result = plan(found(7, "engine-a-0", FORMER_ENGINE.spec_hash), found(8, "engine-old-0", REMOVED.spec_hash))
    assert [(adoption.pid, adoption.spec) for adoption in result.keep] == [(7, FORMER_ENGINE), (8, REMOVED)]
    assert result.end == ()


def test_unwanted_process_is_ended() -> None:
    result = plan(found(7, "engine-b-0", "whatever"))
    assert [process.pid for process in result.end] == [7]


def test_workers_are_kept_with_their_leader_and_ended_without() -> None:
    leader = found(7, "engine-a-0", ENGINE.spec_hash)
    worker = found(8, "engine-a-0", ENGINE.spec_hash, leads=False)
    orphan = found(9, "engine-a-0", ENGINE.spec_hash, leads=False)
    result = plan(leader, worker, orphan, sessions={8: 7, 9: 5})
    assert ([a.pid for a in result.keep], [p.pid for p in result.end]) == ([7], [9])


def test_both_generations_of_a_takeover_are_kept() -> None:
    result = plan(found(7, "gateway", GATEWAY.spec_hash), found(8, "gateway.g2", GATEWAY.spec_hash))
    assert [(adoption.pid, adoption.generation) for adoption in result.keep] == [(7, 1), (8, 2)]


def test_older_of_two_processes_with_one_name_is_kept() -> None:
    result = plan(found(9, "engine-a-0", ENGINE.spec_hash), found(7, "engine-a-0", ENGINE.spec_hash))
    assert ([a.pid for a in result.keep], [p.pid for p in result.end]) == ([7], [9])


def test_spec_hash_ignores_supervision_settings(tmp_path: Path) -> None:
    watched = ProcessSpec(name="gateway", role="gateway", argv=("g",), readiness=TcpProbe("127.0.0.1", 99))
    other = ProcessSpec(name="gateway", role="gateway", argv=("g", "-v"), readiness=GATEWAY.readiness)
    assert watched.spec_hash == GATEWAY.spec_hash != other.spec_hash
