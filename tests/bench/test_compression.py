"""The bench of codecs tells how much smaller and how much slower each makes frames, and that they come back."""

from __future__ import annotations

import numpy as np
import pytest

from rookery_bench import compression


def test_longer_units_compress_better():
    frames = np.zeros((128, 20, 20), np.uint8)
    frames[:, 3] = np.random.default_rng(0).integers(0, 255, (128, 20))
    size = lambda codec, unit: compression.figures(frames, codec, unit, 0.001)["size"]
    zlib = compression.codecs()["zlib 1"]
    assert 20 / 400 < size(zlib, 64) < size(zlib, 1) < 0.3
    assert size((compression.copied, compression.copied), 1) == 1.0


def test_a_read_costs_the_whole_unit_and_a_write_is_shared_by_its_frames(monkeypatch):
    clock = [0.0]

    def taking(seconds_per_byte):
        def step(data):
            clock[0] += seconds_per_byte * len(data)
            return data

        return step

    monkeypatch.setattr(compression.time, "process_time", lambda: clock[0])
    for unit in (1, 64):
        told = compression.figures(np.zeros((128, 10, 10), np.uint8), (taking(1e-5), taking(1e-6)), unit, 1.0)
        assert told["writes_per_s"] == pytest.approx(1e5 / 100) and told["reads_per_s"] == pytest.approx(1e6 / 100 / unit)


def test_a_codec_that_loses_something_is_refused():
    with pytest.raises(AssertionError):
        compression.figures(np.ones((2, 4, 4), np.uint8), (bytes, lambda data: data[:-1]), 1, 0.01)


def test_frames_are_the_newest_of_each_stack():
    pytest.importorskip("ale_py")
    frames = compression.frames_of("ALE/Pong-v5", 32)
    assert frames.shape == (32, 84, 84) and frames.dtype == np.uint8 and len(np.unique(frames)) > 2
