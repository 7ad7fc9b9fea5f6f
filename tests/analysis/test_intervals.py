"""Statistics of a few seeds, against scipy, against every resample there is, and against numbers worked out by hand."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from rookery.analysis import bootstrap, difference, iqm, probability_of_improvement, profile, student

VALUES = [3.1, 0.2, 7.7, 4.4, 5.0, 6.3, -2.0, 4.1]


def test_the_iqm_is_a_trimmed_mean_where_a_quarter_is_a_whole_number_of_values():
    for count in (4, 8, 20, 100):
        values = np.random.default_rng(count).standard_normal(count)
        assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_values_at_the_edges_of_the_middle_half_count_by_their_share():
    assert iqm([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx((0.75 * 2 + 3 + 0.75 * 4) / 2.5)
    assert iqm([1.0, 5.0]) == 3.0 and iqm([7.0]) == 7.0
    assert iqm([1.0, 2.0, 30.0]) == pytest.approx((0.25 * 1 + 2 + 0.25 * 30) / 1.5)


def test_the_iqm_runs_along_any_axis():
    values = np.random.default_rng(0).standard_normal((4, 6, 5))
    assert np.allclose(iqm(values, axis=1), [[iqm(values[i, :, j]) for j in range(5)] for i in range(4)])
    with pytest.raises(ValueError, match="no values"):
        iqm([])


def enumerated(*strata: list[float]) -> np.ndarray:
    """Every resample of each stratum, all equally likely: the values drawn, [R, n]."""
    drawn = product(*(product(part, repeat=len(part)) for part in strata))
    return np.array([[value for part in parts for value in part] for parts in drawn])


def test_the_interval_is_what_all_resamples_give():
    every = np.sort(iqm(enumerated(VALUES[:4])))  # 256 of them
    found = bootstrap(VALUES[:4], resamples=100_000, confidence=0.9)
    assert found.value == pytest.approx(iqm(VALUES[:4]))
    assert (found.low, found.high) == pytest.approx((every[12], every[243]), abs=1e-9)  # a value that is drawn, 5 % and 95 %


def test_the_mean_of_nothing_and_one_is_a_half_half_of_the_time():
    assert bootstrap([0.0, 1.0], np.mean, confidence=0.95)[1:] == (0.0, 1.0)
    assert bootstrap([0.0, 1.0], np.mean, confidence=0.4)[1:] == (0.5, 0.5)


def test_strata_are_drawn_among_themselves():
    scores = {"small": [0.0, 1.0], "large": [100.0, 102.0]}
    every = enumerated(*scores.values()).mean(1)  # 16 of them: none mixes the two
    found = bootstrap(scores, np.mean, resamples=50_000, confidence=0.8)
    low, high = np.quantile(every, [0.1, 0.9], method="inverted_cdf")
    assert (found.value, found.low, found.high) == pytest.approx((50.75, low, high))
    apart = bootstrap([*scores["small"], *scores["large"]], np.mean)
    assert apart.high - apart.low > 20 * (found.high - found.low)


def test_the_interval_of_a_mean_agrees_with_scipy():
    values = np.random.default_rng(1).gamma(2.0, size=30)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2))
    ours = bootstrap(values, np.mean, resamples=20_000)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours[1:] == pytest.approx(tuple(theirs.confidence_interval), abs=0.04 * width)


def test_the_same_seed_draws_the_same_interval_and_blocks_do_not_matter(monkeypatch):
    from rookery.analysis import statistics

    assert bootstrap(VALUES, seed=3) == bootstrap(VALUES, seed=3) != bootstrap(VALUES, seed=4)
    whole = bootstrap(VALUES, resamples=1000)
    monkeypatch.setattr(statistics, "BLOCK", len(VALUES) * 70)
    assert bootstrap(VALUES, resamples=1000) == whole


@pytest.mark.parametrize("count, least, most", [(20, 0.90, 0.97), (3, 0.0, 0.85)])
def test_the_interval_covers_the_truth_nearly_as_often_as_it_says_but_not_with_three_seeds(count, least, most):
    rng = np.random.default_rng(0)
    found = [bootstrap(rng.standard_normal(count), np.mean, resamples=500, seed=i) for i in range(500)]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in found])
    assert least <= covered <= most


def test_a_single_value_has_no_interval():
    assert not bootstrap([3.0]).is_known and bootstrap([3.0]).value == 3.0
    assert not bootstrap({"a": [1.0, 2.0], "b": [1.0]}).is_known, "a stratum of one cannot vary, and would look sure"
    assert not probability_of_improvement([1.0], [0.0, 1.0]).is_known


def test_the_probability_of_improvement_counts_pairs_and_half_of_ties():
    assert probability_of_improvement([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]).value == pytest.approx(3 / 9)
    x, y = np.random.default_rng(5).integers(0, 9, (2, 12)).astype(float)
    whole = stats.mannwhitneyu(x, y).statistic / 144
    assert probability_of_improvement(x, y).value == pytest.approx(whole)
    assert probability_of_improvement(y, x).value == pytest.approx(1 - whole)


def test_the_probability_of_improvement_is_averaged_over_the_environments_that_both_have():
    x = {"a": [1.0, 2.0], "b": [5.0, 6.0], "only x": [0.0, 0.0]}
    y = {"b": [5.5, 5.5], "a": [0.0, 0.0], "only y": [9.0]}
    assert probability_of_improvement(x, y).value == pytest.approx((1.0 + 0.5) / 2)
    with pytest.raises(ValueError, match="no environment in common"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})


def test_the_interval_of_the_probability_is_what_all_resamples_give():
    x, y = [1.0, 4.0, 6.0], [2.0, 3.0, 5.0]
    every = [np.mean([[a > b for b in drawn_y] for a in drawn_x])
             for drawn_x in product(x, repeat=3) for drawn_y in product(y, repeat=3)]  # fmt: skip
    found = probability_of_improvement(x, y, resamples=50_000)
    assert found.value == pytest.approx(5 / 9)
    assert found[1:] == pytest.approx(tuple(np.quantile(every, [0.025, 0.975], method="inverted_cdf")), abs=0.02)


def test_a_profile_is_the_share_of_runs_above_each_score_in_each_environment():
    found = profile({"a": [1.0, 2.0, 3.0, 4.0], "b": [10.0, 20.0]}, [0.0, 2.0, 15.0])
    assert found.share == pytest.approx([1.0, 0.75, 0.25])
    assert np.all(found.low <= found.share) and np.all(found.share <= found.high)
    assert found.low[0] == found.high[0] == 1.0 and found.high[2] == 0.5, "of b alone, both above 15"
    alone = profile(VALUES)
    assert alone.score[0] == min(VALUES) and alone.share[-1] == 0.0 and np.all(np.diff(alone.share) <= 0)


def test_a_difference_has_an_interval_of_its_own():
    x, y = np.random.default_rng(7).standard_normal((2, 10)) + [[1.0], [0.0]]
    found = difference(x, y, np.mean)
    assert found.value == pytest.approx(x.mean() - y.mean())
    half = np.sqrt(x.var() / 10 + y.var() / 10) * 1.96
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.2 * half)


@pytest.mark.parametrize("count, quantile", [(2, 12.706), (8, 2.365), (10, 2.262), (30, 2.045)])
def test_students_interval_has_the_quantile_of_its_degrees_of_freedom(count, quantile):
    values = np.random.default_rng(count).standard_normal(count)
    found = student(values)
    assert found.high - found.value == pytest.approx(quantile * values.std(ddof=1) / np.sqrt(count), rel=2e-4)
    theirs = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert found[1:] == pytest.approx(theirs)
    assert not student([1.0]).is_known


def test_what_is_no_score_is_refused():
    for wrong in ([], {}, {"a": []}, [1.0, float("nan")]):
        with pytest.raises(ValueError, match="scores"):
            bootstrap(wrong)
    with pytest.raises(ValueError, match="confidence 1"):
        bootstrap(VALUES, confidence=1.0)


def test_without_scipy_the_remedy_is_said(monkeypatch):
    from rookery.analysis import statistics
    from rookery.run.tensorboard import MissingExtra

    monkeypatch.setattr(statistics, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs scipy: pip install 'rookery\[plot\]'"):
        student([1.0, 2.0])
