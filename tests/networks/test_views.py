"""Windows of images: in bounds, the same for all frames of a stack, another for each row, the central one for acting."""

import gymnasium
import jax
import numpy as np
import pytest

from rookery import ops
from rookery.networks.config import ViewsConfig
from rookery.networks.views import margin, random_window, views_of
from rookery.types import Spec

spaces = gymnasium.spaces
CROP, SHIFT = ViewsConfig(kind="crop"), ViewsConfig(kind="shift")
H, W, FRAMES = 24, 30, 3
SHAPES = {"HW": (H, W), "HWC": (H, W, FRAMES), "CHW": (FRAMES, H, W), "NHWC": (FRAMES, H, W, 2)}


def numbered(layout, B):
    """Images whose pixels say where they are: row · 8 + column, the same in every frame."""
    plane = (np.arange(H)[:, None] * 8 + np.arange(W)[None]).astype(np.uint8)
    axes = tuple(i for i, name in enumerate(layout) if name not in "HW")
    return np.broadcast_to(np.expand_dims(plane, axes), (B, *SHAPES[layout]))


def test_a_window_is_84_of_100_pixels_and_what_is_left_is_the_same_on_both_sides():
    assert [side - 2 * margin(side, CROP) for side in (100, 84, 24, 10, 8)] == [84, 70, 20, 8, 6]


@pytest.mark.parametrize("layout", SHAPES)
def test_a_crop_lies_within_the_image_and_moves_all_frames_of_a_stack_alike(layout):
    images, tall, wide = numbered(layout, 200), margin(H, CROP), margin(W, CROP)
    seen = np.asarray(random_window(ops.random.key(0), images, layout, CROP))
    rows, columns = layout.index("H"), layout.index("W")
    places = set()
    for image, window in zip(images, seen):
        assert window.shape[rows] == H - 2 * tall and window.shape[columns] == W - 2 * wide
        part = lambda top, left, image=image: image.take(range(top, top + H - 2 * tall), rows).take(
            range(left, left + W - 2 * wide), columns
        )
        starts = [(top, left) for top in range(2 * tall + 1) for left in range(2 * wide + 1)]
        found = [start for start in starts if np.array_equal(part(*start), window)]
        assert found, "no part of the image"
        places |= set(found)
    assert {top for top, _ in places} == {*range(2 * tall + 1)} and {left for _, left in places} == {*range(2 * wide + 1)}


def test_a_shift_repeats_the_border_and_loses_nothing_in_the_middle():
    images = numbered("HW", 100)
    seen = np.asarray(random_window(ops.random.key(1), images, "HW", SHIFT))
    by = margin(H, SHIFT), margin(W, SHIFT)
    padded = np.pad(images[0], [(by[0],) * 2, (by[1],) * 2], mode="edge")
    starts = [(top, left) for top in range(2 * by[0] + 1) for left in range(2 * by[1] + 1)]
    parts = {padded[top : top + H, left : left + W].tobytes() for top, left in starts}
    assert seen.shape == images.shape and {window.tobytes() for window in seen} <= parts
    assert len({window.tobytes() for window in seen}) > 20


@pytest.mark.parametrize("config", [CROP, SHIFT], ids=lambda config: config.kind)
def test_acting_sees_the_central_window_and_what_is_no_image_is_passed_on(config):
    space = spaces.Dict(eye=spaces.Box(0, 255, (3, H, W), np.uint8), body=spaces.Box(-1, 1, (2,), np.float32))
    views = views_of(Spec(space, spaces.Discrete(2)), config, "auto")
    observation = {"eye": np.stack([numbered("CHW", 5)] * 2), "body": np.ones((2, 5, 2), np.float32)}  # [T, B, ...]
    for seen in (views.centre(observation), jax.jit(views.random)(ops.random.key(0), observation)):
        assert seen["eye"].shape[2:] == views.spec.observation["eye"].shape
        assert np.array_equal(seen["body"], observation["body"])
    cut = 2 if config.kind == "crop" else 0
    assert np.array_equal(views.centre(observation)["eye"], observation["eye"][..., cut : H - cut, cut : W - cut])


def test_an_observation_without_an_image_is_refused_by_name():
    said = r"--views.kind crop shows windows of images, and the observation Box\(.*use --views.kind whole"
    with pytest.raises(ValueError, match=said):
        views_of(Spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)), CROP, "auto")
