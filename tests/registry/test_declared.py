"""A missing policy is replaced by the built-in one, so that no channel moves at once because a name is gone."""

import msgspec
import pytest

from functions.registry.declared import DeclaredCatalogue
from tests.registry.backends import url
from tests.registry.catalogue_rig import Rig, published

__all__ = ["url"]


async def without(rig: Rig, *names: str) -> None:
    snapshot = published(rig.store.epoch + 1)
    left = tuple(policy for policy in snapshot.rollouts if policy.name not in names)
    await rig.store.publish(msgspec.structs.replace(snapshot, rollouts=left))


@pytest.mark.parametrize("gone", [("default",), ("slow", "default"), ("slow",)])
async def test_undeclared_policy_falls_back_to_the_default(catalogue: Rig, gone: tuple[str, ...]) -> None:
    policy = "slow" if "slow" in gone else "default"
    assert (await catalogue.put("v1", "c", promote_to="stable", rollout=policy)).status_code == 201
    assert (await catalogue.put("v2", "d")).status_code == 201
    await without(catalogue, *gone)
    moved = await catalogue.point("v2")
    assert (moved.status_code, moved.json()["moved"]) == (202, False)
    stages = [stage.percent for stage in DeclaredCatalogue(catalogue.store).policy(policy).stages]
    assert stages == ([1, 10, 50, 100] if "default" in gone else [10, 100])  # as built in, or as declared


async def test_default_policy_may_be_named_without_a_declaration(catalogue: Rig) -> None:
    await without(catalogue, "default")
    assert (await catalogue.put("v1", "c", rollout="default")).status_code == 201
    refused = await catalogue.put("v1", "c", model="acme/other", rollout="nowhere")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "policy_not_found")
