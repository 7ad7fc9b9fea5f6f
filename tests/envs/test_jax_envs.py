"""Environments written in JAX: our own against those they repeat, others by their interfaces, and the pool around them."""

from __future__ import annotations

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_fakes import FakeBrax, FakeGymnax, FakePgx, GymnaxParams

import rookery
from rookery import envs, ops, systems
from rookery.envs import UnknownEnvironment
from rookery.envs.jax import sources as jax_sources
from rookery.envs.jax.env import JaxEnv, JaxStep, canonical_env
from rookery.envs.jax.toys import CartPoleState, CatchState, CueRecallState, PendulumState
from rookery.testing import advance, assert_next_step_autoreset, assert_same, play, random_action, reference_episodes

KEY = ops.random.key(0)

# ------------------------------------------------------------------------------------------------ our own


@pytest.mark.parametrize("sutton_barto_reward", [False, True])
def test_cartpole_is_that_of_gymnasium_step_for_step(sutton_barto_reward):
    options = {"sutton_barto_reward": sutton_barto_reward}
    theirs, ours = gymnasium.make("CartPole-v1", **options), jax_sources.build("jax:CartPole-v1", options)
    assert ours.spec.observation == theirs.observation_space and ours.spec.action.n == 2
    step, rng, lengths = jax.jit(ours.step), np.random.default_rng(0), []
    for episode in range(6):
        first, _ = theirs.reset(seed=episode)
        state = CartPoleState(jnp.asarray(first), jnp.int32(0))
        for length in itertools.count(1):
            angle, spin = theirs.unwrapped.state[2:]
            action = int(angle + 0.3 * spin > 0) if episode < 2 else int(rng.integers(2))  # those two stand long
            state, answer = step(state, action, KEY)
            observation, reward, terminated, truncated, _ = theirs.step(action)
            np.testing.assert_allclose(answer.observation, observation, rtol=1e-4, atol=1e-5)
            assert (float(answer.reward), bool(answer.terminated), bool(answer.truncated)) == (reward, terminated, truncated)
            if terminated or truncated:
                lengths.append(length)
                break
            theirs.unwrapped.state = np.array(answer.observation, np.float64)  # rounding may not add up over 500 steps
    assert lengths[0] == 500 and min(lengths) < 60, f"neither a fall nor the time limit was seen: {lengths}"


def test_pendulum_is_that_of_gymnasium_step_for_step():
    theirs, ours = gymnasium.make("Pendulum-v1"), jax_sources.build("jax:Pendulum-v1")
    assert ours.spec.observation == theirs.observation_space and ours.spec.action == theirs.action_space
    step, rng = jax.jit(ours.step), np.random.default_rng(0)
    for episode in range(2):
        theirs.reset(seed=episode)
        angle, speed = theirs.unwrapped.state
        state = PendulumState(jnp.float32(angle), jnp.float32(speed), jnp.int32(0))
        for length in itertools.count(1):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            state, answer = step(state, action, KEY)
            observation, reward, terminated, truncated, _ = theirs.step(action)
            np.testing.assert_allclose(answer.observation, observation, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(answer.reward, reward, rtol=1e-3, atol=1e-3)
            assert (bool(answer.terminated), bool(answer.truncated)) == (terminated, truncated)
            if truncated:
                assert length == 200
                break
            theirs.unwrapped.state = np.array([state.angle, state.speed], np.float64)


def test_cartpole_starts_within_its_bounds_and_differently():
    starts = np.stack([jax_sources.build("jax:CartPole-v1").reset(ops.random.key(i))[1] for i in range(50)])
    assert len(np.unique(starts)) == 200 and 0.04 < np.abs(starts).max() <= 0.05


def agree(id, state_of, **options):
    """The numpy toy and ours, started alike, answer alike for two episodes."""
    numpy_pool, env = envs.make(id, 16, **options), jax_sources.build(f"jax:{id}", options)
    assert env.spec._replace(id=id) == numpy_pool.spec
    step, rng = jax.jit(jax.vmap(env.step, (0, 0, None))), np.random.default_rng(0)
    now = numpy_pool.reset(3)
    ended = 0
    while ended < 2:
        if now.first.all():
            state = state_of(numpy_pool._state)
        action = rng.integers(0, env.spec.action.n, 16).astype(np.int32)
        now = advance(numpy_pool, action)
        if now.first.all():
            continue
        state, answer = step(state, action, KEY)
        assert_same(np.asarray(answer.observation), now.observation)
        assert_same(tuple(map(np.asarray, answer[1:])), (now.reward, now.terminated, now.truncated))
        ended += now.terminated.all()


@pytest.mark.parametrize("options", [{}, {"rows": 5, "columns": 3}, {"dtype": "uint8"}], ids=str)
def test_catch_is_the_numpy_toy(options):
    agree("catch", lambda s: CatchState(*(jnp.array(s[name]) for name in ("column", "row", "paddle"))), **options)


@pytest.mark.parametrize("options", [{}, {"delay": 3, "cues": 4}], ids=str)
def test_cue_recall_is_the_numpy_toy(options):
    agree("cue-recall", lambda s: CueRecallState(jnp.array(s["cue"]), jnp.array(s["waited"])), **options)


@pytest.mark.parametrize("id", ["catch", "cue-recall"])
def test_random_play_has_the_return_of_the_numpy_toy(id):
    returns = [e.total_reward for e in play(envs.make(f"jax:{id}", 300), 39).episodes]
    expected = envs.make(id, 1).toy.random_return
    assert len(returns) > 1000 and abs(np.mean(returns) - expected) < 4 * np.std(returns) / np.sqrt(len(returns))


@pytest.mark.parametrize("id", ["jax:CartPole-v1", "jax:catch", "jax:cue-recall"])
def test_a_rollout_of_many_environments_and_seeds_is_one_program(id):
    """What Anakin needs: vmap over seeds and environments, scan over time, a carry that keeps its types."""
    env = jax_sources.build(id)

    def rollout(key):
        state, _ = env.reset(key)

        def one(state, key):
            return env.step(state, jnp.int32(0), key)

        return jax.lax.scan(one, state, jax.random.split(key, 5))[1]

    keys = jax.vmap(lambda key: jax.random.split(key, 4))(jax.random.split(KEY, 3))
    steps = jax.jit(jax.vmap(jax.vmap(rollout)))(keys)
    assert isinstance(steps, JaxStep) and steps.reward.shape == (3, 4, 5)
    assert steps.reward.dtype == jnp.float32 and steps.terminated.dtype == steps.truncated.dtype == bool


# ------------------------------------------------------------------------------------------- by duck type


def summed(pool, value, num_steps):
    pool.reset(0)
    return [advance(pool, np.full((pool.num_envs, *pool.spec.action.shape), value, np.float32)) for _ in range(num_steps)]


@pytest.mark.parametrize("given", [FakeGymnax(), (FakeGymnax(), GymnaxParams()), lambda: FakeGymnax(), FakeGymnax],
                         ids=["object", "with its parameters", "function", "class"])  # fmt: skip
def test_gymnax_is_stepped_without_its_auto_reset_and_its_time_limit_truncates(given):
    pool = envs.make(given, 2)
    assert pool.id == "gymnax:Sum-v0"
    slow = summed(pool, 0.5, 8)
    assert [step.truncated.all() for step in slow] == [False] * 5 + [True, False, False]
    assert not any(step.terminated.any() for step in slow)
    assert slow[5].observation[:, 1].tolist() == [6, 6] and slow[6].observation[:, 1].tolist() == [0, 0]
    fast = summed(pool, 5.0, 8)  # clipped to 1: more than 4 after the fourth or fifth step
    ends = [(step.terminated | step.truncated).any() for step in fast]
    assert True in ends and not any(step.truncated.any() for step in fast) and max(s.reward.max() for s in fast) == 1


def test_gymnax_is_terminated_when_it_fails_on_its_last_step():
    pool = envs.make(FakeGymnax(), 2, limit=3.5, max_steps_in_episode=4)  # options of an object are its params
    last = summed(pool, 1.0, 4)[-1]
    assert last.terminated.all() and not last.truncated.any()
    with pytest.raises(ValueError, match="has no option 'limits': its options are max_steps_in_episode, limit"):
        envs.make(FakeGymnax(), 2, limits=3)


def test_brax_is_truncated_after_its_episode_length_and_its_actions_are_clipped():
    pool = envs.make(FakeBrax(), 2, episode_length=5)
    assert pool.spec.observation.shape == (1,) and pool.spec.action.shape == (2,)
    steps = summed(pool, 9.0, 6)
    assert [s.truncated.all() for s in steps] == [False] * 4 + [True, False] and steps[5].first.all()
    assert steps[0].reward.tolist() == [2, 2]
    steps = summed(envs.make(FakeBrax(), 2), 0.0, 8)
    assert [s.terminated.all() for s in steps] == [False] * 6 + [True, False]


def test_pgx_gives_its_legal_actions_as_a_mask_and_games_of_two_are_refused():
    pool = envs.make(FakePgx(), 4)
    played = play(pool, 20)  # legal actions only
    assert set(pool.spec.observation) == {"action_mask", "observation"}
    assert all((step.reward == 1).all() for step in played.steps[1:]) and not played.episodes
    mask = played.steps[-1].observation["action_mask"]
    assert mask.dtype == np.int8 and mask.sum(axis=1).tolist() == [2, 2, 2, 2]
    assert advance(pool, mask.argmin(axis=1)).terminated.all()
    with pytest.raises(ValueError, match="'pgx:pick' is a game of 2 players"):
        envs.make(FakePgx(2), 4)


@pytest.mark.parametrize("package", ["gymnax", "brax", "pgx"])
def test_a_missing_package_is_named_with_the_remedy(package, monkeypatch):
    monkeypatch.setattr(jax_sources, "find_spec", lambda name: None)
    with pytest.raises(UnknownEnvironment, match=rf"'{package}:walk' needs {package}: pip install {package}"):
        envs.make(f"{package}:walk", 1)


@pytest.mark.parametrize(
    ("id", "wrong"),
    [
        ("gymnax:CartPole-v1", "gymnax:CartPol-v1"),
        ("gymnax:Pendulum-v1", "gymnax:Pendulum"),
        ("pgx:minatar-breakout", "pgx:2049"),
        ("brax:fast", "brax:antt"),
    ],
)
def test_the_real_packages(id, wrong):
    pytest.importorskip(id.partition(":")[0])
    options = {"episode_length": 9} if id.startswith("brax") else {}
    played = play(envs.make(id, 3, groups=2, **options), 30)
    assert_next_step_autoreset(played.steps)
    assert played.episodes == reference_episodes(played.steps)
    with pytest.raises(UnknownEnvironment, match=f"no environment '{wrong}': did you mean"):
        envs.make(wrong, 1)


def test_unknown_ids_and_options_of_ours_are_answered_with_the_near_ones():
    with pytest.raises(UnknownEnvironment, match="no environment 'jax:CartPole': did you mean 'jax:CartPole-v1'"):
        envs.make("jax:CartPole", 1)
    with pytest.raises(ValueError, match="did you mean 'delay'"):
        envs.make("jax:cue-recall", 1, dely=3)
    with pytest.raises(TypeError, match="callable"):
        envs.make(gymnasium.make("CartPole-v1"), 1)


# ----------------------------------------------------------------------------------------------- the pool


def breaking():
    """A user's own JaxEnv: counts to 20, but environments that drew a high number show NaN at their third step."""

    def reset(key):
        state = {"n": jnp.int32(0), "bad": jax.random.uniform(key) > 0.5, "key": key}
        return state, jnp.zeros(1)

    def step(state, action, key):
        n = state["n"] + 1
        seen = jnp.where(state["bad"] & (n == 3), jnp.nan, n.astype(jnp.float32))
        return state | {"n": n}, JaxStep(seen[None], 1.0, n == 20, False)

    space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    return canonical_env(space, gymnasium.spaces.Discrete(3, start=5), "breaking", reset=reset, step=step)


def test_a_number_that_is_not_finite_names_the_environment_and_a_rebuild_repairs_it():
    env = breaking()
    assert isinstance(env, JaxEnv)
    pool = envs.make(env, 4)
    pool.reset(1)
    for _ in range(2):
        advance(pool, np.ones(4, int))
    pool.send(np.ones(4, int))
    failed = set()
    while True:
        try:
            step = pool.recv()
            break
        except envs.EnvironmentFailed as error:
            assert f"'breaking', environment {error.env_id} (incarnation 0), after 3 steps: observation is not finite" in str(
                error
            )
            assert "after action 1" in str(error)
            failed.add(error.env_id)
            pool.rebuild(error.env_id)
    assert 0 < len(failed) < 4
    assert step.first.tolist() == [env in failed for env in range(4)]
    assert step.observation[:, 0].tolist() == [0.0 if env in failed else 3.0 for env in range(4)]


def test_a_state_that_holds_a_key_and_a_pending_rebuild_survive_a_snapshot():
    pool = envs.make("jax:catch", 6, groups=2)
    play(pool, 5)
    pool.rebuild(4)
    other = envs.make("jax:catch", 6, groups=3)
    start = other.restore(pool.snapshot())
    whole, resumed = play(pool, 30, start=start), play(other, 30, start=start)
    assert whole.steps[1].first[4] and not whole.steps[1].first[3]
    for a, b in zip(whole.steps, resumed.steps):
        assert_same(a, b)
    keyed = envs.make(breaking(), 2)
    keyed.reset(0)
    saved = keyed.snapshot()
    assert all(isinstance(leaf, np.ndarray) for leaf in saved["slots"])
    envs.make(breaking(), 2).restore(saved)
    with pytest.raises(ValueError, match="not one of 'jax:catch'"):
        pool.restore(saved | {"fresh": np.zeros(6, bool)})


def test_send_returns_before_the_step_is_done():
    """Dispatch only: the answer of a long step is not there yet when send() is back."""
    size = 400

    def reset(key):
        return jnp.zeros((size, size)), jnp.zeros(1)

    def step(state, action, key):
        state = jax.lax.fori_loop(0, 30, lambda i, x: jnp.tanh(x @ x + 1e-3), state + 1e-3)
        return state, JaxStep(state[0, :1], 0.0, False, False)

    space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    pool = envs.make(canonical_env(space, gymnasium.spaces.Discrete(2), "slow", reset=reset, step=step), 2)
    pool.reset(0)
    advance(pool, np.zeros(2, int))  # compiles
    waiting = []
    for _ in range(3):
        pool.send(np.zeros(2, int))
        waiting.append(not pool._coming[0][1].observation.is_ready())
        pool.recv()
    assert any(waiting)


def test_a_second_pool_finds_the_programs_compiled():
    first, second = envs.make("jax:catch", 4), envs.make("jax:catch", 4)
    assert first._programs is second._programs
    assert envs.make("jax:catch", 4, rows=5)._programs is not first._programs


def test_masks_of_legal_actions_are_respected_by_random_play():
    pool = envs.make(FakePgx(), 3)
    step = pool.reset(0)
    action = random_action(pool, np.random.default_rng(0), step)
    assert (np.take_along_axis(step.observation["action_mask"], action[:, None], 1) == 1).all()


def test_an_environment_plays_different_episodes():
    steps = play(envs.make("jax:CartPole-v1", 2), 80).steps
    starts = np.concatenate([step.observation[step.first, 0] for step in steps])
    assert len(starts) > 6 and len(np.unique(starts)) == len(starts)


def test_a_preset_for_an_environment_also_serves_the_one_written_in_jax():
    assert systems.defaults("ppo", "jax:CartPole-v1") == systems.defaults("ppo", "CartPole-v1")


@pytest.mark.parametrize("env_options", [{}, {"frame_stack": 2, "reward_clip": 0.5}], ids=str)
def test_a_run_resumes_exactly(tmp_path, env_options):
    """Interrupted after a checkpoint or not, the parameters are the same to the bit."""
    options = {"env": "jax:catch", "env_options": env_options, "num_envs": 4, "rollout_length": 6, "total_steps": 400}
    options |= {"network": {"hidden": (8,)}, "runs": str(tmp_path), "checkpoint_every": 4, "eval_episodes": 2}
    whole = rookery.train("ppo", run="whole", **options).policy.params
    with rookery.Trainer("ppo", run="cut", **options) as trainer:
        while trainer.last_checkpoint is None:
            trainer.advance()
    run = rookery.run.directory.Run.open(tmp_path / "cut")
    cfg = rookery.run.config.from_dict(run.config["config"])
    with rookery.run.api.continued(run, cfg) as trainer:
        for _ in trainer:
            pass
        resumed = trainer.finish().policy.params
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
