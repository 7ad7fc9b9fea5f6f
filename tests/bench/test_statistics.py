import pytest

from rookery_bench.statistics import bootstrap, interval, iqm, median, ratio, slope, spread


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


def test_the_iqm_is_the_mean_of_the_middle_half():
    assert iqm([8.0, 1.0, 3.0, 5.0]) == 4.0  # 3 and 5
    assert iqm([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx((0.75 * 2 + 3 + 0.75 * 4) / 2.5)
    assert iqm([7.0]) == 7.0 and iqm([]) is None


def test_the_bootstrap_interval_holds_the_iqm_and_narrows_with_more_values():
    few, many = [1.0, 2.0, 4.0, 5.0, 9.0], [1.0, 2.0, 4.0, 5.0, 9.0] * 10
    low, high = bootstrap(few)
    assert low <= iqm(few) <= high and bootstrap(few) == (low, high), "the same seed gives the same interval"
    assert bootstrap(many, samples=1000)[1] - bootstrap(many, samples=1000)[0] < 0.6 * (high - low)
    assert bootstrap([3.0]) == (None, None)


def test_the_interval_of_a_mean_is_right_beyond_eight_values():
    values = [float(i % 3) for i in range(10)]  # deviation 0.8756
    low, high = interval(values)
    assert (high - low) / 2 == pytest.approx(2.262 * 0.87560 / 10**0.5, rel=1e-3), "Student's t of 9 degrees of freedom, not 2"
    assert interval([1.0]) == (None, None)
