"""A mutating webhook, as on every cluster with KServe: its defaults are no drift, and its refusals are reported."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from functions.controller.kubernetes.errors import Retryable
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, autoscaling, pool
from tests.controller.kubernetes.webhook_double import DEFAULT_TIMEOUT_S, Webhook, running_webhook

pytestmark = pytest.mark.servers

REGISTERED_WAIT_S = 60.0


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


@pytest.fixture
def webhook(fleet: Fleet, tmp_path: Path) -> Iterator[Webhook]:
    with running_webhook(fleet.space, tmp_path) as webhook:
        body = next(each.body for each in fleet.desired(pool("probe")).objects if each.ref.kind == "InferenceService")
        deadline_s = time.monotonic() + REGISTERED_WAIT_S
        while not webhook.asked and time.monotonic() < deadline_s:  # the API server learns of webhooks by a watch
            fleet.api.server_side_apply(body, dry_run=True)
            time.sleep(0.1)
        assert webhook.asked
        yield webhook


def predictor(fleet: Fleet) -> dict[str, object]:
    found: dict[str, object] = (fleet.service("a") or {})["spec"]["predictor"]
    return found


def test_defaults_of_the_webhook_are_no_drift(fleet: Fleet, webhook: Webhook) -> None:
    desired = fleet.desired(pool("a"), autoscaling("a"))
    fleet.converge(desired)
    assert predictor(fleet)["timeout"] == DEFAULT_TIMEOUT_S
    before, asked = fleet.api.counts.writes, webhook.asked
    for _ in range(10):
        assert fleet.applier.reconcile(desired).is_healthy
    assert fleet.api.counts.writes == before
    assert webhook.asked > asked  # dry runs call it too
    assert fleet.kserve.restarts == {}


def test_empty_values_that_the_webhook_leaves_out_are_not_lost_fields(fleet: Fleet, webhook: Webhook) -> None:
    empty = pool("a", args="--x").replace("args: [", 'env: [{name: EMPTY, value: ""}], args: [')
    outcome = fleet.push(empty)
    assert outcome.result == "applied"
    assert predictor(fleet)["model"]["env"] == [{"name": "EMPTY"}]  # type: ignore[index]


def test_default_that_git_overrides_later_is_no_conflict(fleet: Fleet, webhook: Webhook) -> None:
    fleet.converge(fleet.desired(pool("a")))
    fleet.converge(fleet.desired(pool("a", more="timeout: 3600, ")))
    assert predictor(fleet)["timeout"] == 3600


def test_refusal_of_the_webhook_blocks_the_revision_and_is_reported(fleet: Fleet, webhook: Webhook) -> None:
    fleet.converge(fleet.desired(pool("a")))
    webhook.refuses = "exactly one of something is required"
    outcome = fleet.push(pool("a", args="--changed"), pool("b"))
    assert outcome.result == "refused"
    assert "exactly one of something is required" in outcome.stalled
    assert fleet.budget("b") is None


def test_unreachable_webhook_is_retryable(fleet: Fleet, webhook: Webhook) -> None:
    fleet.converge(fleet.desired(pool("a")))
    webhook.is_down = True
    desired = fleet.desired(pool("a", args="--changed"))
    with pytest.raises(Retryable, match="failed calling webhook"):
        fleet.applier.reconcile(desired)
    webhook.is_down = False
    fleet.converge(desired)
