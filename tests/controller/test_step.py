"""The life of one process in virtual time: the effect of each event in each phase."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.controller.local.lifecycle import (
    RUNNING,
    TRANSITIONS,
    Action,
    Adopted,
    Event,
    Exited,
    GroupSwept,
    IllegalPhaseChange,
    LivenessProbed,
    Permitted,
    Phase,
    ProcessState,
    ReadinessProbed,
    Spawned,
    SpawnFailed,
    StartRequested,
    StopRequested,
    TakeoverFailed,
    TakeoverStarted,
    Ticked,
)
from functions.controller.local.spec import Timing
from functions.controller.local.step import step
from functions.decisions.health.backoff import BackoffPolicy

TIMING = Timing(start_s=30, drain_s=10, liveness_failing_s=6)
BACKOFF = BackoffPolicy(base_s=1, cap_s=8, forget_after_healthy_s=60)


class Life:
    """One process in virtual time: `life << event` steps it; `life.at(s)` moves the clock."""

    def __init__(self) -> None:
        self.state = ProcessState()
        self.now_s = 0.0
        self.actions: tuple[Action, ...] = ()

    def __lshift__(self, event: Event) -> "Life":
        self.state, self.actions = step(self.state, event, self.now_s, TIMING, BACKOFF)
        return self

    def at(self, now_s: float) -> "Life":
        self.now_s = now_s
        return self

    @property
    def phase(self) -> Phase:
        return self.state.phase


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
def ready(life: Life) -> Life:
    return life << Permitted() << Spawned(42) << ReadinessProbed(ok=True)


def test_starts_when_permitted_and_is_ready_when_a_probe_says_so(life: Life) -> None:
    life << Permitted()
    assert (life.phase, life.actions) == ("starting", ("spawn",))
    life << Spawned(42) << ReadinessProbed(ok=False, detail="connection refused")
    assert (life.phase, life.state.reason) == ("starting", "connection refused")
    life << ReadinessProbed(ok=True)
    assert (life.phase, life.state.pid, life.state.ever_ready) == ("ready", 42, True)


def test_goes_unready_and_back_without_a_restart(ready: Life) -> None:
    ready << ReadinessProbed(ok=False, detail="HTTP 503")
    assert (ready.phase, ready.state.reason) == ("unready", "HTTP 503")
    ready << ReadinessProbed(ok=True)
    assert (ready.phase, ready.state.restarts) == ("ready", 0)


def test_a_crash_sweeps_the_group_before_the_backoff_begins(ready: Life) -> None:
    ready.at(5) << Exited("killed by SIGSEGV")
    assert (ready.phase, ready.actions) == ("crashed", ("sweep_group",))
    ready.at(5.5) << GroupSwept()
    assert (ready.phase, ready.state.retry_at_s, ready.state.pid) == ("backoff", 6.5, None)
    ready.at(6.4) << Ticked()
    assert ready.phase == "backoff"
    ready.at(6.5) << Ticked()
    assert (ready.phase, ready.actions, ready.state.restarts) == ("starting", ("spawn",), 1)


def test_backoff_doubles_to_the_cap_while_it_keeps_dying(life: Life) -> None:
    life << Permitted()
    waits = []
    for _ in range(6):
        life << Exited("exit status 1") << GroupSwept()
        assert life.state.retry_at_s is not None
        waits.append(life.state.retry_at_s - life.now_s)
        life.at(life.state.retry_at_s) << Ticked()
    assert waits == [1, 2, 4, 8, 8, 8]


def test_an_hour_of_health_forgets_former_failures(life: Life) -> None:
    life << Permitted() << Exited("exit status 1") << GroupSwept()
    life.at(1) << Ticked() << Spawned(7) << ReadinessProbed(ok=True)
    life.at(3600) << Exited("exit status 1") << GroupSwept()
    assert life.state.retry_at_s == 3601


def test_process_that_is_not_ready_in_time_is_killed_with_a_reason(life: Life) -> None:
    life << Permitted() << Spawned(42) << ReadinessProbed(ok=False, detail="connection refused")
    life.at(29) << Ticked()
    assert life.actions == ()
    life.at(30) << Ticked()
    assert life.actions == ("kill_group",)
    life << Exited("killed by SIGKILL")
    assert life.state.reason == "not ready after 30 s (connection refused); killed by SIGKILL"


def test_liveness_kills_only_after_failing_for_its_whole_period(ready: Life) -> None:
    ready.at(10) << LivenessProbed(ok=False, detail="hung")
    ready.at(15.9) << LivenessProbed(ok=False, detail="hung")
    assert ready.actions == ()
    ready.at(16) << LivenessProbed(ok=False, detail="hung")
    assert (ready.actions, ready.state.reason) == (("kill_group",), "not live: hung")


def test_one_successful_probe_restarts_the_liveness_period(ready: Life) -> None:
    ready.at(10) << LivenessProbed(ok=False)
    ready.at(15) << LivenessProbed(ok=True)
    ready.at(16) << LivenessProbed(ok=False)
    ready.at(21) << LivenessProbed(ok=False)
    assert ready.actions == ()


def test_processor_wait_does_not_count_as_silence(ready: Life) -> None:
    """On a full machine every process missed its probes, and the controller killed the gateway and the registry."""
    ready.at(10) << LivenessProbed(ok=False, detail="no answer")
    ready.at(15) << LivenessProbed(ok=False, detail="no answer", starved_s=4.5)
    ready.at(20) << LivenessProbed(ok=False, detail="no answer", starved_s=4.5)
    assert ready.actions == ()
    ready.at(25) << LivenessProbed(ok=False, detail="no answer")  # 6 s of silence are its own
    assert ready.actions == ("kill_group",)


def test_liveness_does_not_count_before_readiness(life: Life) -> None:
    """The agent still reports an engine that has just restarted as dead."""
    life << Permitted() << Spawned(42)
    for second in range(25):
        life.at(second) << LivenessProbed(ok=False, detail="dead")
        assert life.actions == ()


def test_draining_terminates_then_kills_then_kills_again(ready: Life) -> None:
    ready.at(100) << StopRequested()
    assert (ready.phase, ready.actions) == ("draining", ("terminate",))
    ready.at(109) << Ticked()
    assert ready.actions == ()
    ready.at(110) << Ticked()
    assert ready.actions == ("kill_group",)
    ready.at(115) << Ticked()
    assert ready.actions == ("kill_group",)
    ready << Exited("killed by SIGKILL")
    assert (ready.phase, ready.actions) == ("draining", ("sweep_group",))
    ready << GroupSwept()
    assert (ready.phase, ready.state.pid) == ("stopped", None)


def test_stopped_process_restarts_on_request_and_counts_it(ready: Life) -> None:
    ready << StopRequested() << Exited("exit status 0") << GroupSwept() << StartRequested()
    assert (ready.phase, ready.state.restarts) == ("pending", 1)


def test_start_request_ends_the_backoff(life: Life) -> None:
    life << Permitted() << Exited("exit status 1") << GroupSwept() << StartRequested()
    assert (life.phase, life.actions, life.state.failures) == ("starting", ("spawn",), 0)


def test_stop_during_backoff_sends_no_signal(life: Life) -> None:
    life << Permitted() << Exited("exit status 1") << GroupSwept() << StopRequested(remove=True)
    assert (life.phase, life.actions, life.state.removed) == ("stopped", (), True)


def test_failed_start_backs_off_like_a_crash(life: Life) -> None:
    life << Permitted() << SpawnFailed("No such file") << GroupSwept()
    assert (life.phase, life.state.reason) == ("backoff", "No such file")


def test_an_adopted_process_is_probed_before_it_counts_as_ready(life: Life) -> None:
    life << Adopted(pid=42, restarts=3)
    assert (life.phase, life.actions, life.state.pid, life.state.restarts) == ("starting", (), 42, 3)


def test_the_end_of_a_superseded_generation_is_no_crash(ready: Life) -> None:
    ready << TakeoverStarted() << Exited("exit status 0") << GroupSwept()
    assert (ready.phase, ready.state.failures) == ("stopped", 0)


def test_after_a_failed_takeover_an_end_is_a_crash_again(ready: Life) -> None:
    ready << TakeoverStarted() << TakeoverFailed() << Exited("exit status 1")
    assert ready.phase == "crashed"


def test_late_event_of_a_dead_process_changes_nothing(ready: Life) -> None:
    ready << Exited("exit status 1")
    dead = ready.state
    for late in (ReadinessProbed(ok=True), LivenessProbed(ok=False), Exited("exit status 1"), Permitted()):
        ready << late
        assert (ready.state, ready.actions) == (dead, ())


@pytest.mark.parametrize("phase", list(TRANSITIONS))
def test_transition_missing_in_the_table_raises(phase: Phase) -> None:
    for target in set(TRANSITIONS) - TRANSITIONS[phase]:
        with pytest.raises(IllegalPhaseChange):
            ProcessState(phase=phase).moved(target, 0.0)


def any_event() -> Iterator[st.SearchStrategy[Event]]:
    flags, words = st.booleans(), st.sampled_from(["", "why"])
    yield st.sampled_from([Permitted(), GroupSwept(), StartRequested(), TakeoverStarted(), TakeoverFailed(), Ticked()])
    yield st.builds(Exited, how=words)
    yield st.builds(ReadinessProbed, ok=flags, detail=words)
    yield st.builds(LivenessProbed, ok=flags, detail=words)
    yield st.builds(StopRequested, remove=flags)


@given(st.lists(st.tuples(st.floats(0, 40), st.one_of(*any_event())), max_size=60))
def test_no_event_order_causes_an_illegal_transition_or_two_processes(story: list[tuple[float, Event]]) -> None:
    """In any order, events raise no exception and never spawn a process while the former one may still run."""
    life, running = Life(), False
    for waited_s, event in story:
        life.at(life.now_s + waited_s) << event
        if "spawn" in life.actions:
            assert not running
            life << Spawned(1)
        running = life.phase in RUNNING or life.phase == "crashed"
        assert (life.state.retry_at_s is not None) == (life.phase == "backoff")
