"""What is derived where nobody said: which observations are normalised, how rewards get their unit, what actions cover."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import ops
from rookery.algorithms import normalisers
from rookery.algorithms.a2c import A2C
from rookery.algorithms.dqn import DQN, support_of
from rookery.algorithms.minibatches import minibatches_for
from rookery.algorithms.normalisers import normalised_leaves, scales_rewards
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.networks.q_network import q_network
from rookery.types import Batch, Rollout, Spec

SMALL = NetworkConfig(hidden=(8,))


def box(low, high, shape, dtype=np.float32):
    return gs.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (box(-np.inf, np.inf, (3,)), (0,)),  # unbounded: a running deviation is the only unit there is
        (box(0, 500, (3,)), (0,)),
        (box(-8, 8, (3,)), ()),  # somebody has given them a unit
        (box(-1, 1, (3,)), ()),
        (box(0, 1, (3,)), ()),  # one-hots
        (box(0, 1, (10, 5)), ()),  # boards
        (box(-np.inf, np.inf, (4, 4)), ()),
        (box(0, 255, (8, 8, 1), np.uint8), ()),
        (gs.Discrete(4), ()),
        (gs.Dict({"action_mask": box(0, 5, (2,)), "b": box(-900, 900, (2,)), "c": box(-1, 1, (2,))}), (1,)),
    ],
)
def test_vectors_without_bounds_that_say_their_unit_are_normalised(space, expected):
    spec = Spec(space, gs.Discrete(2))
    assert tuple(normalised_leaves(spec, None)) == expected
    assert normalised_leaves(spec, False) == {}


def test_numbers_that_have_their_unit_stay_as_they_are_beside_others_that_have_none():
    low, high = np.array([-900, -np.inf, 0, -8], np.float32), np.array([900, np.inf, 1, 8], np.float32)
    spec = Spec(gs.Box(low, high), gs.Discrete(2))
    assert normalised_leaves(spec, None)[0].tolist() == [True, True, False, False]
    units = normalisers.build(spec, observations=None, rewards=False)
    rollout = rollout_of(np.random.default_rng(0), spec, scale=5.0)
    rollout = rollout._replace(observation=np.concatenate([rollout.observation, rollout.observation[..., :1]], -1))
    params = units.observed({"network": ()} | units.init(), units.statistics(rollout))
    seen = np.asarray(units.observe(params, rollout.observation[:-1]))
    np.testing.assert_array_equal(seen[..., 2:], rollout.observation[:-1, :, 2:])
    np.testing.assert_allclose(seen[..., :2].std((0, 1)), 1.0, rtol=1e-3)


def test_rewards_are_scaled_unless_a_clip_gives_them_their_unit():
    assert scales_rewards(None, "none") and not scales_rewards(None, "unit") and not scales_rewards(False, "none")
    with pytest.raises(ValueError, match="--normalise-rewards and --reward-clip unit"):
        PPO(normalise_rewards=True, reward_clip="unit").build(Spec(box(-1, 1, (3,)), gs.Discrete(2)))


def rollout_of(rng, spec, *, scale, T=8, B=4):
    """Rows of an environment whose observations and rewards are `scale` times those of another."""
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    reward = scale * normal(T, B)
    return Rollout(
        observation=scale * normal(T + 1, B, 3), action=rng.integers(0, 2, (T, B)).astype(np.int32), reward=reward,
        discount=np.full((T, B), 0.9, np.float32), valid=np.ones((T, B), np.float32),
        extras={"behaviour_logp": np.full((T, B), np.log(0.5), np.float32), "discounted_return": 3 * reward},
        memory=(), version=np.zeros((T, B), np.int32), stream=(), step=(),
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", [A2C(network=SMALL), VTrace(network=SMALL), PPO(network=SMALL, epochs=2, minibatches=2)])
def test_what_is_learned_does_not_depend_on_the_units_of_observations_and_rewards(algorithm):
    """After the first batch, which the normalisers see after it was learned from."""
    spec = Spec(box(-np.inf, np.inf, (3,)), gs.Discrete(2))
    agent = algorithm.build(spec)
    learn, found = jax.jit(agent.learn), []
    for scale in (1.0, 1000.0):
        rng = np.random.default_rng(0)
        state = jax.jit(agent.init)(ops.random.key(0))
        seen = learn(state, Batch(rollout_of(rng, spec, scale=scale), np.ones(4, np.float32), ()), ops.random.key(1)).state
        state = seen._replace(params=state.params | {name: seen.params[name] for name in ("observation", "reward")},
                              optimizer=state.optimizer)  # fmt: skip
        batch = Batch(rollout_of(rng, spec, scale=scale), np.ones(4, np.float32), ())
        found.append(learn(state, batch, ops.random.key(2)).state.params["network"])
    for one, other in zip(*map(jax.tree.leaves, found)):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_shipped_gradient_carries_what_normalisers_are_to_see():
    """`apply` on another machine, which has only the gradient, gives the state that `learn` gives, bit for bit."""
    spec = Spec(box(-np.inf, np.inf, (3,)), gs.Discrete(2))
    agent = A2C(network=SMALL, value_steps=1).build(spec)  # who ships gradients takes one
    state = jax.jit(agent.init)(ops.random.key(0))
    batch = Batch(rollout_of(np.random.default_rng(0), spec, scale=7.0), np.ones(4, np.float32), ())
    learned = jax.jit(agent.learn)(state, batch, ops.random.key(1)).state
    found = jax.jit(agent.gradients)(state.params, state.slow, batch, ops.random.key(1))
    applied = jax.jit(agent.apply)(state, found)
    assert float(applied.params["reward"].count) == 32
    for one, other in zip(jax.tree.leaves(learned), jax.tree.leaves(applied)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- actions


def test_a_gaussian_covers_a_box_in_units_of_its_bounds():
    space = box(np.array([0.0, -2.0], np.float32), np.array([500.0, 2.0], np.float32), (2,))
    distribution, outputs = ops.for_space(space), jnp.zeros((4_000, 4))
    actions = np.asarray(distribution.sample(ops.random.key(0), outputs))
    np.testing.assert_allclose(actions.mean(0) / [250, 2], [1, 0], atol=0.06)
    np.testing.assert_allclose(actions.std(0), [250, 2], rtol=0.05)
    inside = ((actions > space.low) & (actions < space.high)).mean(0)
    assert (inside > 0.6).all(), "not half of them is clipped"
    np.testing.assert_allclose(distribution.mode(outputs[:1]), [[250, 0]])


def test_its_density_integrates_to_one_and_its_entropy_is_that_of_the_action():
    distribution = ops.for_space(box(0, 500, (1,)))
    outputs = jnp.asarray([[0.3, -0.5]])
    grid = jnp.linspace(-3_000, 3_500, 40_001).reshape(-1, 1)
    logp = np.asarray(distribution.logp(jnp.broadcast_to(outputs, (len(grid), 2)), grid), np.float64)
    step = float(grid[1, 0] - grid[0, 0])
    assert np.exp(logp).sum() * step == pytest.approx(1.0, abs=1e-3)
    entropy = -(np.exp(logp) * logp).sum() * step
    assert float(distribution.entropy(outputs)[0]) == pytest.approx(entropy, abs=1e-2)
    action, told = distribution.sample_and_logp(ops.random.key(1), outputs)
    assert float(told[0]) == pytest.approx(float(distribution.logp(outputs, action)[0]), abs=1e-3)


@pytest.mark.parametrize("space", [box(-np.inf, np.inf, (1,)), gs.Box(-3e38, 3e38, (1,), np.float32)])
def test_a_box_without_a_range_has_a_plain_gaussian(space: gymnasium.Space):
    actions = np.asarray(ops.for_space(space).sample(ops.random.key(0), jnp.zeros((4_000, 2))))
    assert actions.std() == pytest.approx(1.0, rel=0.05)


# ------------------------------------------------------------------------------------------------------------- returns


def test_a_wide_support_keeps_the_mean_of_returns_of_any_size():
    atoms = ops.wide_support(51)
    assert float(atoms[25]) == 0 and float(atoms[0]) == -float(atoms[-1]) == pytest.approx(-3_000, rel=1e-3)
    for size in (0.1, 1.0, 80.0, 900.0):
        returns = size * jnp.asarray([[-1.0, 0.2, 1.0]])
        p = jnp.asarray([[0.2, 0.5, 0.3]])
        projected = ops.categorical_projection(returns, p, atoms)
        assert float(projected.sum()) == pytest.approx(1.0, abs=1e-5)
        assert float((projected * atoms[None]).sum()) == pytest.approx(float((p * returns).sum()), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_new_network_on_a_wide_support_takes_every_return_to_be_about_zero(dueling):
    config = DQN(num_atoms=51)
    spec = Spec(box(-1, 1, (3,)), gs.Discrete(4))
    network = q_network(spec, SMALL, atoms=support_of(config), near_zero=True, dueling=dueling)
    values, _ = network.step(network.init(ops.random.key(0)), np.ones((2, 3), np.float32), (), None)
    atoms, p = support_of(config), jax.nn.softmax(values.logits)
    assert np.abs(np.asarray(values.q)).max() < 0.5
    spread = np.sqrt(np.asarray((p * atoms.reshape(1, 1, -1) ** 2).sum(-1)))
    assert spread.max() < 10, "one as likely as another would have a deviation of hundreds"


def test_minibatches_nobody_counted_have_64_rows_and_there_are_at_most_32_that_share_the_pieces_evenly():
    assert minibatches_for(None, pieces=2048, rows=2048) == 32
    assert minibatches_for(None, pieces=131_072, rows=131_072) == 32, "of more rows, where the batch is large"
    assert minibatches_for(None, pieces=500, rows=500) == 5, "7 of 64 rows would not divide 500"
    assert minibatches_for(None, pieces=8, rows=2048) == 8, "sequences stay whole"
    assert minibatches_for(None, pieces=4, rows=4) == 1
    assert minibatches_for(3, pieces=2048, rows=2048) == 3, "as asked: whether it divides is checked elsewhere"
