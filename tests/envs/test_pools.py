"""What every pool promises, whatever steps its environments."""

from __future__ import annotations

import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest

from rookery import envs, spaces
from rookery.envs.toys import TOYS
from rookery.testing import advance, assert_next_step_autoreset, assert_same, play, random_action, reference_episodes
from rookery.trees import tree_map


class Counting(gymnasium.Env):
    """Observes (step, a draw of reset); ends at random by either flag; can be saved."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.draw, self.over = 0, self.np_random.random(), False
        return self._observation(), {}

    def step(self, action):
        assert not self.over, "stepped after the end"
        assert action in (-1, 0, 1)
        self.steps += 1
        luck = self.np_random.random()
        self.over = luck < 0.2
        return self._observation(), 0.1 * action + luck, luck < 0.1, 0.1 <= luck < 0.2, {}

    def _observation(self):
        return np.array([self.steps, self.draw])

    def get_state(self):
        words = self.np_random.bit_generator.state["state"]
        split = [*divmod(words["state"], 2**64), *divmod(words["inc"], 2**64)]
        numbers = np.array([self.steps, self.draw, self.over])
        return {"random": np.array(split, np.uint64), "numbers": numbers}

    def set_state(self, state):
        a, b, c, d = (int(word) for word in state["random"])
        whole = self.np_random.bit_generator.state
        whole["state"] = {"state": a * 2**64 + b, "inc": c * 2**64 + d}
        self.np_random.bit_generator.state = whole
        self.steps, self.draw, self.over = int(state["numbers"][0]), state["numbers"][1], bool(state["numbers"][2])


ALL = [*TOYS, "CartPole-v1", Counting, "jax:CartPole-v1", "jax:cue-recall"]  # Atari has a file of its own: it starts slowly
names = {"ids": lambda id: id if isinstance(id, str) else id.__name__}


def make(id, num_envs=6, *, groups=2, **options):
    return envs.make(id, num_envs, groups=groups, **options)


@pytest.fixture(params=ALL, **names)
def pool(request):
    pool = make(request.param)
    yield pool
    pool.close()


def test_autoreset_is_on_the_next_step(pool):
    played = play(pool, 60)
    assert_next_step_autoreset(played.steps)
    assert sum(step.first.sum() for step in played.steps[1:]) > 0, "no episode ended: the test shows nothing"


def test_episodes_are_counted_like_a_loop_over_environments_would(pool):
    played = play(pool, 300)  # more than one block of the tally
    expected = reference_episodes(played.steps)
    assert len(expected) > 6
    assert played.episodes == expected
    assert pool.take_episodes() == []


def test_the_same_seed_gives_the_same_stream_and_another_seed_another(pool):
    first, again = play(pool, 40).steps, play(pool, 40).steps
    for a, b in zip(first, again):
        assert_same(a, b)
    if pool.id not in ("truncating", "deep-sea"):  # which have nothing random
        other = play(pool, 40, seed=8).steps
        differ = [not np.array_equal(x, y) for a, b in zip(first, other) for x, y in zip(_leaves(a), _leaves(b))]
        assert any(differ)


def test_reset_without_a_seed_uses_that_of_make():
    for id in ("catch", "CartPole-v1", Counting, "jax:CartPole-v1"):
        assert_same(make(id, seed=3).reset(), make(id, seed=0).reset(3))


def test_environments_of_a_pool_start_differently():
    for id in ("masked", "CartPole-v1", Counting, "jax:CartPole-v1"):
        draws = spaces.take(make(id).reset(0).observation, slice(None))
        leaf = draws["scores"] if isinstance(draws, dict) else draws
        assert len(np.unique(leaf, axis=0)) == 6


@pytest.mark.parametrize("id", [id for id in ALL if id != "CartPole-v1"], **names)
def test_the_number_of_groups_does_not_change_what_an_environment_does(id):
    one, three = play(make(id, groups=1), 40), play(make(id, groups=3), 40)
    for a, b in zip(one.steps, three.steps):
        assert_same(a, b)
    assert one.episodes == three.episodes


def test_groups_step_independently(pool):
    """Group 1 answers the same whether group 0 is stepped in between or not."""
    if pool.id == "masked":
        pytest.skip("its legal actions depend on every answer")
    streams = []
    for both in (False, True):
        pool.reset(5)
        rng = np.random.default_rng(0)
        answers = []
        for _ in range(25):
            action = random_action(pool, rng)
            if both:
                pool.send(spaces.take(action, pool.groups[0]), 0)
            pool.send(spaces.take(action, pool.groups[1]), 1)
            if both:
                pool.recv(0)
            answers.append(tree_map(np.copy, tuple(pool.recv(1))))
        streams.append(answers)
    assert_same(*streams)


@pytest.mark.parametrize("id", ALL, **names)
def test_a_restored_pool_continues_bit_for_bit(id):
    pool = make(id)
    middle = play(pool, 23).steps[-1]
    advance(pool, random_action(pool, np.random.default_rng(1), middle))
    saved = pool.snapshot()
    frozen = tree_map(np.copy, saved)
    whole = play(pool, 150, start=middle if id != "masked" else pool.restore(saved))
    assert_same(saved, frozen)  # the snapshot is no view of what goes on

    fresh = make(id)
    fresh.reset(99)
    start = fresh.restore(saved)
    resumed = play(fresh, 150, start=start)
    for a, b in zip(whole.steps[1:], resumed.steps[1:]):
        assert_same(a, b)
    assert resumed.episodes == whole.episodes and len(whole.episodes) > 6


@pytest.mark.parametrize("id", ALL, **names)
def test_restore_gives_the_last_answer_and_keeps_episodes_that_nobody_took(id):
    pool = make(id)
    step = pool.reset(1)
    rng = np.random.default_rng(0)
    for _ in range(45):
        step = advance(pool, random_action(pool, rng, step))
    saved = pool.snapshot()
    again = make(id)
    assert_same(again.restore(saved), step)
    episodes = pool.take_episodes()
    assert len(episodes) > 0 and again.take_episodes() == episodes


@pytest.mark.parametrize("id", ALL, **names)
def test_a_snapshot_of_another_size_is_refused(id):
    pool = make(id)
    pool.reset(0)
    with pytest.raises(ValueError, match="snapshot has"):
        make(id, 4).restore(pool.snapshot())


def test_a_rebuilt_environment_answers_first_and_the_others_go_on(pool):
    if pool.id == "masked":
        pytest.skip("its legal actions depend on every answer")
    undisturbed = play(pool, 20).steps
    pool.reset(7)
    rng = np.random.default_rng(0)
    for t in range(1, 21):
        if t == 6:
            pool.rebuild(4)
        step = advance(pool, random_action(pool, rng))
        others = [0, 1, 2, 3, 5] if pool.id != "CartPole-v1" else [0, 1, 2]  # a CartPole group shares its generator
        assert_same(spaces.take(tuple(step), others), spaces.take(tuple(undisturbed[t]), others))
        if t == 6:
            assert step.first[4] and step.reward[4] == 0 and not step.terminated[4] and not step.truncated[4]
    assert all(e.length > 0 for e in pool.take_episodes())


def test_the_broken_episode_of_a_rebuilt_environment_is_not_counted(pool):
    step = pool.reset(7)
    rng = np.random.default_rng(0)
    steps = [step]
    for t in range(200):
        if t % 31 == 3:
            pool.rebuild(2)
        steps.append(advance(pool, random_action(pool, rng, steps[-1])))
    assert pool.take_episodes() == reference_episodes(steps)


def test_answers_are_whole_until_the_next_send_to_their_group(pool):
    step = pool.reset(0)
    rng = np.random.default_rng(0)
    actions = [random_action(pool, rng, step) for _ in range(3)]
    if pool.id == "masked":
        pytest.skip("its legal actions depend on every answer")
    pool.send(spaces.take(actions[0], pool.groups[0]), 0)
    held = pool.recv(0)
    copy = tree_map(np.copy, tuple(held))
    pool.send(spaces.take(actions[1], pool.groups[1]), 1)
    pool.recv(1)
    pool.take_episodes()
    assert_same(tuple(held), copy)


def test_the_callers_action_array_may_be_reused_after_send(pool):
    if pool.id == "masked":
        pytest.skip("its legal actions depend on every answer")
    expected = play(pool, 10).steps
    pool.reset(7)
    rng = np.random.default_rng(0)
    for t in range(1, 11):
        action = random_action(pool, rng)
        for g, group in enumerate(pool.groups):
            part = np.array(action[group])
            pool.send(part, g)
            part[...] = 0
        for g, group in enumerate(pool.groups):
            assert_same(tuple(pool.recv(g)), spaces.take(tuple(expected[t]), group))


def test_observations_have_the_canonical_shapes_and_types(pool):
    for step in play(pool, 15).steps:
        tree_map(_check_leaf, spaces.array_specs(pool.spec.observation), step.observation)
        assert step.env_ids.dtype == np.int32 and step.reward.dtype == np.float32
        assert step.first.dtype == step.terminated.dtype == step.truncated.dtype == bool


def test_misuse_of_send_and_recv_is_named(pool):
    with pytest.raises(RuntimeError, match="before reset"):
        pool.send(random_action(pool, np.random.default_rng(0))[pool.groups[0]])
    step = pool.reset(0)
    action = random_action(pool, np.random.default_rng(0), step)
    with pytest.raises(RuntimeError, match="without a send"):
        pool.recv(0)
    with pytest.raises(ValueError, match="shape"):
        pool.send(action, 0)  # of all groups
    pool.send(action[pool.groups[0]], 0)
    with pytest.raises(RuntimeError, match="twice"):
        pool.send(action[pool.groups[0]], 0)
    with pytest.raises(RuntimeError, match="recv"):
        pool.snapshot()
    assert_same(pool.reset(0), step)  # a reset in the middle is allowed
    with pytest.raises(IndexError, match="no environment 6"):
        pool.rebuild(6)


def test_importing_the_environments_is_quick_and_brings_no_jax():
    code = "import sys, rookery.envs, rookery.spaces; rookery.envs.catalogue(); print('jax' in sys.modules)"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
    timed = "import time; t = time.process_time(); import rookery.envs; print(time.process_time() - t)"
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 1.0, f"imported in {done.stdout} s; both in {time.monotonic() - started} s"


def _check_leaf(spec, leaf):
    assert leaf.shape[1:] == spec.shape and leaf.dtype == spec.dtype


def _leaves(step):
    found = []
    tree_map(found.append, tuple(step))
    return found


def test_an_environment_plays_different_episodes():
    steps = play(make(Counting, 2, groups=1), 60).steps
    draws = np.concatenate([step.observation[step.first, 1] for step in steps])
    assert len(draws) > 10 and len(np.unique(draws)) == len(draws)
