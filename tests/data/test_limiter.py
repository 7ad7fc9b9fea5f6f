"""The rate limiter against the rule as it is written, over random sequences of attempts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.data import limiter
from rookery.data.limiter import Limiter

attempts = st.lists(st.tuples(st.booleans(), st.integers(1, 6)))
ratios = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.5, 8.0])


@settings(max_examples=150, deadline=None)
@given(ratio=ratios, min_size=st.integers(1, 30), slack=st.floats(0, 40), seed=attempts)
def test_every_answer_is_that_of_the_written_rule(ratio, min_size, slack, seed):
    buffer = 2 * max(1.0, ratio) + slack
    low, high = ratio * min_size - buffer, ratio * min_size + buffer
    subject = limiter.sample_to_insert_ratio(ratio, min_size=min_size, error_buffer=buffer)
    inserts = samples = deletes = 0
    for insert, count in seed:
        may_insert = inserts + count - deletes <= min_size or (inserts + count) * ratio - samples <= high
        may_sample = inserts - deletes >= min_size and inserts * ratio - samples - count >= low
        assert (subject.can_insert(count), subject.can_sample(count)) == (may_insert, may_sample)
        assert (subject.waiting_for(inserts=count) is None) == may_insert
        assert (subject.waiting_for(samples=count) is None) == may_sample
        if insert and may_insert:
            subject.inserted(count)
            inserts += count
        elif not insert and may_sample:
            subject.sampled(count)
            samples += count
            subject.deleted(1)
            deletes += 1


@settings(max_examples=60, deadline=None)
@given(
    ratio=ratios, min_size=st.integers(1, 50), insert=st.integers(1, 40), batch=st.integers(1, 64), eager=st.integers(0, 2**20)
)
def test_bulks_never_block_each_other_and_the_ratio_is_kept(ratio, min_size, insert, batch, eager):
    subject = limiter.sample_to_insert_ratio(ratio, min_size=min_size, insert_size=insert, batch_size=batch)
    for turn in range(600):
        may = [subject.can_insert(insert), subject.can_sample(batch)]
        assert any(may), "both sides wait for each other"
        first = (eager >> (turn % 20)) & 1  # who moves when both may
        if may[first] and (first or not may[1] or eager % 3):
            (subject.sampled if first else subject.inserted)(batch if first else insert)
        elif may[1]:
            subject.sampled(batch)
        else:
            subject.inserted(insert)
        if subject.inserts > min_size + insert:
            assert subject.min_diff <= subject.diff <= subject.max_diff
    if subject.inserts > min_size + insert:
        width = subject.max_diff - subject.min_diff
        assert abs(subject.samples - ratio * (subject.inserts - min_size)) <= width


@pytest.mark.parametrize("insert, batch, ratio", [(10, 32, 4.0), (64, 8, 0.5), (1, 256, 1.0)])
def test_a_number_below_what_bulks_add_up_to_is_refused_and_that_number_is_not(insert, batch, ratio):
    need = insert * ratio + batch
    with pytest.raises(ValueError, match=f"less than {need:g}"):
        limiter.sample_to_insert_ratio(ratio, min_size=1000, error_buffer=need - 1, insert_size=insert, batch_size=batch)
    limiter.sample_to_insert_ratio(ratio, min_size=1000, error_buffer=need, insert_size=insert, batch_size=batch)


def test_a_pair_in_which_bulks_can_block_is_refused():
    with pytest.raises(ValueError, match="error buffer of at least 72"):
        limiter.sample_to_insert_ratio(4.0, min_size=10, error_buffer=(0.0, 71.0), insert_size=10, batch_size=32)
    with pytest.raises(ValueError, match="error buffer"):  # wide enough, but the bulk that reaches min_size never fits
        limiter.sample_to_insert_ratio(4.0, min_size=10, error_buffer=(-60.0, 45.0), insert_size=10, batch_size=32)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"samples_per_insert": 0.0}, "more than 0"),
        ({"min_size": 0}, "at least 1"),
        ({"max_diff": 4.9}, "for ever"),
        ({"min_diff": 5.5, "max_diff": 99.0}, "never be taken"),
    ],
)
def test_what_would_block_for_ever_is_refused_when_it_is_built(values, words):
    good = {"samples_per_insert": 2.5, "min_size": 2, "min_diff": 0.0, "max_diff": 5.0}
    Limiter(**good)
    with pytest.raises(ValueError, match=words):
        Limiter(**good | values)


def test_min_size_is_a_named_form():
    assert limiter.min_size(7) == Limiter(samples_per_insert=1.0, min_size=7, min_diff=-math.inf, max_diff=math.inf)


def test_of_a_queue_each_item_is_sampled_once_and_no_more_wait_than_it_holds():
    queue = Limiter(samples_per_insert=1.0, min_size=1, min_diff=0.0, max_diff=3.0)
    for _ in range(3):
        assert queue.can_insert() and not queue.can_insert(4)
        queue.inserted(1)
    assert not queue.can_insert()
    assert queue.can_sample(3) and not queue.can_sample(4)


def test_a_stall_says_what_is_missing():
    subject = limiter.sample_to_insert_ratio(2.0, min_size=500, error_buffer=40.0)
    subject.inserted(88)
    assert "412 more inserts before the next sample" in str(subject.waiting_for(samples=1))
    subject.inserted(412)
    assert subject.waiting_for(samples=32) is None
    subject.sampled(40)
    assert str(subject.waiting_for(samples=8)).startswith("waiting: 4 more inserts before the next sample")
    subject.inserted(40)
    assert str(subject.waiting_for(inserts=10)).startswith("waiting: 20 more samples before the next insert")
    for _ in range(4):
        subject.inserted(1)
        subject.sampled(2)
    assert subject.can_insert(0) and not subject.can_insert(1)
