"""A stage is a pool of one environment that can be looked at: toys are drawn, Gymnasium's draw themselves, Atari is filmed."""

import gymnasium
import numpy as np
import pytest
from bad_envs import Counter
from gymnasium import spaces as gs

from rookery.envs import drawing
from rookery.envs.rendering import CannotDraw
from rookery.envs.stage import open_stage
from rookery.envs.toys import TOYS
from rookery.run.screen import resized


class Lamp(gymnasium.Env):
    """Draws itself, as its own picture and in letters."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 7}  # noqa: RUF012
    observation_space = gs.Box(0, 1, (1,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.steps = render_mode, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}

    def render(self):
        return f"step {self.steps}" if self.render_mode == "ansi" else np.full((4, 6, 3), 10 * self.steps, np.uint8)


class Broken(Lamp):
    def render(self):
        raise OSError("no lamp")


@pytest.mark.parametrize("id", TOYS)
def test_every_toy_is_drawn_large_and_differs_between_episodes(id):
    stage, pool = open_stage(id)
    stage.reset(1)
    before = stage.frame()
    assert before.dtype == np.uint8 and before.shape[2] == 3 and max(before.shape) >= 100
    seen = []
    for seed in range(12):
        pool.reset(seed)
        seen.append(stage.frame().tobytes())
    assert len(set(seen)) > 1 or id in ("truncating", "deep-sea")
    pool.close()


def test_a_board_shows_where_its_ball_and_its_paddle_are():
    board = np.zeros((4, 5), np.float32)
    board[1, 2] = 1
    picture = drawing.draw("catch", gs.Box(0, 1, (4, 5), np.float32), board)
    tile = picture.shape[0] // 4
    middles = picture[tile // 2 :: tile, tile // 2 :: tile].sum(axis=-1)
    assert middles.shape == (4, 5) and np.argmax(middles) == 1 * 5 + 2 and np.unique(middles).size == 2


def test_an_environment_draws_itself_as_a_picture_or_in_letters_and_the_frame_is_that_of_the_last_step():
    stage, pool = open_stage(Lamp)
    stage.reset(0)
    pool.send(np.zeros(1, np.int32))
    pool.recv()
    assert (stage.frame() == 10).all() and stage.fps == 7
    letters, _ = open_stage(Lamp, text=True)
    letters.reset(0)
    assert letters.frame() == "step 0"


def test_what_cannot_draw_itself_is_refused_with_what_is_possible_and_is_drawn_as_the_agent_sees_it():
    for env in (Counter, Broken):
        with pytest.raises(CannotDraw, match="--view agent"):
            open_stage(env)
    stage, _ = open_stage(Counter, view="agent")
    stage.reset(0)
    assert stage.frame().shape[2] == 3


def test_a_pool_option_changes_what_the_agent_sees_and_not_the_picture():
    stage, pool = open_stage("catch", frame_stack=3)
    assert pool.reset(1).observation.shape == (1, 3, 10, 5)
    assert stage.frame().shape == (320, 160, 3)


def test_an_atari_game_is_filmed_in_colour_beside_the_one_that_is_played():
    pytest.importorskip("ale_py")
    stage, pool = open_stage("ALE/Pong-v5", noop_max=4)
    pool.reset(3)
    for action in [2] * 6 + [3] * 6:
        pool.send(np.array([action], np.int32))
        played = pool.recv()
    assert stage.frame().shape == (210, 160, 3) and np.ptp(stage.frame(), axis=-1).max() > 50, "in colour"
    grey = resized(stage.frame(), 84, 84) @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey - played.observation[0, -1]).max() < 40, "60 where the paddle is elsewhere"
    pool.close()
