"""DDPG, TD3 and SAC: updates against plain jax and optax written from the papers, targets, delays, units of actions."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from rookery import ops
from rookery.algorithms import off_policy, sac
from rookery.algorithms.ddpg import DDPG
from rookery.algorithms.sac import SAC
from rookery.algorithms.td3 import TD3
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig
from rookery.ops.action_units import action_units
from rookery.types import Batch, Rollout, Spec

B, GAMMA = 8, 0.9
SPEC = Spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32))
SMALL = NetworkConfig(hidden=(16, 16), activation="relu")
PRIORITIZED = ReplayBuffer(selector="prioritized")
COMMON = {"network": SMALL, "gradient_steps": 1, "batch_size": B, "learning_rate": 1e-3}
CASES = {
    "ddpg": DDPG(**COMMON), "td3": TD3(**COMMON, policy_delay=1), "sac": SAC(**COMMON, initial_temperature=0.3),
}  # fmt: skip


@cache
def agent_of(algorithm):
    return algorithm.build(SPEC)


def batch_of(columns=B, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    rollout = Rollout(
        observation=np.clip(normal(2, columns, 3), -1, 1), action=rng.uniform(-2, 2, (1, columns, 2)).astype(np.float32),
        reward=normal(1, columns), discount=np.where(rng.random((1, columns)) < 0.3, 0.0, GAMMA).astype(np.float32),
        valid=np.ones((1, columns), np.float32), extras={}, memory=(), version=np.zeros((1, columns), np.int32), stream=(),
        step=(),
    )  # fmt: skip
    return Batch(rollout, rng.uniform(0.5, 1, columns).astype(np.float32), ())


def moved(state, seed=3):
    """A state whose target networks and temperature are not those that it began with."""
    leaves, structure = jax.tree.flatten(state.slow)
    keys = jax.random.split(ops.random.key(seed), len(leaves))
    noisy = [leaf + 0.1 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves)]
    return state._replace(slow=jax.tree.unflatten(structure, noisy))


def mlp(params, x):
    layers = [params["encoder"][f"dense_{i}"] for i in range(2)]
    for layer in layers:
        x = jnp.maximum(x @ layer["kernel"] + layer["bias"][None], 0.0)
    return x @ params["head"]["kernel"] + params["head"]["bias"][None]


def q_of(params, observation, unit):
    seen = jnp.concatenate([unit, observation], -1)  # as the leaves of a Dict are sorted: action, observation
    count = jax.tree.leaves(params)[0].shape[0]
    return jnp.stack([mlp(jax.tree.map(lambda leaf, i=i: leaf[i], params), seen)[:, 0] for i in range(count)])


def gaussian(params, observation, noise):
    """A squashed action and its log density in units of the bounds, by the change of variables as it is written."""
    mean, log_std = jnp.split(mlp(params, observation), 2, -1)
    log_std = jnp.clip(log_std, -20.0, 2.0)
    u = mean + jnp.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    return jnp.tanh(u), jnp.sum(normal - jnp.log(1.0 - jnp.tanh(u) ** 2), -1)


def reference(name, state, batch, key, config):
    """One update, from the papers' equations: gradients of each part alone, then optax.adam for each."""
    rollout, weight = batch.rollout, batch.weight
    before, after, unit = rollout.observation[0], rollout.observation[1], rollout.action[0] / 2.0
    reward, discount, params, slow = rollout.reward[0], rollout.discount[0], state.params, state.slow
    step_key = jax.random.split(key, 1)[0]
    critic_key, actor_key = jax.random.split(step_key)
    if name == "sac":
        alpha = jnp.exp(params["temperature"]["log"])
        noise = jax.random.normal(jax.random.split(critic_key)[0], (B, 2))
        then, logp = gaussian(params["actor"], after, noise)
        worth = q_of(slow["critic"], after, then).min(0) - alpha * logp
    else:
        then = jnp.tanh(mlp(slow["actor"], after))
        if name == "td3":
            then = jnp.clip(then + jnp.clip(0.2 * jax.random.normal(critic_key, then.shape), -0.5, 0.5), -1, 1)
        worth = q_of(slow["critic"], after, then).min(0)
    target = reward + discount * worth
    losses = {"critic": lambda p: jnp.mean(weight * 0.5 * jnp.sum((q_of(p, before, unit) - target[None]) ** 2, 0))}
    if name == "sac":
        noise = jax.random.normal(actor_key, (B, 2))

        def of_actor(p):
            action, logp = gaussian(p, before, noise)
            return jnp.mean(alpha * logp - q_of(params["critic"], before, action).min(0))

        logp = gaussian(params["actor"], before, noise)[1]
        losses |= {"actor": of_actor, "temperature": lambda p: -p["log"] * jnp.mean(logp - 2.0)}
    else:
        losses["actor"] = lambda p: -jnp.mean(q_of(params["critic"], before, jnp.tanh(mlp(p, before)))[0])
    made = {}
    for part, loss in losses.items():
        optimizer = optax.adam(config.temperature_rate if part == "temperature" else config.learning_rate)
        change, _ = optimizer.update(jax.grad(loss)(params[part]), optimizer.init(params[part]))
        made[part] = optax.apply_updates(params[part], change)
    followed = {part: jax.tree.map(lambda old, new: 0.995 * old + 0.005 * new, slow[part], made[part]) for part in slow}
    return made, followed


@pytest.mark.parametrize("name", CASES)
def test_an_update_is_that_of_the_paper_written_plainly(name):
    agent, key = agent_of(CASES[name]), ops.random.key(5)
    state, batch = moved(agent.init(ops.random.key(1))), batch_of()
    made, followed = reference(name, state, batch, key, CASES[name])
    learned = jax.jit(agent.learn)(state, batch, key).state
    for part in agent.trained:
        for got, wanted in zip(jax.tree.leaves(learned.params[part]), jax.tree.leaves(made[part]), strict=True):
            np.testing.assert_allclose(got, wanted, atol=3e-6, rtol=2e-4, err_msg=part)
    for got, wanted in zip(jax.tree.leaves(learned.slow), jax.tree.leaves(followed), strict=True):
        np.testing.assert_allclose(got, wanted, atol=3e-6, rtol=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_gradients_that_are_shipped_make_the_same_update(name):
    agent, key = agent_of(CASES[name]), ops.random.key(5)
    state, batch = moved(agent.init(ops.random.key(1))), batch_of()
    whole = agent.learn(state, batch, key).state
    found = agent.gradients(state.params, state.slow, batch, jax.random.split(key, 1)[0])
    parts = agent.apply(state, found)
    assert parts.updates == whole.updates == 1
    for got, wanted in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6, rtol=1e-4)


def test_several_gradient_steps_are_as_many_updates_of_a_piece_each():
    config = dataclasses.replace(CASES["sac"], gradient_steps=3)
    state, batch, key = moved(agent_of(config).init(ops.random.key(1))), batch_of(3 * B), ops.random.key(5)
    together = agent_of(config).learn(state, batch, key)
    one = agent_of(CASES["sac"])
    for index in range(3):
        cut = slice(index * B, (index + 1) * B)
        piece = Batch(jax.tree.map(lambda x, cut=cut: x[:, cut], batch.rollout), batch.weight[cut], ())
        found = one.gradients(state.params, state.slow, piece, jax.random.split(key, 3)[index])
        state = one.apply(state, found)
    for got, wanted in zip(jax.tree.leaves(together.state.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5, rtol=1e-3)


def test_the_policy_and_the_targets_of_td3_wait_for_the_critics():
    agent = TD3(**COMMON).build(SPEC)  # every second step
    learn, state, batch = jax.jit(agent.learn), moved(agent.init(ops.random.key(1))), batch_of()
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))
    for update, due in enumerate((True, False, True, False)):
        after = learn(state, batch, ops.random.key(update)).state
        assert not same(after.params["critic"], state.params["critic"])
        assert same(after.params["actor"], state.params["actor"]) != due
        assert same(after.slow, state.slow) != due
        assert same(after.optimizer["actor"], state.optimizer["actor"]) != due
        state = after


def test_a_target_takes_the_least_of_the_twins_and_of_a_random_few():
    q = jnp.array([[1.0, 5.0], [2.0, 3.0], [0.0, 9.0]])
    np.testing.assert_array_equal(sac.least(ops.random.key(0), q, 3), [0.0, 3.0])
    drawn = {tuple(np.asarray(sac.least(ops.random.key(i), q, 2))) for i in range(40)}
    assert drawn == {(1.0, 3.0), (0.0, 5.0), (0.0, 3.0)}


@pytest.mark.parametrize("wanted, rises", [(100.0, True), (-100.0, False)])
def test_the_temperature_rises_while_the_entropy_is_too_low(wanted, rises):
    agent = SAC(**COMMON, target_entropy=wanted).build(SPEC)
    state = agent.init(ops.random.key(1))
    after = agent.learn(state, batch_of(), ops.random.key(2)).state
    assert (after.params["temperature"]["log"] > state.params["temperature"]["log"]) == rises


def test_entropy_of_choices_is_held_at_half_of_the_greatest_and_illegal_ones_are_never_taken():
    space = spaces.Dict({"at": spaces.Discrete(3), "action_mask": spaces.MultiBinary(4)})
    agent = SAC(**COMMON).build(Spec(space, spaces.Discrete(4)))
    state, mask = agent.init(ops.random.key(1)), np.array([[1, 0, 1, 0]] * 64, np.int8)
    seen = {"at": np.zeros(64, np.int32), "action_mask": mask}
    for random in (0.0, 1.0):
        explore = {"noise": np.ones(64, np.float32), "random": np.full(64, random, np.float32)}
        taken = np.asarray(agent.act(state.params, seen, (), ops.random.key(3), explore).action)
        assert set(taken.tolist()) == {0, 2}
    rows = lambda x: np.stack([x[:B], x[:B]])
    batch = batch_of()
    rollout = batch.rollout._replace(observation=jax.tree.map(rows, seen), action=np.zeros((1, B), np.int32))
    learned = agent.learn(state, batch._replace(rollout=rollout), ops.random.key(2))
    assert learned.report["entropy"] == pytest.approx(math.log(2), abs=0.01)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(learned))
    assert learned.state.params["temperature"]["log"] < state.params["temperature"]["log"], "more than half of log 2"


@pytest.mark.parametrize("name", CASES)
def test_rows_of_no_weight_teach_nothing(name):
    agent, key, batch = agent_of(CASES[name]), ops.random.key(5), batch_of()
    state = moved(agent.init(ops.random.key(1)))
    counts = np.ones((1, B), np.float32)
    counts[0, 2] = 0.0
    weighted = batch._replace(rollout=batch.rollout._replace(weight=counts))
    reward = batch.rollout.reward.copy()
    reward[0, 2] += 100.0
    other = weighted._replace(rollout=weighted.rollout._replace(reward=reward))
    one, two = (agent.learn(state, given, key).state.params for given in (weighted, other))
    for got, wanted in zip(jax.tree.leaves(one), jax.tree.leaves(two)):
        np.testing.assert_array_equal(got, wanted)


def test_priorities_are_the_critics_errors_and_collectors_give_the_first():
    agent = DDPG(**COMMON, replay=PRIORITIZED, n_step=2).build(SPEC)
    state, batch = moved(agent.init(ops.random.key(1))), batch_of()
    learned = agent.learn(state, batch, ops.random.key(5))
    unit, slow, rollout = batch.rollout.action[0] / 2.0, state.slow, batch.rollout
    worth = q_of(slow["critic"], rollout.observation[1], jnp.tanh(mlp(slow["actor"], rollout.observation[1])))[0]
    target = rollout.reward[0] + rollout.discount[0] * worth
    error = np.abs(q_of(state.params["critic"], rollout.observation[0], unit)[0] - target)
    np.testing.assert_allclose(learned.priorities, error + 1e-6, rtol=1e-4)
    explore = agent.explore(state.params, np.arange(B), B, 10**6)
    decided = agent.act(state.params, rollout.observation[0], (), ops.random.key(1), explore)
    np.testing.assert_allclose(
        decided.extras["q"], q_of(state.params["critic"], rollout.observation[0], decided.action / 2.0)[0], rtol=1e-4
    )


# --------------------------------------------------------------------------------------------------------- acting


def test_each_environment_of_ape_x_dpg_has_noise_of_its_own_and_evaluation_none():
    agent = DDPG(**COMMON, exploration="ladder", noise=0.2).build(SPEC)
    params = agent.init(ops.random.key(1)).params
    noise = agent.explore(params, np.arange(5), 5, 10**6)["noise"]
    np.testing.assert_allclose(noise, 0.1 * 30.0 ** (np.arange(5) / 4), rtol=1e-5)
    seen = np.zeros((5, 3), np.float32)
    greedy = {"noise": np.zeros(5, np.float32), "random": np.zeros(5, np.float32)}
    one, two = (agent.act(params, seen, (), ops.random.key(k), greedy).action for k in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_the_first_steps_are_random_over_the_whole_of_the_bounds():
    agent = SAC(**COMMON, random_steps=100).build(SPEC)
    params = agent.init(ops.random.key(1)).params
    explore = agent.explore(params, np.arange(512), 512, 99)
    action = np.asarray(agent.act(params, np.zeros((512, 3), np.float32), (), ops.random.key(0), explore).action)
    assert np.abs(action).max() <= 2.0 and abs(action.std() - 4 / math.sqrt(12)) < 0.08
    assert agent.explore(params, np.arange(4), 4, 100)["random"].tolist() == [0.0] * 4


def test_actions_are_in_units_of_their_bounds_and_fill_them():
    space = spaces.Dict({"a": spaces.Box(0, 500, (2,), np.float32), "b": spaces.Box(-3, -1, (), np.float32)})
    units = action_units(space)
    assert units.size == 3
    action = units.from_unit(jnp.array([[-1.0, 1.0, 0.0]]))
    np.testing.assert_allclose(action["a"], [[0.0, 500.0]])
    np.testing.assert_allclose(action["b"], [-2.0])
    np.testing.assert_allclose(units.to_unit(action), [[-1.0, 1.0, 0.0]])


@pytest.mark.parametrize("space, said", [
    (spaces.Box(-np.inf, np.inf, (2,)), r"without bounds .*gymnasium.wrappers.TransformAction\(.* Box\(-1, 1, \(2,\)\)\)"),
    (spaces.Box(0, np.inf, (2, 3)), "without bounds that a policy could be scaled to"),
    (spaces.Box(-3e38, 3e38, ()), "without bounds"),
    (spaces.Box(np.array([-1, 1], np.float32), np.ones(2, np.float32)), "some numbers of which can only have one value"),
    (spaces.Box(0, 9, (2,), np.int32), "whose numbers are whole: declare a Box of floats and round them"),
    (spaces.MultiDiscrete([3, 2]), "the action space is MultiDiscrete.*sac and dqn one choice"),
    (spaces.Dict({"go": spaces.Box(-1, 1), "how": spaces.Discrete(2)}), "leaf 'how' is Discrete.*ppo, a2c and impala take"),
    (spaces.MultiBinary(3), "the action space is MultiBinary.*sac and dqn one choice"),
])  # fmt: skip
def test_actions_that_no_critic_of_numbers_can_read_are_refused_with_what_can(space, said):
    for algorithm in (SAC(network=SMALL), TD3(network=SMALL), DDPG(network=SMALL)):
        with pytest.raises(ValueError, match=said):
            algorithm.build(SPEC._replace(action=space))


COVERED = {
    "wide": spaces.Box(0, 500, (1,)), "odd": spaces.Box(-1, 0.1, (2,)), "matrix": spaces.Box(-2, 2, (2, 3)),
    "each its own": spaces.Box(np.array([0, -5, 100], np.float32), np.array([1, 5, 101], np.float32)),
    "no axes": spaces.Box(-1, 3, ()), "two": spaces.Tuple([spaces.Box(0, 9, (1,)), spaces.Box(-1, 1, (2, 2))]),
}  # fmt: skip


@pytest.mark.parametrize("name", COVERED)
def test_every_bounded_space_is_filled_by_random_actions_and_left_by_none(name):
    """Each number goes to both ends of its own bounds, and a new policy stands in the middle."""
    space = COVERED[name]
    boxes = space.spaces if isinstance(space, spaces.Tuple) else (space,)
    low, high = (np.concatenate([np.ravel(getattr(box, end)) for box in boxes]) for end in ("low", "high"))
    room = high - low
    for algorithm in (SAC, TD3, DDPG):
        agent = algorithm(**COMMON, random_steps=10).build(SPEC._replace(action=space))
        params = agent.init(ops.random.key(1)).params

        def acted(explore, agent=agent, params=params):
            action = agent.act(params, np.zeros((256, 3), np.float32), (), ops.random.key(0), explore).action
            return np.concatenate([np.asarray(leaf).reshape(256, -1) for leaf in jax.tree.leaves(action)], -1)

        random = acted(agent.explore(params, np.arange(256), 256, 0))
        assert (random >= low - 1e-5 * room).all() and (random <= high + 1e-5 * room).all()
        assert (random.min(0) < low + 0.05 * room).all() and (random.max(0) > high - 0.05 * room).all()
        greedy = acted({"noise": np.zeros(256, np.float32), "random": np.zeros(256, np.float32)})
        assert (np.abs(greedy - (low + high) / 2) < 0.05 * room).all()


def test_polyak_moves_a_share_of_the_way():
    np.testing.assert_allclose(off_policy.polyak({"w": jnp.ones(2)}, {"w": jnp.zeros(2)}, 0.25)["w"], 0.75)


def test_an_ensemble_with_layer_normalisation_stands_a_torso_of_the_users():
    import flax.linen as nn

    agent = SAC(**COMMON, critics=5, layer_norm=True).build(SPEC, torso=nn.Dense(7))
    state = agent.init(ops.random.key(1))
    assert state.params["critic"]["encoder"]["torso"]["params"]["kernel"].shape == (5, 3, 7)
    assert state.params["critic"]["encoder"]["mlp"]["norm_0"]["scale"].shape == (5, 16)
    after = agent.learn(state, batch_of(), ops.random.key(2)).state
    first, second = (given.params["critic"]["encoder"]["torso"]["params"]["kernel"] for given in (state, after))
    assert not np.array_equal(first, second)
