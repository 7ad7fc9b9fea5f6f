"""Several seeds on a common grid: who counts where, and what the band is."""

import numpy as np
import pytest
from run_files import write_run

from rookery.analysis import Series, bootstrap, curve, iqm
from rookery.analysis.history import read


def line(start, stop, slope, count=50):
    x = np.linspace(start, stop, count)
    return Series(x, slope * x)


def test_the_middle_and_the_band_of_lines_are_lines():
    found = curve([line(0, 100, slope) for slope in (1.0, 2.0, 6.0)], points=11)
    assert found.x.tolist() == list(range(0, 101, 10))
    assert found.middle == pytest.approx(3.0 * found.x)
    assert found.low == pytest.approx(found.x) and found.high == pytest.approx(6.0 * found.x), "of three: least and greatest"
    assert curve([line(0, 100, s) for s in (1.0, 2.0, 6.0)], points=11, middle="median").middle == pytest.approx(2 * found.x)
    four = curve([line(0, 100, s) for s in (1.0, 2.0, 4.0, 50.0)], points=11, middle="iqm").middle
    assert four == pytest.approx(iqm([1.0, 2.0, 4.0, 50.0]) * found.x)


def test_from_five_seeds_on_the_band_is_a_bootstrap_that_draws_whole_runs():
    seeds = [line(0, 100, slope) for slope in (1.0, 2.0, 3.0, 4.0, 5.0)]
    found = curve(seeds, points=11)
    assert np.all(found.low[1:] > found.x[1:]) and np.all(found.high[1:] < 5 * found.x[1:])
    assert found.low == pytest.approx(found.low[-1] / 100 * found.x), "the same seeds are drawn at every point"
    assert np.array_equal(found.low, curve(seeds, points=11).low)
    uneven = [line(0, 100, np.sqrt(slope)) for slope in (2, 3, 5, 7, 11, 13, 17)]
    assert not np.array_equal(curve(uneven, points=11).low, curve(uneven, points=11, seed=1).low)
    assert np.isnan(curve(seeds, band="none").low).all() and np.isnan(curve(seeds[:1]).high).all()


def test_the_band_is_the_interval_of_the_middle_at_each_point():
    ends = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 3.0, 12.0]
    for middle, statistic in (("mean", np.mean), ("iqm", iqm)):
        found = curve([line(0, 1, end) for end in ends], points=3, middle=middle)
        wanted = bootstrap(ends, statistic)
        assert (found.low[-1], found.high[-1]) == pytest.approx(wanted[1:], abs=0.05 * (wanted.high - wanted.low))


def test_one_that_failed_is_missing_from_there_and_one_that_was_done_keeps_its_last_value(tmp_path):
    points = [(steps, 1.0) for steps in range(0, 1001, 100)]
    whole = read(write_run(tmp_path / "whole", points=points))
    failed = read(write_run(tmp_path / "failed", points=[(s, 5.0) for s, _ in points[:5]], status="failed"))
    early = read(write_run(tmp_path / "early", points=[(s, 9.0) for s, _ in points[:5]]))
    found = curve([whole, failed, early], points=11)
    assert found.there.tolist() == [3] * 5 + [2] * 6 and found.died == (False, True, False)
    assert found.middle == pytest.approx([5.0] * 5 + [5.0] * 6) and found.high == pytest.approx([9.0] * 11)
    assert np.isnan(found.runs[1, 5:]).all() and found.runs[2, -1] == 9.0


def test_runs_that_begin_and_end_nearly_together_are_cut_to_what_they_share():
    found = curve([line(0, 100, 1.0), line(2, 101, 1.0), line(1, 99, 1.0)], points=5)
    assert found.x[0] == 2 and found.x[-1] == 99 and found.there.tolist() == [3] * 5


def test_one_that_begins_late_is_missing_before():
    found = curve([line(0, 100, 1.0), line(50, 100, 2.0)], points=5)
    assert found.there.tolist() == [1, 1, 2, 2, 2] and found.middle[0] == 0.0 and found.middle[-1] == 150.0


def test_single_points_stand_together_and_none_is_none():
    found = curve([Series(np.array([4.9]), np.array([2.0])), Series(np.array([5.0]), np.array([4.0]))])
    assert found.x.tolist() == [5.0] and found.middle.tolist() == [3.0]
    nothing = Series(np.array([]), np.array([]))
    assert curve([nothing]) is None and curve([]) is None
    assert len(curve([nothing, line(0, 1, 1.0)]).runs) == 1


def test_smoothing_spans_points_of_the_grid_and_keeps_lines_and_gaps():
    noisy = Series(np.arange(101.0), np.tile([0.0, 2.0], 51)[:101])
    found = curve([noisy], points=101, smooth=20)
    assert np.abs(found.middle - 1.0).max() < 0.11
    gap = curve([line(0, 100, 1.0), line(50, 100, 1.0)], points=101, smooth=5)
    assert gap.there[49] == 1 and gap.there[50] == 2 and gap.middle[20] == pytest.approx(20.0)
