"""Which gateway claims which batch, and when no gateway may."""

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.batch.choice import LEASE_S, MAX_WINDOW_S, Markers, OpenBatch, choose, window_s


def test_a_batch_is_free_once_its_marker_has_not_changed_for_the_lease() -> None:
    markers, batch = Markers(), OpenBatch("acme", "b1", 7.0)
    assert not markers.find_idle([batch], 100.0)
    assert not markers.find_idle([batch], 100.0 + LEASE_S - 0.1)
    assert markers.find_idle([batch], 100.0 + LEASE_S) == [batch]


def test_touched_marker_renews_the_lease_whatever_its_timestamp() -> None:
    """The store's clock may jump either way: only a change of its value counts."""
    markers = Markers()
    markers.find_idle([OpenBatch("acme", "b1", 7.0)], 100.0)
    assert not markers.find_idle([OpenBatch("acme", "b1", -5000.0)], 119.0)
    assert not markers.find_idle([OpenBatch("acme", "b1", -5000.0)], 130.0)
    assert markers.find_idle([OpenBatch("acme", "b1", -5000.0)], 139.0)


def test_store_outage_frees_no_batch() -> None:
    markers, batch = Markers(), OpenBatch("acme", "b1", 7.0)
    markers.find_idle([batch], 100.0)
    markers.forget()  # a minute in which neither the owner nor the observer reached the store
    assert not markers.find_idle([batch], 160.0)


def test_removed_batches_are_forgotten() -> None:
    markers, batch = Markers(), OpenBatch("acme", "b1", 7.0)
    markers.find_idle([batch], 100.0)
    markers.find_idle([], 110.0)
    assert not markers.find_idle([batch], 130.0) and len(markers._seen) == 1


def test_tenant_with_a_thousand_batches_does_not_block_another() -> None:
    flood = [OpenBatch("acme", f"a{n:04d}", 0.0) for n in range(1000)]
    chosen = choose([*flood, OpenBatch("globex", "z", 0.0)], ["acme"], places=3, places_per_tenant=4)
    assert [one.id for one in chosen] == ["z", "a0000", "a0001"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=20, unique_by=lambda one: one[1]),
    st.lists(st.sampled_from("abc"), max_size=6),
    st.integers(0, 8),
)
def test_chosen_batches_fit_the_free_places(idle: list[tuple[str, int]], mine: list[str], places: int) -> None:
    batches = [OpenBatch(tenant, f"b{number:02d}", 0.0) for tenant, number in idle]
    chosen = choose(batches, mine, places, places_per_tenant=4)
    assert len(chosen) <= places and len({one.id for one in chosen}) == len(chosen)
    for tenant in "abc":
        taken = sum(one.tenant == tenant for one in chosen)
        assert not taken or mine.count(tenant) + taken <= 4


def test_a_window_is_minutes_or_hours_up_to_a_week() -> None:
    assert [window_s(text) for text in ("24h", "1m", "168h")] == [86_400, 60, MAX_WINDOW_S]
    assert [window_s(text) for text in ("169h", "0h", "1d", "24H", "-1h", "", "99999h", "24h ", "٣h")] == [None] * 9
