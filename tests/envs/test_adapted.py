"""Pool options: frames, scales and clips around any pool, saved with the run and used by the policy."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

import rookery
from rookery import envs, spaces
from rookery.envs.options import take_pool_options
from rookery.testing import advance, assert_same, play, random_action
from rookery.trees import tree_map


class Camera(gymnasium.Env):
    """A colour image, a number that tells the step, and a mask; rewards of -3 to 3; ends by chance."""

    observation_space = gs.Dict(
        image=gs.Box(0, 255, (4, 5, 3), np.uint8),
        place=gs.Tuple([gs.Box(1, 100, (1,), np.float64), gs.Discrete(50)]),
        action_mask=gs.MultiBinary(2),
    )
    action_space = gs.Discrete(2)

    def _see(self):
        image = np.zeros((4, 5, 3), np.uint8)
        image[..., self.steps % 3] = 200
        return {"image": image, "place": (np.array([self.steps + 1.0]), self.steps), "action_mask": np.ones(2, np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action):
        self.steps += 1
        return self._see(), float(self.steps % 7 - 3), bool(self.np_random.random() < 0.2), self.steps == 40, {}


def reference_stack(steps, k, leaf_of):
    """One environment and one step at a time: [t][env] -> list of the last k observations, zeros before the first."""
    stacks, answers = {}, []
    for step in steps:
        leaf = leaf_of(step.observation)
        row = []
        for env in range(len(step.first)):
            if step.first[env]:
                stacks[env] = [np.zeros_like(leaf[env])] * k
            stacks[env] = [*stacks[env][1:], leaf[env].copy()]
            row.append(np.stack(stacks[env]))
        answers.append(np.stack(row))
    return answers


@pytest.mark.parametrize("id", ["catch", "CartPole-v1", "jax:catch", Camera], ids=str)
def test_frames_are_stacked_like_a_loop_over_environments_would(id):
    leaf_of = (lambda o: o["place"][0]) if id is Camera else (lambda o: o)
    plain = play(envs.make(id, 6, groups=2), 60).steps
    pool = envs.make(id, 6, groups=2, frame_stack=3)
    stacked = play(pool, 60).steps
    assert sum(step.first.sum() for step in plain[1:]) > 3 and pool.stack_axis == 0
    for expected, step in zip(reference_stack(plain, 3, leaf_of), stacked):
        assert_same(leaf_of(step.observation), expected)
    for a, b in zip(plain, stacked):
        assert_same(a._replace(observation=()), b._replace(observation=()))


def test_only_boxes_are_changed_and_the_spec_says_how():
    pool = envs.make(Camera, 3, frame_stack=2, grayscale=True, observation_scale=0.01)
    seen = pool.spec.observation
    assert (
        seen["image"].shape == (2, 4, 5) and seen["image"].dtype == np.float32 and seen["image"].high.max() == np.float32(2.55)
    )
    assert seen["place"][0].shape == (2, 1) and seen["place"][0].low.min() == 0  # zero before the first
    assert seen["place"][1] == gs.Discrete(50, dtype=np.int32) and seen["action_mask"] == gs.MultiBinary(2)
    for step in play(pool, 12).steps:
        one = spaces.take(step.observation, 1)
        assert seen.contains(tree_map(lambda x: x, one)), one
    assert pool.spec.raw[0] == Camera.observation_space


def test_grayscale_is_the_luma_of_the_colours():
    step = envs.make(Camera, 1, grayscale=True).reset(0)
    assert step.observation["image"].shape == (1, 4, 5) and step.observation["image"].dtype == np.uint8
    assert np.unique(step.observation["image"]).tolist() == [round(0.299 * 200)]


def test_rewards_are_scaled_and_clipped_but_episodes_are_as_played():
    plain, pool = envs.make(Camera, 4), envs.make(Camera, 4, reward_scale=0.5, reward_clip=1)
    raw, seen = play(plain, 80), play(pool, 80)
    for a, b in zip(raw.steps, seen.steps):
        np.testing.assert_array_equal(b.reward, np.clip(0.5 * a.reward, -1, 1))
        assert b.reward.dtype == np.float32
    assert max(step.reward.max() for step in raw.steps) == 3 and max(step.reward.max() for step in seen.steps) == 1
    assert seen.episodes == raw.episodes and len(raw.episodes) > 5


@pytest.mark.parametrize("id", ["catch", "masked", "jax:cue-recall", "CartPole-v1"])
def test_a_restored_pool_continues_bit_for_bit_in_any_number_of_groups(id):
    groups = 2 if id == "CartPole-v1" else 3
    pool = envs.make(id, 6, groups=2, frame_stack=3, reward_clip=0.5)
    last = play(pool, 13).steps[-1]
    saved = tree_map(np.copy, pool.snapshot())
    whole = play(pool, 40, start=last)
    other = envs.make(id, 6, groups=groups, frame_stack=3, reward_clip=0.5)
    start = other.restore(saved)
    assert_same(start, last)
    resumed = play(other, 40, start=start)
    for a, b in zip(whole.steps, resumed.steps):
        assert_same(a, b)
    assert whole.episodes == resumed.episodes


def test_a_pool_that_cannot_be_saved_still_cannot():
    pool = envs.make("FrozenLake-v1", 2, reward_scale=2.0)
    pool.reset(0)
    assert pool.snapshot() is None


def test_a_rebuilt_environment_starts_a_new_stack():
    pool = envs.make("catch", 3, frame_stack=3)
    step = pool.reset(0)
    for _ in range(4):
        step = advance(pool, random_action(pool, np.random.default_rng(0)))
    pool.rebuild(1)
    step = advance(pool, random_action(pool, np.random.default_rng(0)))
    assert step.first.tolist() == [False, True, False]
    assert not step.observation[1, :2].any() and step.observation[0, :2].any() and step.observation[1, 2].any()


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("identity", {"frame_stack": 2}, "are for Box observations"),
        ("catch", {"grayscale": True}, "grayscale is for uint8 images"),
        ("catch", {"frame_stack": 0}, "frame_stack is a number of observations"),
        ("catch", {"reward_clip": -1}, "reward_clip is the largest reward"),
        ("catch", {"reward_scale": 0}, "may not be 0"),
    ],
)
def test_what_cannot_be_is_refused(id, options, message):
    with pytest.raises(ValueError, match=message):
        envs.make(id, 1, **options)


def test_an_environment_keeps_an_option_of_its_own_that_has_the_same_name():
    def camera(frame_stack=1, **rest):
        assert rest == {}
        made.append(frame_stack)
        return Camera()

    made = []
    pool = envs.make(camera, 1, frame_stack=5, reward_scale=2.0)
    assert made == [5] and pool.options.frame_stack == 1 and pool.options.reward_scale == 2
    assert take_pool_options("ALE/Pong-v5", {"grayscale": False, "stack": 2}) == (None, {"grayscale": False, "stack": 2})
    mine, rest = take_pool_options("ALE/Pong-v5", {"grayscale": False, "reward_clip": 1})
    assert mine.reward_clip == 1 and rest == {"grayscale": False}
    assert take_pool_options("CartPole-v1", {"sutton_barto_reward": True})[0] is None


def test_a_run_keeps_its_pool_options_for_evaluation_and_for_the_policy(tmp_path):
    """Trained with frames; the policy is then called with single observations and acts as it does on stacked ones."""
    options = {"frame_stack": 3, "reward_scale": 0.25, "dtype": "uint8"}
    result = rookery.train(
        "ppo", env="catch", env_options=options, runs=str(tmp_path), run="a", total_steps=2_000, num_envs=8, eval_episodes=8,
        network={"hidden": (16,), "encoder": "mlp"},
    )  # fmt: skip
    assert abs(result.metrics["return_mean"]) <= 1 and set(np.unique([result.metrics["eval_return_mean"] * 8 % 2])) == {0}
    policy = rookery.load(tmp_path / "a")
    assert policy.spec.observation.shape == (3, 10, 5) and policy.spec.raw[0].shape == (10, 5)
    stacked, single = envs.make("catch", 1, **options), envs.make("catch", 1, dtype="uint8")
    seen, now, memory, inner = stacked.reset(5), single.reset(5), None, None
    for _ in range(25):
        expected, inner = policy.batch(seen.observation, inner, first=seen.first, reward=seen.reward)
        action, memory = policy(now.observation[0], None if now.first[0] else memory)
        assert int(action) == int(expected[0])
        seen, now = advance(stacked, expected), advance(single, expected)
