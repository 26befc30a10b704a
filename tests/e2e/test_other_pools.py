"""Requests answered by another pool, with real processes: fallbacks, a cascade, a classifier.

The fleet has four pools: the demo's small one, `large` for answers of which the small one is unsure, `other` for the
overflow, and `absent` without a replica. The simulated engine echoes and is unsure only of question marks, so the
prompt decides the route. Engines log finished requests, which the gateway's metrics are compared with.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.projects import PATIENT, project_with, without_scaling
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(600)]

SMALL, LARGE, OTHER, ABSENT = "smollm2-135m", "large", "other", "absent"
SURE, UNSURE = "one two three four five six", " ".join("?" * 30)
POLICY = f"""
  fallback:
    - {{when: saturated, from: {SMALL}, to: {OTHER}}}
    - {{when: unavailable, from: {ABSENT}, to: {OTHER}}}
  cascade:
    - {{from: {SMALL}, to: {LARGE}, threshold: 0.8, maxTokens: 4}}
  classifier:
    model: auto
    rules:
      - {{when: {{keywords: [theorem]}}, to: {LARGE}}}
    otherwise: {OTHER}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("pools")
    (folder / "notes").mkdir()
    project = project_with(
        folder / "project",
        PATIENT,
        ("policies/tenants.yaml", '["acme/*", "smollm2-135m"]', f'["acme/*", {SMALL}, {LARGE}, {OTHER}, {ABSENT}]'),
        ("policies/routing.yaml", "  fallback: [] # see policies/fleet/routing.yaml\n  cascade: []\n", POLICY),
    )
    without_scaling(project)
    services, models = project / "inferenceservices", project / "registry" / "models.yaml"
    demo, base = (services / f"{SMALL}.yaml").read_text(), models.read_text().partition("---")[0]
    for pool in (SMALL, LARGE, OTHER, ABSENT):
        named = demo.replace(f"name: {SMALL}", f"name: {pool}").replace(f"pool: {SMALL}", f"pool: {pool}")
        flags = f"        - --sim-usage-log={folder / 'notes' / pool}\n        - --sim-step-ms=5\n"
        named = named.replace("        - --enable-lora\n", flags + "        - --enable-lora\n")
        (services / f"{pool}.yaml").write_text(named.replace("minReplicas: 2", f"minReplicas: {int(pool != ABSENT)}"))
        if pool != SMALL:
            more = base.replace(f"name: {SMALL}", f"name: {pool}").replace(f"id: {SMALL}", f"id: {pool}")
            models.write_text(f"{models.read_text()}---\n{more}")
    with running_fleet(folder / "state", "sim", None, project) as fleet:
        yield fleet


def noted(fleet: Fleet, pool: str) -> list[tuple[str, int, int]]:
    """Return (request, prompt tokens, completion tokens) finished by the pool's engines; agents' probes have no id."""
    path = fleet.state_dir.parent / "notes" / pool
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(row[0], int(row[1]), int(row[3])) for row in rows if row[0] != "-"]


def figures(fleet: Fleet, name: str) -> dict[tuple[str, ...], float]:
    """Return the metric's samples by label values, which are sorted by label name."""
    text = httpx.get(f"http://127.0.0.1:{fleet.port_base + 5}/metrics", timeout=30.0).text
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def asked(fleet: Fleet, model: str, prompt: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 40, **fields}
    with fleet.client(timeout_s=120.0) as client:
        return client.post("/chat/completions", json=body)


def of_model(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-shoal-model"]).partition("@")[0]


def replica_of(fleet: Fleet, pool: str) -> str:
    return next(str(each["replica_id"]) for each in fleet.replicas() if each["pool"] == pool)


@contextmanager
def much_slower(fleet: Fleet, pool: str) -> Iterator[None]:
    replica = replica_of(fleet, pool)
    fleet.set_faults(replica, slow_factor=20.0)
    try:
        yield
    finally:
        fleet.set_faults(replica, slow_factor=1.0)


def test_a_pool_without_a_replica_falls_back(fleet: Fleet) -> None:
    answer = asked(fleet, ABSENT, SURE)
    assert of_model(answer) == OTHER and answer.json()["model"] == ABSENT
    assert re.fullmatch(rf"from={ABSENT}@[^;]+;reason=unavailable", answer.headers["x-shoal-degraded"])


def test_a_saturated_pool_falls_back_and_is_left_alone_for_as_long_as_it_asked(fleet: Fleet) -> None:
    """The engine rejects only one request, so that its agent's probes do not fail."""
    replica = replica_of(fleet, SMALL)
    refused = figures(fleet, "shoal_attempt_failures_total").get(("overloaded",), 0.0)
    fleet.set_faults(replica, error_status=503, retry_after_s=15)
    try:
        answers = [asked(fleet, SMALL, SURE)]
    finally:
        fleet.set_faults(replica, error_status=None, retry_after_s=None)
    answers += [asked(fleet, SMALL, SURE) for _ in range(2)]
    assert [of_model(answer) for answer in answers] == [OTHER] * 3
    assert all(answer.headers["x-shoal-degraded"].endswith(";reason=saturated") for answer in answers)
    assert figures(fleet, "shoal_attempt_failures_total")[("overloaded",)] == refused + 1, "it was asked once"
    wait_until("the small pool is asked again", lambda: of_model(asked(fleet, SMALL, SURE)) == SMALL, 120)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_cascade_asks_the_larger_model_where_the_small_one_doubts(fleet: Fleet, stream: bool) -> None:
    before = figures(fleet, "shoal_cascade_total"), len(noted(fleet, SMALL)), len(noted(fleet, LARGE))
    with much_slower(fleet, SMALL) if stream else nullcontext():  # a stream must be dropped before it ends
        answers = [asked(fleet, SMALL, prompt, stream=stream) for prompt in (SURE, UNSURE, SURE, UNSURE, UNSURE)]
    assert [of_model(answer) for answer in answers] == [SMALL, LARGE, SMALL, LARGE, LARGE]
    assert all("top_logprobs" not in answer.text for answer in answers), "nobody asked for these"
    now = figures(fleet, "shoal_cascade_total")
    verdicts = {labels[2]: value - before[0].get(labels, 0.0) for labels, value in now.items()}
    assert (verdicts["kept"], verdicts["escalated"]) == (2, 3)
    wait_until("the engines' notes", lambda: len(noted(fleet, LARGE)) == before[2] + 3, 120)
    escalated = {identifier for identifier, _, _ in noted(fleet, LARGE)[before[2] :]}
    assert len(escalated) == 3, "as many as the larger engine finished"
    small = [identifier for identifier, _, _ in noted(fleet, SMALL)[before[1] :]]
    assert len(small) == (2 if stream else 5), "a stream that is not kept is dropped, a whole answer is not seen before"


def test_both_answers_of_a_cascade_are_counted_as_the_engines_counted(fleet: Fleet) -> None:
    before = figures(fleet, "shoal_tokens_total"), len(noted(fleet, SMALL)), len(noted(fleet, LARGE))
    assert of_model(asked(fleet, SMALL, UNSURE)) == LARGE
    for pool, since in ((SMALL, before[1]), (LARGE, before[2])):
        wait_until(f"{pool} has noted it", lambda: len(noted(fleet, pool)) == since + 1, 120)  # noqa: B023
        _, prompt, completion = noted(fleet, pool)[since]
        for kind, tokens in (("prompt", prompt), ("completion", completion)):
            counted = figures(fleet, "shoal_tokens_total")[(kind, pool)] - before[0].get((kind, pool), 0.0)
            assert counted == tokens > 0, (pool, kind)


def test_a_classifier_chooses_by_rule(fleet: Fleet) -> None:
    assert of_model(asked(fleet, "auto", "Prove the theorem.")) == LARGE
    assert of_model(asked(fleet, "auto", "Tell me of fish.")) == OTHER


def test_the_trace_and_the_simulated_threshold_say_what_happened(fleet: Fleet) -> None:
    answer = asked(fleet, SMALL, UNSURE)
    identifier = answer.headers["x-request-id"]
    wait_until("the row", lambda: fleet.shoal("trace", identifier, "-o", "json").returncode == 0, 120)
    shown = fleet.shoal("trace", identifier)
    assert "escalated" in shown.stdout and LARGE in shown.stdout, shown.stdout
    traces = str(fleet.state_dir / "gateway" / "traces")
    table = fleet.shoal("simulate", "cascade", "--trace", traces, "--threshold", "0.8")
    assert f"{SMALL} to {LARGE}" in table.stdout and table.returncode == 0, table.stdout + table.stderr
