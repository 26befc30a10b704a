"""Output of a push: the changes it makes and its result."""

from types import SimpleNamespace

import pytest

from functions.api.problems import Problem, SourceLocation
from functions.cli.diff import processes_changed
from functions.controller.gitops.following import BranchFollower
from functions.controller.gitops.review import (
    SHOWN_CHANGES,
    SHOWN_WARNINGS,
    Push,
    ReferenceUpdate,
    Reviewer,
    changes_in_words,
)
from functions.controller.gitops.source import GitSource
from functions.controller.orders import follow_words
from functions.controller.snapshot.publish import PublishOutcome
from tests.controller.configs import base, load, pool, tenant
from tests.controller.gitops.conftest import Bench
from tests.controller.unobeyed.test_declared import EVENTS

WEIGHTS = "model: {storageUri: pvc://shoal-models/base, "


def served(name: str = "base", args: str = "--max-model-len=2048") -> str:
    return pool(name, args=args).replace("model: {", WEIGHTS)


def test_push_lists_changes_for_callers_and_processes() -> None:
    before = load(served(), tenant("acme", "ci"), base())
    after = load(served(args='"--max-model-len=2048", "--seed=1"'), served("second"), tenant("acme"), base())
    words = "\n".join(changes_in_words(before, after))
    assert "tenant acme: key ci revoked" in words
    assert "pool base: other arguments; its replicas are replaced one at a time" in words
    assert "pool second: its processes are started" in words
    assert "0123456789abcdef" not in words, "no key's hash reaches a terminal"
    assert "pool second: its processes are drained, then ended" in "\n".join(changes_in_words(after, before))


@pytest.mark.parametrize("is_scaled", [True, False])
def test_replica_change_of_a_scaled_pool_names_the_owner(is_scaled: bool) -> None:
    policy = """\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: base}
spec: {pool: base, replicas: {min: 1, max: 4}, scaleUp: ["queue_seconds > 9: +1"]}
"""
    others = (base(), policy) if is_scaled else (base(),)
    before, after = (
        load(served().replace("minReplicas: 1", f"minReplicas: {n}, maxReplicas: 4"), *others) for n in (1, 2)
    )
    words = "\n".join(changes_in_words(before, after))
    assert ("pool base: minReplicas is what it starts with" in words) == is_scaled
    assert "minReplicas is" not in "\n".join(changes_in_words(after, after))


def test_equal_push_changes_nothing() -> None:
    same = load(served(), tenant("acme", "ci"), base())
    assert changes_in_words(same, same) == ("no change",)


def test_a_push_that_replaces_replicas_is_not_called_no_change() -> None:
    before, after = (load(served(args=f'"--max-model-len=2048", "--seed={seed}"'), base()) for seed in (1, 2))
    headline, *lines = changes_in_words(before, after)
    assert headline == "no change to the snapshot, only to processes"
    assert lines == ["pool base: other arguments; its replicas are replaced one at a time, each drained first"]


def test_diff_lists_processes_against_the_local_branch(bench: Bench) -> None:
    bench.force({})
    candidate = load(served(args='"--max-model-len=2048", "--seed=1"'), tenant("acme", "ci"), base())
    for repository, told in ((bench.repository.path, 1), (bench.repository.path / "none", 0)):
        layout = SimpleNamespace(gitops_dir=repository)
        lines = processes_changed(SimpleNamespace(layout=layout), candidate)  # type: ignore[arg-type]
        assert len(lines) == told and all("its replicas are replaced" in line for line in lines)


@pytest.mark.servers
def test_push_without_controller_lists_its_changes(bench: Bench) -> None:
    assert bench.push().returncode == 0
    bench.commit({"pool.yaml": served(args='"--max-model-len=2048", "--seed=1"'), "tenants.yaml": tenant("acme")})
    pushed = bench.push()
    assert pushed.returncode == 0, pushed.stderr
    assert "tenant acme: key ci revoked" in pushed.stderr and "its replicas are replaced one at a time" in pushed.stderr


def test_thousands_of_changes_are_cut_off(bench: Bench) -> None:
    many = tuple(f"tenant t{number} added" for number in range(SHOWN_CHANGES + 500))
    reviewer = Reviewer(GitSource(bench.repository.path), lambda loaded: (), lambda present, candidate: many)
    commit = bench.force({})
    verdict = reviewer.review(Push((ReferenceUpdate("0" * 40, commit, "refs/heads/main"),)), None)
    assert verdict.accepted
    assert (len(verdict.lines), verdict.lines[-1]) == (SHOWN_CHANGES + 1, "… and 500 more changes")


def test_push_warns_of_policies_that_cannot_be_obeyed(bench: Bench) -> None:
    reviewer = Reviewer(GitSource(bench.repository.path), lambda loaded: (), changes_in_words)
    pools = "---\n".join(
        served(f"p{number:02}", args='"--max-model-len=2048", "--no-enable-prefix-caching"')
        for number in range(SHOWN_WARNINGS + 2)
    )
    commit = bench.force({"pools.yaml": pools, "routing.yaml": EVENTS})
    verdict = reviewer.review(Push((ReferenceUpdate("0" * 40, commit, "refs/heads/main"),)), None)
    assert verdict.accepted
    warnings = verdict.lines[-SHOWN_WARNINGS - 1 :]
    assert warnings[0].startswith("warning: routing.yaml:4:39: spec.prefix.source: found events, but p00 is started")
    assert warnings[-1] == "… and 2 more warnings"


async def test_push_result_is_described(bench: Bench) -> None:
    bench.force({})
    following = BranchFollower(GitSource(bench.repository.path), bench.socket.with_name("r.json"), lambda loaded: ())
    await following.start()
    problem = str(Problem(SourceLocation("m.yaml", 1, 1), "", "acme/bot@v9 is left out"))
    outcome = PublishOutcome("published", "", epoch=7, problems=(problem,), held=("acme/bot:stable stays v1",))
    told = follow_words(following, outcome, live=True, epoch=7, took_s=0.067)
    assert told[0] == "live on the gateway as epoch 7, 67 ms after the push"
    assert told[1].startswith("processes are still changing")
    assert told[2:] == ["but acme/bot:stable stays v1", f"but {problem}"]
    waiting = follow_words(following, outcome, live=False, epoch=7, took_s=5.0)
    assert waiting == [
        "accepted and being applied: `shoal status` shows the progress",
        "  acme/bot:stable stays v1",
    ]
    following.suspend("")
    (suspended,) = follow_words(following, outcome, live=True, epoch=7, took_s=0.1)
    assert "until `shoal resume`" in suspended
