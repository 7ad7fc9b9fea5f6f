"""The value of an action in a state: any spaces, twins that differ, gradients that reach the action."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.networks import NetworkConfig
from rookery.networks.action_critic import action_critic
from rookery.types import Spec

spaces = gymnasium.spaces
VECTOR, MOTOR = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)
CONFIG = NetworkConfig(hidden=(8, 8), activation="relu")


def sampled(space, B):
    parts = [space.sample() for _ in range(B)]
    return jax.tree.map(lambda *rows: np.stack(rows), *parts)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(VECTOR, MOTOR),
        Spec(VECTOR, spaces.Discrete(3)),
        Spec(spaces.Box(0, 255, (12, 12, 3), np.uint8), MOTOR),
        Spec(spaces.Dict(body=VECTOR, goal=spaces.Discrete(4)), spaces.MultiDiscrete([2, 3])),
    ],
    ids=["vector", "choices", "image", "dict"],
)
def test_any_spaces_give_a_value_for_each_member_and_row(spec):
    critic = action_critic(spec, CONFIG, ensemble=3)
    params = jax.jit(critic.init)(jax.random.key(0))
    values = critic.apply(params, sampled(spec.observation, 5), sampled(spec.action, 5))
    assert values.shape == (3, 5) and np.isfinite(values).all()
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(params))
    assert not np.allclose(values[0], values[1]) and not np.allclose(values[1], values[2]), "members have weights of their own"


def test_it_is_an_mlp_of_observation_and_action_side_by_side():
    critic = action_critic(Spec(VECTOR, MOTOR), CONFIG, ensemble=2)
    params = critic.init(jax.random.key(1))
    observation, action = sampled(VECTOR, 4), sampled(MOTOR, 4)
    for member in range(2):
        one = jax.tree.map(lambda leaf, member=member: np.asarray(leaf[member]), params)
        x = np.concatenate([action, observation], -1)
        for name in ("dense_0", "dense_1"):
            x = np.maximum(0, x @ one["encoder"][name]["kernel"] + one["encoder"][name]["bias"])
        expected = (x @ one["head"]["kernel"] + one["head"]["bias"])[:, 0]
        np.testing.assert_allclose(critic.apply(params, observation, action)[member], expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_with_respect_to_the_action_is_that_of_finite_differences():
    critic = action_critic(Spec(VECTOR, MOTOR), NetworkConfig(hidden=(8,), activation="tanh"))
    params, observation, action = critic.init(jax.random.key(2)), sampled(VECTOR, 1), sampled(MOTOR, 1)
    value = lambda a: critic.apply(params, observation, a)[0, 0]
    found = jax.grad(value)(jnp.asarray(action))[0]
    for i in range(2):
        step = np.zeros_like(action)
        step[0, i] = 1e-2
        assert float(found[i]) == pytest.approx(float(value(action + step) - value(action - step)) / 2e-2, abs=2e-3)


def test_a_recurrent_core_is_refused():
    with pytest.raises(ValueError, match="no recurrent state"):
        action_critic(Spec(VECTOR, MOTOR), NetworkConfig(core="lstm"))
