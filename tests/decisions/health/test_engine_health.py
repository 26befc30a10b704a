"""Engine health on a simulated clock: dead, hung and slow engines are distinguished."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.health import engine as engine_health
from functions.decisions.health.engine import (
    Counters,
    EngineHealth,
    Evidence,
    HealthAnswer,
    HealthPolicy,
    Probe,
    ProbeState,
)

POLICY = HealthPolicy()


@dataclass
class Story:
    """A sequence of ticks a second apart: each sets what the engine answers and records the conclusion.

    The engine generates `tokens_per_s` and answers probes after `probe_takes_s` (None: never). Probes are sent when
    due.
    """

    policy: HealthPolicy = POLICY
    now_s: float = 100.0
    tokens_per_s: float = 0.0
    outstanding: int = 0
    health: HealthAnswer = "ok"
    metrics: bool = True
    probe_takes_s: float | None = 0.05
    probe: Probe = field(default_factory=Probe)
    tokens: float = 0.0
    probes_sent: int = 0
    judged: EngineHealth = field(default_factory=lambda: engine_health.initial_health(100.0))
    phases: list[str] = field(default_factory=list)

    def tick(self, seconds: float = 1.0) -> str:
        self.now_s += seconds
        self.tokens += self.tokens_per_s * seconds
        self._end_probe()
        counters = Counters(0, self.tokens, self.tokens) if self.metrics else None
        evidence = Evidence(self.health, counters, self.outstanding, self.probe)
        self.judged = engine_health.judge(self.judged, evidence, self.now_s, self.policy)
        if engine_health.probe_due(self.judged, evidence, self.now_s, self.policy):
            self.probe = Probe("pending", started_s=self.now_s)
            self.probes_sent += 1
        self.phases.append(self.judged.phase)
        return self.judged.phase

    def run(self, seconds: int) -> list[str]:
        return [self.tick() for _ in range(seconds)]

    def ready(self) -> "Story":
        assert self.run(3)[-1] == "ready"
        return self

    def stop(self) -> "Story":
        """Stop the engine as SIGSTOP does: nothing answers and no counter changes."""
        self.health, self.metrics, self.probe_takes_s = "timed_out", False, None
        return self

    def go_on(self) -> "Story":
        self.health, self.metrics, self.probe_takes_s = "ok", True, 0.05
        return self

    def _end_probe(self) -> None:
        if self.probe.state != "pending":
            return
        takes_s = self.probe_takes_s
        if takes_s is not None and self.probe.started_s + takes_s <= self.now_s:
            # a resumed engine answers now, never before the previous tick
            self._set("answered", max(self.probe.started_s + takes_s, self.now_s - 0.5))
            self.tokens += 1
        elif self.now_s - self.probe.started_s >= 8.0:
            self._set("timed_out", self.now_s)

    def _set(self, state: ProbeState, ended_s: float) -> None:
        self.probe = replace(self.probe, state=state, ended_s=ended_s)


def seconds_until(story: Story, phase: str, limit: int = 60) -> int:
    for second in range(1, limit):
        if story.tick() == phase:
            return second
    raise AssertionError(f"never {phase}: {story.phases}")


def test_ready_needs_an_answered_probe_not_only_health() -> None:
    story = Story(probe_takes_s=None)
    assert story.run(5) == ["starting"] * 5
    story.probe_takes_s = 0.05
    assert seconds_until(story, "ready") <= 2


def test_worked_example_of_a_stopped_engine() -> None:
    story = Story().ready()
    while story.probe.state != "answered" or story.now_s - story.probe.ended_s > 0.6:
        story.tick()
    stopped_s = story.now_s + 0.5
    story.stop()
    story.tick()
    seconds_until(story, "hung")
    assert story.judged.cause == "silent"
    assert 3 <= story.now_s - stopped_s <= 4.5
    story.run(10)
    story.go_on()
    assert story.tick() == "ready"


def test_a_hung_core_behind_a_living_server_is_found_by_a_probe() -> None:
    story = Story().ready()
    story.probe_takes_s = None  # /health stays 200, as vLLM's does
    within_s = seconds_until(story, "hung")
    assert story.judged.cause == "stalled"
    assert "one-token probe" in story.judged.reason
    assert within_s <= POLICY.idle_probe_interval_s + POLICY.stalled_after_s + 1


def test_work_without_progress_is_hung() -> None:
    story = Story(outstanding=3).ready()
    story.probe_takes_s = None
    assert seconds_until(story, "hung") <= POLICY.stalled_after_s + 1
    assert "3 requests pending" in story.judged.reason


def test_slow_is_not_hung() -> None:
    """The engine emits a token every two seconds, /health times out and the probe is queued: the engine stays ready."""
    story = Story(outstanding=50).ready()
    story.health, story.probe_takes_s = "timed_out", 30.0
    for _ in range(120):
        story.tokens += 1
        assert (story.tick(), story.tick()) == ("ready", "ready")


def test_a_refused_connection_is_dead_at_once() -> None:
    story = Story().ready()
    story.health, story.metrics = "refused", False
    assert story.tick() == "dead"
    assert story.judged.reason == "connection refused: no process is listening"


def test_a_503_is_dead_at_once_and_condemned_after_vllms_own_watchdog() -> None:
    story = Story().ready()
    story.health = "unwell"
    assert story.tick() == "dead"
    assert engine_health.condemned(story.judged, story.now_s + 7.9, POLICY) == ""
    assert "503" in engine_health.condemned(story.judged, story.now_s + 8, POLICY)


def test_dead_engine_recovers_through_starting_and_a_new_probe() -> None:
    story = Story().ready()
    story.health, story.metrics = "refused", False
    story.run(5)
    story.go_on()
    assert story.tick() == "starting"  # the probe that was answered before the death no longer counts
    assert seconds_until(story, "ready") <= 2


def test_hung_becomes_dead_when_it_is_killed() -> None:
    story = Story().ready().stop()
    seconds_until(story, "hung")
    story.health = "refused"
    assert story.tick() == "dead"


def test_answer_before_the_hang_does_not_end_it() -> None:
    story = Story().ready()
    old = story.probe
    story.stop()
    seconds_until(story, "hung")
    story.health, story.metrics, story.probe = "ok", True, replace(old, state="answered")
    evidence = Evidence("ok", Counters(0, 9, 9), 0, story.probe)
    assert engine_health.judge(story.judged, evidence, story.now_s + 1, POLICY).phase == "hung"


def test_metrics_alone_do_not_end_a_hang() -> None:
    story = Story(outstanding=2).ready()
    story.probe_takes_s = None
    seconds_until(story, "hung")
    story.tokens_per_s = 10.0
    assert story.run(5) == ["hung"] * 5
    story.probe_takes_s = 0.05
    assert seconds_until(story, "ready") <= 2


def test_two_failed_probes_mark_the_engine_hung() -> None:
    story = Story().ready()

    def fail(state: ProbeState) -> str:
        story.now_s += 1
        story.probe = Probe(state, started_s=story.now_s - 0.5, ended_s=story.now_s, detail="500: no")
        evidence = Evidence("ok", Counters(0, story.tokens, 0), 0, story.probe)
        story.judged = engine_health.judge(story.judged, evidence, story.now_s, POLICY)
        return story.judged.phase

    assert [fail("failed"), fail("answered"), fail("failed"), fail("busy"), fail("failed")] == ["ready"] * 4 + ["hung"]
    assert story.judged.reason == "2 one-token probes failed: 500: no"


def test_first_start_has_a_timeout() -> None:
    policy = replace(POLICY, start_timeout_s=20.0, verdict_s=5.0)
    story = Story(policy=policy, health="refused", metrics=False)
    assert story.run(19) == ["starting"] * 19
    assert story.run(2)[-1] == "dead"
    assert "not ready within 20 s" in engine_health.condemned(story.judged, story.now_s, policy)
    assert "starting" in story.run(6)  # the successor has the whole timeout again
    assert engine_health.condemned(story.judged, story.now_s, policy) == ""


def test_engine_that_refuses_connections_is_not_condemned() -> None:
    story = Story().ready()
    story.health, story.metrics = "refused", False
    story.run(300)
    assert story.judged.phase == "dead"
    assert engine_health.condemned(story.judged, story.now_s, POLICY) == ""


def test_a_hung_engine_is_condemned_only_after_its_grace() -> None:
    story = Story().ready().stop()
    seconds_until(story, "hung")
    assert engine_health.condemned(story.judged, story.now_s + 29, POLICY) == ""
    assert "hung for 30 s" in engine_health.condemned(story.judged, story.now_s + 30, POLICY)


def test_idle_engine_is_probed_every_few_seconds_and_a_busy_one_is_not() -> None:
    story = Story(outstanding=5, tokens_per_s=100.0).ready()
    sent = story.probes_sent
    story.run(30)
    assert story.probes_sent == sent
    story.outstanding, story.tokens_per_s = 0, 0.0
    story.run(30)
    assert 30 / (POLICY.idle_probe_interval_s + 1) <= story.probes_sent - sent <= 30 / POLICY.idle_probe_interval_s + 1


def test_stalled_work_triggers_a_probe() -> None:
    story = Story(outstanding=5, tokens_per_s=100.0).ready()
    sent = story.probes_sent
    story.tokens_per_s = 0.0
    story.run(4)
    assert story.probes_sent > sent


def test_counter_reset_counts_as_progress() -> None:
    story = Story(outstanding=1, tokens_per_s=10.0).ready()
    story.tokens, story.tokens_per_s = 0.0, 0.0
    story.tick()
    assert story.judged.moved_s == story.now_s


_EVIDENCE = st.builds(
    Evidence,
    health=st.sampled_from(["ok", "refused", "timed_out", "unwell"]),
    counters=st.none() | st.builds(Counters, st.just(0.0), st.integers(0, 3), st.integers(0, 3)),
    outstanding=st.integers(0, 3),
    probe=st.just(Probe()),
)
_STEPS = st.lists(
    st.tuples(_EVIDENCE, st.sampled_from(["keep", "start", "answered", "failed", "timed_out"])), max_size=60
)


@given(_STEPS)
def test_invariants_hold_for_any_evidence(steps: list[tuple[Evidence, str]]) -> None:
    judged, probe, now_s = engine_health.initial_health(0.0), Probe(), 0.0
    for evidence, what in steps:
        now_s += 1.0
        if what == "start":
            probe = Probe("pending", started_s=now_s)
        elif what != "keep" and probe.state == "pending":
            probe = replace(probe, state=what, ended_s=now_s)  # type: ignore[arg-type]
        before, judged = judged, engine_health.judge(judged, replace(evidence, probe=probe), now_s, POLICY)
        if judged.phase == "ready" and before.phase != "ready":  # only an answered, newer probe leads to ready
            assert probe.state == "answered"
            assert probe.ended_s > before.since_s
            assert evidence.health == "ok"
        if evidence.health in ("refused", "unwell"):
            assert judged.phase != "ready"
        if judged.phase == "hung" and before.phase == "ready":  # never hung on a tick that showed progress
            assert not (probe.state == "answered" and probe.ended_s == now_s)
        if judged.phase in ("hung", "dead"):
            assert judged.reason
            assert judged.cause
        assert judged.since_s <= now_s
        assert (judged.phase == before.phase and judged.cause == before.cause) or judged.since_s == now_s


@given(st.integers(1, 200), st.integers(0, 5))
def test_engine_with_regular_progress_is_never_hung(seconds: int, pause_s: int) -> None:
    story = Story(outstanding=1).ready()
    story.probe_takes_s = None
    for second in range(seconds):
        if second % (pause_s + 1) == 0:
            story.tokens += 1
        assert story.tick() == "ready"


@pytest.mark.parametrize("health", ["ok", "timed_out"])
def test_without_metrics_probes_alone_keep_an_engine_ready(health: HealthAnswer) -> None:
    story = Story().ready()
    story.metrics, story.health = False, health
    assert set(story.run(60)) == {"ready"}
