from functions.decisions.admission.bounds import Strain, queue_headroom_ratio


def test_worked_example_of_overload() -> None:
    strain = Strain()
    assert not strain.record_longest_wait(0.2, 0.5, 10.0)
    assert not strain.record_longest_wait(0.2, 0.5, 10.25)
    assert strain.record_longest_wait(0.2, 0.5, 10.5)


def test_one_short_wait_restarts_the_clock() -> None:
    strain = Strain()
    strain.record_longest_wait(0.2, 0.5, 10.0)
    strain.record_longest_wait(0.1, 0.5, 10.25)
    assert not strain.record_longest_wait(0.2, 0.5, 10.5)
    assert not strain.record_longest_wait(0.2, 0.5, 10.75)
    assert strain.record_longest_wait(0.2, 0.5, 11.0)


def test_overload_ends_as_slowly_as_it_began() -> None:
    strain = Strain(overloaded=True)
    assert strain.record_longest_wait(0.0, 0.5, 10.0)
    assert strain.record_longest_wait(0.0, 0.5, 10.4)
    assert not strain.record_longest_wait(0.0, 0.5, 10.5)


def test_tenants_of_low_weight_lose_queue_room_first() -> None:
    assert queue_headroom_ratio(1, 8) * 2_000_000 == 1_125_000
    assert queue_headroom_ratio(8, 8) == 1.0
    assert queue_headroom_ratio(8, 1) == 1.0
