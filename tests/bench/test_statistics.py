import pytest

from rookery.bench.statistics import median, ratio, slope, spread


def test_the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two():
    assert median([9.0, 1.0, 2.0, 4.0]) == 3.0


def test_a_target_that_was_not_reached_counts_as_infinitely_slow():
    assert median([5.0, None, 1.0]) == 5.0
    assert median([5.0, None, None]) is None
    assert median([5.0, None]) is None
    assert median([]) is None


def test_the_spread_ignores_what_never_came():
    assert spread([3.0, None, 1.0]) == (1.0, 3.0)
    assert spread([None]) is None


def test_a_ratio_with_a_missing_side_is_missing():
    assert ratio(6.0, 4.0) == 1.5
    assert ratio(None, 4.0) is None
    assert ratio(4.0, None) is None
    assert ratio(4.0, 0.0) is None


def test_the_slope_of_a_line_with_symmetric_noise_is_that_of_the_line():
    x = [0.0, 1.0, 2.0, 3.0]
    assert slope(x, [1.0 + 2.5 * t + noise for t, noise in zip(x, (0.1, -0.1, -0.1, 0.1))]) == pytest.approx(2.5)


def test_there_is_no_slope_through_one_place():
    assert slope([1.0, 1.0], [0.0, 5.0]) is None
    with pytest.raises(ValueError, match="as many of each"):
        slope([1.0], [1.0, 2.0])
