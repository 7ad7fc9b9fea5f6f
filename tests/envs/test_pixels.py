"""Environments that are seen by the pictures they draw, and acted in with repeated actions."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import envs
from rookery.envs.pixels import PixelOptions, Scale, parts
from rookery.envs.rendering import CannotDraw, draw_without_display
from rookery.envs.stage import open_stage

draw_without_display()


class Meter(gymnasium.Env):
    """Counts its steps, and shows them as the height of a red bar; ends after 7."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gs.Box(0, 10, (1,), np.float32)
    action_space = gs.Box(-1, 1, (1,), np.float32)
    drawn = 0  # by all of them

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.start = 0, float(self.np_random.integers(0, 256))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), float(self.t), self.t == 7, False, {}

    def render(self) -> Any:
        type(self).drawn += 1
        picture = np.zeros((20, 30, 3), np.uint8)
        picture[: 2 * self.t, :, 0], picture[..., 2] = 200, self.start
        return picture

    def get_state(self) -> Any:
        return {"t": np.array(self.t), "start": np.array(self.start)}

    def set_state(self, state: Any) -> None:
        self.t, self.start = int(state["t"]), float(state["start"])


class Blind(Meter):
    metadata: ClassVar = {"render_modes": ["human", "ansi"]}


class WithoutMode(Meter):
    def __init__(self) -> None:
        self.render_mode = None


class DrawsNothing(Meter):
    def render(self) -> Any:
        return None


class Masked(Meter):
    observation_space = gs.Dict({"action_mask": gs.MultiBinary(2), "x": gs.Box(0, 1, (1,), np.float32)})


class Grey(Meter):
    def render(self) -> Any:
        return super().render()[..., 0]


def step(pool: Any, steps: int = 1) -> Any:
    for _ in range(steps):
        pool.send(np.zeros((pool.num_envs, *pool.spec.action.shape), pool.spec.action.dtype))
        answer = pool.recv()
    return answer


def area_mean(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Integrate over each new pixel's area on a grid so fine that old and new edges are all on it."""
    rows, columns = picture.shape[:2]
    fine = picture.astype(np.float64).repeat(height, axis=0).repeat(width, axis=1)
    return fine.reshape(height, rows, width, columns, 3).mean(axis=(1, 3))


SIZES = [((20, 30), (10, 10)), ((25, 33), (8, 9)), ((9, 8), (16, 12)), ((500, 40), (64, 40))]


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_a_scaled_pixel_is_the_mean_over_its_area(before, after):
    picture = np.random.default_rng(0).integers(0, 256, (*before, 3), dtype=np.uint8)
    scaled = Scale(*after)(picture)
    assert scaled.dtype == np.uint8 and scaled.shape == (*after, 3)
    assert np.abs(scaled - area_mean(picture, *after)).max() < 3.5, "weights are 256ths, on two axes"
    assert (Scale(*after)(np.full_like(picture, 255)) == 255).all()
    assert (parts(before[0], after[0])[1].sum(axis=0) == 256).all()


@pytest.mark.parametrize("processes", [0, 2])
def test_frames_are_seen_in_stacks_of_three_and_rewards_are_summed_over_repeated_actions(processes):
    pool = envs.make(Meter, 2, pixels=10, action_repeat=3, processes=processes)
    try:
        assert pool.spec.observation == gs.Box(0, 255, (3, 10, 10, 3), np.uint8) and pool.stack_axis == 0
        assert pool.spec.raw[0] == gs.Box(0, 255, (10, 10, 3), np.uint8)
        first = pool.reset(5)
        assert (first.observation[:, :2] == 0).all() and first.observation[0, 2, 0, 0, 2] != first.observation[1, 2, 0, 0, 2]
        answer = step(pool)
        assert answer.reward.tolist() == [1 + 2 + 3] * 2
        red = answer.observation[0, -1, :, 0, 0]
        assert red.tolist() == [200] * 3 + [0] * 7, "the picture after the third step"
        assert answer.observation[0, 0].max() == 0 and (answer.observation[0, 1] == first.observation[0, 2]).all()
        assert step(pool).reward.tolist() == [4 + 5 + 6] * 2
        last = step(pool)
        assert last.reward.tolist() == [7, 7] and last.terminated.all(), "the episode ended before the action was repeated"
        assert step(pool).first.all() and pool.take_episodes()[0].length == 3
    finally:
        pool.close()


def test_no_picture_is_drawn_that_nobody_sees():
    pool = envs.make(Meter, 1, pixels=10, action_repeat=3)
    pool.reset(0)
    Meter.drawn = 0
    step(pool, 2)
    assert Meter.drawn == 2


def test_the_same_seed_shows_the_same_frames_and_a_saved_pool_goes_on_as_if_never_stopped():
    one, two = (envs.make(Meter, 2, pixels=[8, 12], frame_stack=2) for _ in range(2))
    assert one.spec.observation.shape == (2, 8, 12, 3)
    assert (one.reset(3).observation == two.reset(3).observation).all()
    step(one, 3)
    saved = one.snapshot()
    after = step(one).observation.copy()
    two.restore(saved)
    assert (step(two).observation == after).all()


def test_actions_are_repeated_without_pixels_too_and_grey_and_single_frames_can_be_asked_for():
    pool = envs.make(Meter, 1, action_repeat=2)
    assert pool.spec.observation == Meter.observation_space
    pool.reset(0)
    answer = step(pool)
    assert answer.observation.tolist() == [[2.0]] and answer.reward.tolist() == [3.0]
    assert envs.spec_of(Meter, pixels=16, grayscale=True, frame_stack=4).observation.shape == (4, 16, 16)
    assert envs.spec_of(Meter, pixels=16, frame_stack=1).observation.shape == (16, 16, 3)
    assert envs.spec_of(Grey, pixels=16).observation.shape == (3, 16, 16, 3)
    assert envs.spec_of("CartPole-v1", pixels=16).observation.shape == (3, 16, 16, 3), "one by one, though it has a VectorEnv"


def test_an_environment_keeps_options_of_the_same_name_for_itself():
    class Own(Meter):
        def __init__(self, pixels: int = 1) -> None:
            self.pixels = pixels

    pool = envs.make(Own, 1, pixels=77)
    assert pool.spec.observation == Meter.observation_space and pool._gym_envs.envs[0].pixels == 77


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        (Blind, {}, "'Blind' cannot be seen by pixels, it draws as human, ansi: .*'rgb_array'"),
        (WithoutMode, {}, "takes render_mode, which this one does not"),
        (DrawsNothing, {}, "'DrawsNothing' .* draws NoneType: uint8 of shape"),
        (Masked, {}, "action_mask"),
        (Meter, {"render_mode": "human"}, "leave out render_mode='human'"),
        ("catch", {}, "'catch' is stepped as arrays"),
        ("jax:CartPole-v1", {}, "stepped as arrays"),
        ("ALE/Pong-v5", {}, "seen by its frames as it is"),
        (lambda num_envs: None, {}, "stepped as arrays"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:20],
)
def test_what_cannot_be_seen_is_told_before_anything_starts(env, options, said):
    with pytest.raises((CannotDraw, envs.UnknownEnvironment), match=said):
        envs.spec_of(env, processes="auto", pixels=16, **options)


@pytest.mark.parametrize("pixels", [4, 2000, True, "large", (64,), (64, 4), 64.5])
def test_a_size_that_is_none_is_refused(pixels):
    with pytest.raises(ValueError, match="pixels is the side"):
        PixelOptions(pixels=pixels)


@pytest.mark.parametrize("repeat", [0, -1, 1.5, True, 10**6])
def test_a_number_of_repetitions_that_is_none_is_refused(repeat):
    with pytest.raises(ValueError, match="action_repeat is a number"):
        PixelOptions(action_repeat=repeat)


def test_dm_control_is_refused_with_the_remedy():
    with pytest.raises(envs.UnknownEnvironment, match=r"fails with mujoco 4 .*'mujoco<4'.*--env shimmy:dm_control/walker-walk"):
        envs.spec_of("dm_control/walker-walk-v0")


def test_people_see_the_whole_picture_and_the_agents_view_where_they_ask_for_it():
    stage, pool = open_stage(Meter, pixels=10, action_repeat=2)
    assert pool.spec.observation.shape == (3, 10, 10, 3)
    pool.reset(1)
    step(pool)
    assert stage.frame().shape == (20, 30, 3) and (stage.frame()[:4, :, 0] == 200).all()
    stage, pool = open_stage(Meter, view="agent", pixels=10)
    pool.reset(1)
    assert stage.frame().shape[:2] == (320, 320)


# ---------------------------------------------------------------------------------------------------------- MuJoCo


@pytest.fixture(scope="module")
def gl() -> None:
    """Skip where MuJoCo cannot draw."""
    pytest.importorskip("mujoco")
    try:
        envs.spec_of("Hopper-v5", pixels=16)
    except CannotDraw as error:
        pytest.skip(str(error))


def test_environments_of_mujoco_are_drawn_at_the_size_that_is_seen_each_in_its_own_context(gl):
    pool = envs.make("HalfCheetah-v5", 2, pixels=32, frame_stack=1)
    first = pool.reset(0).observation.copy()
    alone = envs.make("HalfCheetah-v5", 1, pixels=32, frame_stack=1)
    assert (alone.reset(0).observation == first[:1]).all() and first.std() > 5
    pool.send(np.array([[1.0] * 6, [-1.0] * 6], np.float32))
    seen = pool.recv().observation.copy()
    alone.send(np.ones((1, 6), np.float32))
    assert (alone.recv().observation == seen[:1]).all() and (seen[0] != seen[1]).any()
    for some in (pool, alone):
        some.close()


@pytest.mark.parametrize("id", ["HalfCheetah-v5", "InvertedPendulum-v5"])
def test_the_same_state_looks_the_same_whatever_was_drawn_first(gl, id):
    seen = []
    for steps in (0, 12):
        env = envs.env_maker(id, pixels=32)()
        env.reset(seed=0)
        for _ in range(steps):
            env.step(env.action_space.high)
        seen.append(env.reset(seed=1)[0])
        env.close()
    assert (seen[0] == seen[1]).all() and seen[0].std() > 5


def test_mujoco_may_be_drawn_by_one_thread_after_another(gl):
    pool, seen = envs.make("Hopper-v5", 1, pixels=16, frame_stack=1), []
    pool.reset(0)
    thread = threading.Thread(target=lambda: seen.append(step(pool).observation))
    thread.start()
    thread.join()
    assert len(seen) == 1 and np.abs(step(pool).observation.astype(int) - seen[0]).max() > 0
    pool.close()


def test_a_video_of_mujoco_is_not_as_small_as_what_is_learned_from(gl):
    stage, pool = open_stage("Hopper-v5", pixels=16)
    pool.reset(0)
    assert stage.frame().shape == (480, 480, 3) and step(pool).observation.shape == (1, 3, 16, 16, 3)
    pool.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_mujoco_without_opengl_is_told_with_what_it_needs(monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setitem(os.environ, "MUJOCO_GL", "osmesa-which-is-none")
    with pytest.raises(CannotDraw, match="MUJOCO_GL=osmesa-which-is-none: without a display it needs EGL"):
        envs.make("Walker2d-v5", 1, pixels=16)
    gc.collect()  # a viewer of Gymnasium's that was not made whole complains when it goes
