"""Conditions under which `shoal adapter push` treats a pushed version as in force."""

from typing import Any, cast

import pytest

from functions.api.ids import ModelId
from functions.cli import in_force
from functions.cli.registry_client import Registry


def page(*, published: bool, channel: str | None = None, epoch: int = 4) -> dict[str, Any]:
    channels = {"stable": channel} if channel else {}
    return {
        "versions": [{"name": "v1", "in_force": True}, {"name": "v2", "in_force": published}],
        "channels_in_force": channels,
        "snapshot_epoch": epoch,
    }


class Pages:
    """A registry that answers with the next page each time, and repeats the last one."""

    def __init__(self, *pages: dict[str, Any] | None, local: bool = False) -> None:
        self.pages, self.is_local, self.context, self.asked = list(pages), local, None, 0

    def model(self, model_id: ModelId) -> dict[str, Any] | None:
        self.asked += 1
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]


def waited_s(pages: Pages, channel: str | None = None, timeout_s: float = 5.0) -> float | None:
    return in_force.wait_in_force(cast(Registry, pages), ModelId("acme/bot"), "v2", channel, timeout_s=timeout_s)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_force, "_POLL_S", 0.0)


def test_it_waits_for_the_version_and_for_the_channel_that_moves() -> None:
    """Without the wait, the next request names a model that gateways do not know yet and gets 404."""
    pages = Pages(page(published=False), page(published=True, channel="v1"), page(published=True, channel="v2"))
    assert waited_s(pages, "stable") is not None
    assert pages.asked == 3
    pages = Pages(page(published=False), page(published=True, channel="v1"))
    assert waited_s(pages) is not None, "a rollout moves the channel in its own time"
    assert pages.asked == 2


def test_an_older_registry_a_model_that_went_and_one_that_is_never_published_end_it() -> None:
    older = page(published=True) | {"channels_in_force": None}
    assert waited_s(Pages(older)) is None
    assert waited_s(Pages(None)) is None
    assert waited_s(Pages(page(published=False)), timeout_s=0.05) is None


def test_on_the_fleets_own_machine_its_gateway_has_to_use_the_snapshot() -> None:
    epochs = iter((None, 3, 4))
    pages = Pages(page(published=True), local=True)
    waited = in_force.wait_in_force(
        cast(Registry, pages),
        ModelId("acme/bot"),
        "v2",
        None,
        status=lambda context: {"snapshot": {"gateway_epoch": next(epochs)}},
    )
    assert waited is not None
    assert pages.asked == 3
