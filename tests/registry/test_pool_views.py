"""An agent's part of the snapshot: its own pool only, and no update unless that part changes."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName, ModelId, PoolName
from functions.api.snapshot import ModelEntry, PoolEntry, RolloutEntry, StageEntry, VersionEntry
from functions.api.snapshot_index import Indexed, changes_between, indexed
from functions.decisions.adapters.demand import build_demand
from functions.registry.feed import Feed
from functions.registry.store import advance_view, pools_concerned, view_of
from tests.fleet.builders import snapshot

POOLS = ("p0", "p1", "p2")


def model(name: str, pool: str, digit: str = "1") -> ModelEntry:
    version = VersionEntry("v1", Digest("sha256:" + digit * 64), EngineName(f"{name}@{digit}"), "s3://b/x")
    return ModelEntry(ModelId(name), PoolName(pool), "lora", (version,), {"stable": "v1"})


def content(epoch: int, models: dict[str, tuple[str, str]], rollouts: bool = False, p0_serves: str = "") -> Indexed:
    pools = sorted({pool for pool, _ in models.values()} | {"p0"})
    return indexed(
        snapshot(
            epoch=epoch,
            models=tuple(model(name, *at) for name, at in sorted(models.items())),
            pools=tuple(PoolEntry(PoolName(name), 2048, model=p0_serves if name == "p0" else "") for name in pools),
            rollouts=(RolloutEntry("default", (StageEntry(100),)),) if rollouts else (),
        )
    )


def test_pool_view_has_its_pool_and_no_tenants() -> None:
    view = view_of(content(3, {"a/x": ("p0", "1"), "a/y": ("p1", "1")}, rollouts=True), PoolName("p1"))
    it = view.snapshot
    assert ([m.id for m in it.models], [p.name for p in it.pools], it.epoch) == (["a/y"], ["p1"], 3)
    assert (it.tenants, it.keys, it.quotas) == ((), (), ())
    assert [rollout.name for rollout in it.rollouts] == ["default"]


def test_second_pool_of_a_model_gets_its_adapters() -> None:
    models = {"a/x": ("p0", "1"), "a/y": ("p1", "1"), "a/z": ("p2", "1")}
    it = view_of(content(3, models, p0_serves="p1"), PoolName("p0")).snapshot
    assert ([m.id for m in it.models], [p.name for p in it.pools]) == (["a/y"], ["p0", "p1"])
    assert list(build_demand(it, PoolName("p0")).by_name) == ["a/y@1"]


def test_missing_pool_has_an_empty_view() -> None:
    it = view_of(content(3, {}), PoolName("gone")).snapshot
    assert (it.models, it.pools, it.epoch) == ((), (), 3)


placed = st.dictionaries(
    st.sampled_from(["a/1", "a/2", "a/3"]), st.tuples(st.sampled_from(POOLS), st.sampled_from("12"))
)


@settings(deadline=None)
@given(st.lists(st.tuples(placed, st.booleans(), st.sampled_from(["", "p1", "p2"])), min_size=2, max_size=6))
def test_followed_view_changes_only_with_its_content(
    steps: list[tuple[dict[str, tuple[str, str]], bool, str]],
) -> None:
    """Removal of a pool is handled by the store, which then drops the view."""
    whole = [content(epoch, *step) for epoch, step in enumerate(steps, start=1)]
    feed = Feed(view_of(whole[0], PoolName("p0")))
    for before, after in pairwise(whole):
        changes = changes_between(before, after)
        held = feed.content
        advance_view(feed, after, changes, PoolName("p0"))
        expected = view_of(after, PoolName("p0"))
        assert feed.content.content_hash == expected.content_hash
        assert (feed.epoch == after.snapshot.epoch) == (expected.content_hash != held.content_hash)
        concerned = pools_concerned(before, changes)
        if expected.content_hash != held.content_hash:
            assert "p0" in concerned or "*" in concerned, "its agents must be told"
