"""The network of action values: streams, distributions, noise and masks do what they say."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import ops
from rookery.networks import NetworkConfig
from rookery.networks.q_network import Noise, q_network
from rookery.types import Spec

SPEC = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(4))
CONFIG = NetworkConfig(hidden=(16,))
B = 6


def built(key=0, **options):
    network = q_network(SPEC, CONFIG, **options)
    params = network.init(ops.random.key(key))
    rng = np.random.default_rng(key)
    return network, params, jnp.asarray(rng.normal(size=(B, 3)), jnp.float32)


def scaled(params, factor):
    return jax.tree.map(lambda x: x * factor, params)


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"atoms": ops.support(-1, 1, 5)}, {"noisy": True}])
def test_a_new_network_values_every_action_about_zero_and_unrolls_as_it_steps(options):
    network, params, x = built(**options)
    values, _ = network.step(params, x, (), None)
    atoms = 5 if "atoms" in options else 1
    assert values.q.shape == (B, 4) and values.logits.shape == (B, 4, atoms)
    assert abs(np.asarray(values.q)).max() < 0.1
    rows = jnp.stack([x, 2 * x])
    unrolled, _ = network.unroll(params, rows, (), jnp.zeros((2, B)), None)
    np.testing.assert_allclose(unrolled.q[0], values.q, atol=1e-6)
    assert unrolled.logits.shape == (2, B, 4, atoms)


def test_dueling_is_the_state_plus_advantages_whose_mean_is_nothing():
    network, params, x = built(dueling=True)
    moved = jax.tree.map(jnp.copy, params)
    moved["heads"]["state"][-1]["bias"] = jnp.array([3.0])
    before, after = (network.step(p, x, (), None)[0].q for p in (params, moved))
    np.testing.assert_allclose(after - before, 3.0, rtol=1e-5)
    moved = jax.tree.map(jnp.copy, params)
    moved["heads"]["action"][-1]["bias"] = jnp.array([1.0, 2.0, 3.0, 6.0])
    after = network.step(moved, x, (), None)[0].q
    np.testing.assert_allclose(after - before, np.tile([-2.0, -1.0, 0.0, 3.0], (B, 1)), rtol=1e-4, atol=1e-5)


def test_the_value_of_a_distribution_is_its_mean():
    atoms = ops.support(-2, 2, 5)
    network, params, x = built(atoms=atoms)
    values, _ = network.step(scaled(params, 20.0), x, (), None)
    expected = (jax.nn.softmax(values.logits) * atoms.reshape(1, 1, -1)).sum(-1)
    np.testing.assert_allclose(values.q, expected, rtol=1e-5)
    assert np.ptp(np.asarray(values.q)) > 0.1


def test_noise_differs_by_row_and_key_and_is_absent_where_its_strength_is_zero():
    network, params, x = built(noisy=True)
    same = jnp.tile(x[:1], (B, 1))
    q = lambda key, strength: network.step(params, same, (), Noise(ops.random.key(key), jnp.asarray(strength)))[0].q
    mean = network.step(params, same, (), None)[0].q
    drawn = np.asarray(q(0, [1.0] * (B - 1) + [0.0]))
    np.testing.assert_allclose(drawn[-1], mean[-1], rtol=1e-6)
    assert len(np.unique(drawn[:-1], axis=0)) == B - 1
    assert abs(np.asarray(q(1, [1.0] * B)) - drawn)[:-1].min() > 0
    many = jnp.tile(x[:1], (4000, 1))
    draws = network.step(params, many, (), Noise(ops.random.key(3), jnp.ones(4000)))[0].q
    np.testing.assert_allclose(draws.mean(0), mean[0], atol=0.05)
    layer = params["heads"]["action"][0]
    np.testing.assert_allclose(layer["noise_kernel"], 0.5 / 4.0)


@pytest.mark.parametrize("dueling", [False, True])
def test_rows_that_share_noise_are_valued_as_one_row_alone_with_that_noise(dueling):
    network, params, x = built(noisy=True, dueling=dueling)
    noise = Noise(ops.random.key(5), jnp.asarray(0.7))
    together, _ = network.unroll(params, x[None], (), jnp.zeros((1, B)), noise)
    for row in range(B):
        alone, _ = network.step(params, x[row : row + 1], (), noise._replace(strength=jnp.asarray([0.7])))
        np.testing.assert_allclose(together.q[0, row], alone.q[0], rtol=1e-5)
    assert np.abs(np.asarray(together.q[0] - network.step(params, x, (), None)[0].q)).min() > 1e-4


def test_shared_noise_is_added_to_the_weights_and_has_the_factorised_form_of_the_paper():
    network, params, x = built(noisy=True)
    params, x, key = jax.tree.map(np.asarray, params), np.asarray(x), ops.random.key(5)
    encoder, layer = params["encoder"]["dense_0"], params["heads"]["action"][-1]
    features = np.tanh(x @ encoder["kernel"] + encoder["bias"])
    p, q = layer["kernel"].shape
    draw = np.asarray(jax.random.normal(key, (1, p + q)))[0]
    f = np.sign(draw) * np.sqrt(np.abs(draw))
    kernel = layer["kernel"] + layer["noise_kernel"] * np.outer(f[:p], f[p:])
    bias = layer["bias"] + layer["noise_bias"] * f[p:]
    got, _ = network.unroll(params, x[None], (), jnp.zeros((1, B)), Noise(key, jnp.ones(())))
    np.testing.assert_allclose(got.q[0], features @ kernel + bias, rtol=1e-5, atol=1e-6)


def test_illegal_actions_are_never_the_best():
    observation = gymnasium.spaces.Dict({"x": SPEC.observation, "action_mask": gymnasium.spaces.MultiBinary(4)})
    network = q_network(Spec(observation, SPEC.action), CONFIG, dueling=True)
    params = network.init(ops.random.key(0))
    mask = np.eye(4, dtype=np.int8)[[0, 1, 2, 3, 0, 1]]
    values, _ = network.step(params, {"x": jnp.zeros((B, 3)), "action_mask": mask}, (), None)
    np.testing.assert_array_equal(values.q.argmax(-1), mask.argmax(-1))


def test_actions_that_cannot_be_counted_are_refused():
    spec = Spec(SPEC.observation, gymnasium.spaces.Box(-1, 1, (2,), np.float32), "Pendulum-v1")
    with pytest.raises(ValueError, match=r"Pendulum-v1 takes Box.*use sac, td3, ppo"):
        q_network(spec, CONFIG)


@pytest.mark.parametrize("space, said", [
    (gymnasium.spaces.Box(0, 9, (2,), np.int32), "declare them as MultiDiscrete, and use ppo"),
    (gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32), "float32.: use ppo, impala"),
    (gymnasium.spaces.MultiDiscrete([2, 3]), "use ppo, impala"),
])  # fmt: skip
def test_actions_that_cannot_be_counted_are_refused_with_what_takes_them(space, said):
    with pytest.raises(ValueError, match=said):
        q_network(SPEC._replace(action=space), CONFIG)
