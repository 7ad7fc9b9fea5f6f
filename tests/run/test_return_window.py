"""The window of the last 100 returns."""

import pytest

from rookery.run.returns import ReturnWindow


def test_the_mean_is_over_the_last_episodes_only():
    window = ReturnWindow(size=3)
    assert window.return_mean is None and not window.full
    window.add([1.0], 0.1)
    assert window.return_mean == 1.0
    window.add([2.0, 3.0], 0.2)
    assert window.full and window.return_mean == 2.0
    window.add([10.0], 0.3)
    assert window.return_mean == 5.0 and window.episodes == 4


def test_the_target_counts_only_when_the_window_is_full_and_the_first_time():
    window = ReturnWindow(target=195.0)
    window.add([500.0] * 99, 1.0)
    assert window.seconds_to_target is None and not window.reached
    window.add([500.0], 2.0)
    assert window.seconds_to_target == 2.0 and window.reached
    window.add([0.0] * 100, 3.0)
    assert not window.reached
    window.add([500.0] * 100, 4.0)
    assert window.seconds_to_target == 2.0


def test_a_target_reached_inside_a_batch_of_episodes_is_not_missed():
    window = ReturnWindow(size=2, target=1.0)
    window.add([1.0, 1.0, -9.0], 5.0)
    assert window.seconds_to_target == 5.0


def test_a_restored_window_continues_as_the_first():
    first, second = ReturnWindow(size=3, target=2.0), ReturnWindow(size=3, target=2.0)
    first.add([1.0, 2.0, 3.0, 4.0], 1.0)
    second.restore(first.snapshot())
    for window in (first, second):
        window.add([5.0], 9.0)
    assert first.snapshot() == second.snapshot() and second.return_mean == 4.0 and second.seconds_to_target == 1.0


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="size=0"):
        ReturnWindow(0)
