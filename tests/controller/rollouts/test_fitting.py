"""Models declared through the API share the room that git leaves; the largest are left out first."""

from hypothesis import given
from hypothesis import strategies as st

from functions.controller.rollouts.merging import tenant_cap_bytes


def test_largest_tenants_are_left_out_first() -> None:
    assert tenant_cap_bytes([300, 30, 20], room_bytes=100) == 50
    assert tenant_cap_bytes([300, 200, 20], room_bytes=100) == 40
    assert tenant_cap_bytes([300], room_bytes=-5) == 0


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=20), room=st.integers(0, 5000))
def test_fitted_models_use_all_room(sizes: list[int], room: int) -> None:
    most = tenant_cap_bytes(sizes, room)
    got = sum(min(size, most) for size in sizes)
    assert got <= room or got == 0
    if sum(sizes) > room:
        assert room - got < len(sizes)
    else:
        assert got == sum(sizes)
