"""The bench of codecs tells how much smaller and how much slower each makes frames, and that they come back."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.bench import compression


def test_sizes_and_rates_are_those_of_the_unit_that_was_asked_for():
    frames = np.zeros((128, 20, 20), np.uint8)
    frames[:, 3] = np.random.default_rng(0).integers(0, 255, (128, 20))
    alone = compression.figures(frames, compression.codecs()["zlib 1"], 1, 0.02)
    chunks = compression.figures(frames, compression.codecs()["zlib 1"], 64, 0.02)
    assert 20 / 400 < chunks["size"] < alone["size"] < 0.3, "longer units compress better"
    assert chunks["reads_per_s"] < alone["reads_per_s"], "but one frame costs the whole unit"
    plain = compression.figures(frames, (compression.copied, compression.copied), 1, 0.02)
    assert plain["size"] == 1.0 and plain["reads_per_s"] > alone["reads_per_s"]


def test_a_codec_that_loses_something_is_refused():
    with pytest.raises(AssertionError):
        compression.figures(np.ones((2, 4, 4), np.uint8), (bytes, lambda data: data[:-1]), 1, 0.01)


def test_frames_are_the_newest_of_each_stack():
    pytest.importorskip("ale_py")
    frames = compression.frames_of("ALE/Pong-v5", 32)
    assert frames.shape == (32, 84, 84) and frames.dtype == np.uint8 and len(np.unique(frames)) > 2
