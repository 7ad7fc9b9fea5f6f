"""Numbers that show failure before the return does, each against a value worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from algorithm_cases import ALGORITHMS, SPEC, adapted, random_rollout, random_state
from gymnasium import spaces

from rookery import ops
from rookery.algorithms import inspection, optimizers
from rookery.algorithms.dqn import DQN
from rookery.algorithms.r2d2 import R2D2
from rookery.networks import NetworkConfig
from rookery.types import Batch

COMMON = {"health/policy_spread", "health/dead_units", "health/below_epsilon"}


def batch_of(rollout):
    return Batch(rollout, np.ones(rollout.reward.shape[1], np.float32), ())


def some_batch(**options):
    return batch_of(random_rollout(np.random.default_rng(0), **options))


def transitions():
    """Rows of one step, as a replay gives them: all valid, discount 1."""
    rollout = some_batch().rollout
    ones = np.ones((1, 6), np.float32)
    first = {name: getattr(rollout, name)[:1] for name in ("action", "reward", "version")}
    return batch_of(rollout._replace(observation=rollout.observation[:2], discount=ones, valid=ones, extras={}, **first))


# ---------------------------------------------------------------------------------------------------- dead units


def test_a_relu_unit_that_is_never_above_zero_is_dead_and_the_worst_layer_counts():
    one_of_four = jnp.array([[0.0, 1.0, 0.0, 5.0], [0.0, 0.0, 2.0, 5.5]])
    two_of_four = jnp.array([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
    assert inspection.dead_units([one_of_four]) == 0.25
    assert inspection.dead_units([one_of_four, two_of_four]) == 0.5


def test_a_channel_is_alive_if_it_is_so_at_any_place():
    x = jnp.zeros((2, 3, 3, 2)).at[1, 2, 0, 1].set(1.0)
    assert inspection.dead_units([x]) == 0.5


def test_a_tanh_unit_that_is_always_saturated_is_dead_and_a_large_relu_unit_is_not():
    saturated = jnp.array([[0.999, 0.999, 0.1], [0.995, -0.3, 0.2]])
    np.testing.assert_allclose(inspection.dead_units([saturated]), 1 / 3)
    np.testing.assert_allclose(inspection.dead_units([3 * saturated]), 0)


def test_the_layers_of_an_agent_are_listened_to():
    agent = adapted("a2c", network=NetworkConfig(hidden=(8, 4), activation="relu", heads="shared")).build(SPEC)
    state = random_state(agent)
    assert float(agent.inspect(state, some_batch())["health/dead_units"]) < 0.75
    bias = state.params["network"]["encoder"]["dense_1"]["bias"]
    state.params["network"]["encoder"]["dense_1"]["bias"] = bias.at[:3].set(-1e3)
    assert float(agent.inspect(state, some_batch())["health/dead_units"]) == 0.75


def test_of_a_users_own_torso_the_features_are_listened_to():
    torso = (lambda key, observation: {"none": jnp.zeros(1)}, lambda params, x: jnp.concatenate([x, jnp.zeros_like(x)], -1))
    agent = ALGORITHMS["vtrace"].build(SPEC, torso=torso)
    assert float(agent.inspect(random_state(agent), some_batch())["health/dead_units"]) == 0.5


# --------------------------------------------------------------------------------------------------- the policy


def test_a_policy_that_is_the_same_everywhere_has_no_spread_and_one_that_the_state_decides_has_log_a():
    choice = spaces.Discrete(2)
    np.testing.assert_allclose(inspection.policy_spread(choice, jnp.tile(jnp.array([[0.3, -2.0]]), (5, 1))), 0, atol=1e-6)
    decided = jnp.array([[50.0, -50.0], [-50.0, 50.0]])
    np.testing.assert_allclose(inspection.policy_spread(choice, decided), math.log(2), rtol=1e-5)
    p, q = 0.75, 0.25
    half = jnp.log(jnp.array([[p, q], [q, p]]))
    np.testing.assert_allclose(
        inspection.policy_spread(choice, half), math.log(2) + p * math.log(p) + q * math.log(q), rtol=1e-5
    )


def test_the_components_of_an_action_count_alike():
    decided, same = jnp.array([[50.0, -50.0], [-50.0, 50.0]]), jnp.zeros((2, 3))
    outputs = jnp.concatenate([decided, same], -1)
    for space in (spaces.MultiDiscrete([2, 3]), spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))):
        np.testing.assert_allclose(inspection.policy_spread(space, outputs), math.log(2) / 2, rtol=1e-5)
    by_name = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Discrete(2)})
    np.testing.assert_allclose(inspection.policy_spread(by_name, outputs), math.log(2) / 2, rtol=1e-5)
    bits = jnp.array([[50.0, 0.0], [-50.0, 0.0]])
    np.testing.assert_allclose(inspection.policy_spread(spaces.MultiBinary(2), bits), math.log(2) / 2, rtol=1e-5)


def test_of_gaussians_the_spread_is_that_of_the_means_in_their_own_deviations():
    box = spaces.Box(-1, 1, (2,), np.float32)
    log_std = math.log(0.5)
    outputs = jnp.array([[1.0, 3.0, log_std, log_std], [-1.0, 3.0, log_std, log_std]])
    np.testing.assert_allclose(inspection.policy_spread(box, outputs), (1 / 0.5 + 0) / 2, rtol=1e-5)


def test_of_values_the_spread_is_the_share_of_states_with_a_rarer_best_action():
    assert inspection.greedy_spread(jnp.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0]])) == 0.25
    assert inspection.greedy_spread(jnp.ones((4, 3))) == 0.0


def test_where_all_states_are_the_same_neither_spread_nor_dead_units_mean_anything():
    agent = ALGORITHMS["a2c"].build(SPEC)
    batch = some_batch()
    still = batch_of(batch.rollout._replace(observation=np.ones_like(batch.rollout.observation)))
    report = agent.inspect(random_state(agent), still)
    assert np.isnan(report["health/policy_spread"]) and np.isnan(report["health/dead_units"])
    assert np.isfinite(agent.inspect(random_state(agent), batch)["health/policy_spread"])


# ------------------------------------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize(
    "optimizer, gradients",
    [
        (optimizers.adam(epsilon=1e-2), [1e-3, 1.0, 0.0, 5e-2]),  # after one step the root is |g|
        (optimizers.rmsprop(decay=0.99, epsilon=1e-4), [0.05, 1.0, 0.0, 0.2]),  # 0.01 g² < 1e-4
    ],
    ids=["adam", "rmsprop"],
)
def test_second_moments_below_epsilon_are_counted_among_the_parameters_that_have_gradients(optimizer, gradients):
    params = {"a": jnp.zeros(2), "b": jnp.zeros((2, 1))}
    tree = {"a": jnp.array(gradients[:2]), "b": jnp.array(gradients[2:])[:, None]}
    _, state = optimizer.update(tree, optimizer.init(params), params, learning_rate=0.1)
    np.testing.assert_allclose(inspection.below_epsilon(optimizer, state), 1 / 3)


def test_an_optimizer_without_moments_or_without_its_state_tells_nothing():
    adam = optimizers.adam(epsilon=1e-2)
    assert inspection.below_epsilon(adam, ()) is None
    assert inspection.below_epsilon(optax.sgd(0.1), optax.sgd(0.1).init(jnp.zeros(3))) is None


# --------------------------------------------------------------------------------------------------- the support


def test_the_mass_that_lies_beyond_the_support_is_what_a_projection_moves_to_its_ends():
    atoms = ops.support(-1.0, 1.0, 3)
    returns = jnp.array([[-1.5, 0.0, 1.0], [0.5, 1.5, 2.5], [9.0, 9.0, 9.0]])  # ends themselves are inside
    p = jnp.array([[0.25, 0.5, 0.25], [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]])
    share = inspection.beyond_support(returns, p, atoms, jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(share, (0.25 + 0.5) / 2, rtol=1e-6)


def test_a_dqn_with_a_support_tells_what_it_cuts_off():
    agent = DQN(num_atoms=3, value_range=(-1.0, 1.0), network=NetworkConfig(hidden=(4,))).build(SPEC)
    far = batch_of(transitions().rollout._replace(reward=np.full((1, 6), 5.0, np.float32)))
    near = batch_of(far.rollout._replace(reward=np.zeros((1, 6), np.float32)))
    state = random_state(agent)
    assert agent.inspect(state, far)["health/support_ends"] == pytest.approx(1.0)
    assert agent.inspect(state, near)["health/support_ends"] == 0.0


# ------------------------------------------------------------------------------------------------------- agents


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_policy_gradient_algorithm_is_inspected(name):
    agent = ALGORITHMS[name].build(SPEC)
    report = jax.jit(agent.inspect)(random_state(agent), some_batch())
    assert set(report) == COMMON | ({"health/target_copies"} if name == "appo-target" else set())
    assert all(np.shape(value) == () for value in report.values())


@pytest.mark.parametrize(
    "algorithm, copies",
    [
        (DQN(target_period=10, network=NetworkConfig(hidden=(4,))), 2),  # 25 updates
        (DQN(target_period=10, gradient_steps=4, network=NetworkConfig(hidden=(4,)), dueling=True, noisy=True), 10),
        (DQN(target_period=100, fresh=True, network=NetworkConfig(hidden=(4,))), 0),
    ],
    ids=["dqn", "steps", "fresh"],
)
def test_copies_of_the_target_are_counted_in_gradient_steps(algorithm, copies):
    agent = algorithm.build(SPEC)
    report = agent.inspect(random_state(agent)._replace(updates=jnp.int32(25)), transitions())
    assert set(report) == COMMON | {"health/target_copies"} and int(report["health/target_copies"]) == copies


def test_r2d2_is_inspected_along_its_sequences():
    network = NetworkConfig(core="lstm", hidden=(4,), core_size=4)
    agent = R2D2(rollout_length=2, burn_in=2, sequence_length=6, network=network).build(SPEC)
    rollout = random_rollout(np.random.default_rng(0), T=8, memory=agent.memory(6))
    seen = {
        "observation": rollout.observation, "previous_action": np.zeros((9, 6), np.int32),
        "previous_reward": np.zeros((9, 6), np.float32),
    }  # fmt: skip
    report = agent.inspect(random_state(agent), batch_of(rollout._replace(observation=seen)))
    assert set(report) == COMMON | {"health/target_copies"} and all(np.isfinite(float(v)) for v in report.values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_report_says_whether_the_gradient_was_clipped(name):
    for most, clipped in ((1e-6, 1.0), (1e6, 0.0)):
        agent = adapted(name, max_gradient_norm=most).build(SPEC)
        learned = agent.learn(random_state(agent), some_batch(), ops.random.key(0))
        assert float(learned.report["gradient_clipped"]) == clipped


def test_the_hidden_layers_of_heads_are_listened_to():
    agent = DQN(dueling=True, network=NetworkConfig(hidden=(4,))).build(SPEC)
    state = random_state(agent)
    assert float(agent.inspect(state, transitions())["health/dead_units"]) < 1.0
    layer = state.params["network"]["heads"]["state"][0]
    layer["bias"] = jnp.full_like(layer["bias"], -1e3)
    assert float(agent.inspect(state, transitions())["health/dead_units"]) == 1.0
