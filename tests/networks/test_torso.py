"""A network of the user's own in each form that it may have; what is said of one that does not fit, before anything starts."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

import rookery
from rookery.algorithms.es import ES
from rookery.networks import NetworkConfig, Output
from rookery.networks.network import actor_critic
from rookery.networks.q_network import q_network
from rookery.run.config import ConfigError
from rookery.types import Spec

VECTOR = Spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), "vector")
SHOWN = {"board": spaces.Box(0, 255, (8, 8, 3), np.uint8), "goal": spaces.Box(-1, 1, (2,), np.float32)}
BOARD = Spec(spaces.Dict(SHOWN), spaces.Discrete(2))


class Dense(nn.Module):
    width: int = 5

    @nn.compact
    def __call__(self, observation):
        return nn.tanh(nn.Dense(self.width)(observation))


class NnxDense(nnx.Module):
    def __init__(self, size, *, rngs):
        self.layers = nnx.List([nnx.Linear(size, 5, rngs=rngs), nnx.Linear(5, 5, rngs=rngs)])

    def __call__(self, observation):
        for layer in self.layers:
            observation = jnp.tanh(layer(observation))
        return observation


class Returns(nn.Module):
    """Gives whatever `make` makes of the observation; has a parameter."""

    make: object

    @nn.compact
    def __call__(self, observation):
        return self.make(self.param("scale", nn.initializers.ones, ()), observation)


FORMS = {
    "linen": Dense,
    "functions of a module": lambda: (Dense().init, Dense().apply),
    "nnx": lambda: NnxDense(3, rngs=nnx.Rngs(0)),
    "nnx, made by the seed": lambda: functools.partial(NnxDense, 3),
}


def gradient_of(network, *args):
    params = jax.jit(network.init)(jax.random.key(0))
    observation = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)

    def total(params):
        return sum(jnp.sum(jnp.square(leaf)) for leaf in network.step(params, observation, (), *args)[0])

    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    return jax.tree.leaves(jax.jit(jax.grad(total))(params)["encoder"])


@pytest.mark.parametrize("form", FORMS)
def test_a_torso_of_each_form_is_a_part_of_the_network_and_gets_gradients(form):
    leaves = gradient_of(actor_critic(VECTOR, 2, NetworkConfig(), torso=FORMS[form]()))
    assert leaves and all(np.any(leaf != 0) for leaf in leaves)


def test_action_values_stand_on_a_flax_module_as_well():
    leaves = gradient_of(q_network(VECTOR, NetworkConfig(), torso=Dense()), None)
    assert leaves and all(np.any(leaf != 0) for leaf in leaves)


def test_the_weights_of_an_nnx_module_stay_those_that_it_has_and_a_factory_s_come_from_the_seed():
    module = NnxDense(3, rngs=nnx.Rngs(7))
    first = [actor_critic(VECTOR, 2, NetworkConfig(), torso=module).init(jax.random.key(k))["encoder"] for k in (0, 1)]
    jax.tree.map(np.testing.assert_array_equal, *first)
    np.testing.assert_array_equal(jax.tree.leaves(first[0])[1], jax.tree.leaves(nnx.state(module))[1])
    drawn = [
        actor_critic(VECTOR, 2, NetworkConfig(), torso=lambda rngs: NnxDense(3, rngs=rngs)).init(jax.random.key(k))["encoder"]
        for k in (0, 0, 1)
    ]
    jax.tree.map(np.testing.assert_array_equal, *drawn[:2])
    assert np.any(jax.tree.leaves(drawn[0])[1] != jax.tree.leaves(drawn[2])[1])


WRONG = {
    "an image": (
        lambda scale, o: scale * o["board"],
        r"torso Returns must give features \[B, F\]; it gives features of shape \(3, 8, 8, 3\).*expected \(3, "
        r"F\)",
    ),
    "no batch": (
        lambda scale, o: scale * o["goal"].reshape(1, -1),
        r"features of shape \(1, 6\) for a batch of 3, expected \(3, F\)",
    ),
    "one number": (lambda scale, o: scale * o["goal"][:, 0], r"features of shape \(3,\)"),
    "whole numbers": (lambda scale, o: o["goal"].astype(int), "features of int32: give floats"),
    "a dict": (lambda scale, o: o, "features that are a dict"),
    "a policy of another size": (
        lambda scale, o: Output(jnp.ones((len(o["goal"]), 4)), scale * o["goal"][:, 0]),
        r"a policy of shape \(3, 4\) for a batch of 3, expected \(3, 2\)",
    ),
    "a value with an axis more": (
        lambda scale, o: Output(o["goal"], scale * o["goal"][:, :1]),
        r"a value of shape \(3, 1\) for a batch of 3, expected \(3,\): .*value\[:, 0\]",
    ),
    "a leaf that is not there": (
        lambda scale, o: o["image"],
        r"torso Returns cannot read observation\['board'\] uint8 \(1, 8, 8, 3\), observation\['goal'\] "
        r"float32 \(1, 2\): KeyError: 'image'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_torso_that_gives_another_shape_is_refused_by_name_with_both_shapes(case):
    make, said = WRONG[case]
    with pytest.raises(ValueError, match=said):
        actor_critic(BOARD, 2, NetworkConfig(), torso=Returns(make)).init(jax.random.key(0))


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.BatchNorm(use_running_average=True)(observation)


NO_TORSO = {
    "an nnx class that needs more": (NnxDense, "torso NnxDense cannot be made of rngs alone: .*'size'"),
    "a class": (Dense, r"torso=Dense is a class: give a module of it, torso=Dense\(\)"),
    "one function": (lambda observation: observation, "neither a flax module nor a pair"),
    "running statistics": (Normalised(), "torso Normalised keeps batch_stats beside its parameters.*LayerNorm"),
    "nnx with a state": (lambda rngs: nnx.BatchNorm(3, rngs=rngs), "keeps BatchStat.* beside its parameters"),
    "another size": (NnxDense(4, rngs=nnx.Rngs(0)), r"torso NnxDense cannot read observation float32 \(3, 3\): TypeError"),
}


@pytest.mark.parametrize("case", NO_TORSO)
def test_what_is_no_torso_is_refused(case):
    torso, said = NO_TORSO[case]
    with pytest.raises(ValueError, match=said):
        actor_critic(VECTOR, 2, NetworkConfig(), torso=torso).init(jax.random.key(0))


def test_action_values_want_features():
    with pytest.raises(ValueError, match="torso Returns gives a policy and a value, which is for actor-critics"):
        torso = Returns(lambda scale, o: Output(o[:, :2], scale * o[:, 0]))
        q_network(VECTOR, NetworkConfig(), torso=torso).init(jax.random.key(0))


class Heads(nn.Module):
    @nn.compact
    def __call__(self, observation):
        x = nn.Dense(4)(observation)
        return Output(nn.Dense(2)(x), nn.Dense(1)(x)[:, 0])


def test_evolution_perturbs_a_network_with_heads_of_its_own_as_a_whole():
    agent = ES(normalise_observations=False).build(VECTOR, torso=Heads())
    params = agent.init(jax.random.key(0)).params
    assert set(params["network"]) == {"encoder"}
    decision = jax.jit(agent.act)(params, np.ones((6, 3), np.float32), agent.memory(6), jax.random.key(1), np.zeros(6))
    assert decision.action.shape == (6,)


SYSTEMS = {
    "a2c": {"num_envs": 4, "rollout_length": 4},
    "impala": {"num_envs": 4, "rollout_length": 4, "collectors": 1},
    "anakin-ppo": {
        "num_envs": 4, "rollout_length": 4, "env": "jax:catch", "updates_per_call": 1, "epochs": 1, "minibatches": 1,
    },
    "es": {"population": 4, "num_envs": 4, "max_episode_steps": 9},
}  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_flax_module_is_trained_as_it_is_on_every_kind_of_topology(system, tmp_path):
    options = {"env": "catch", "total_updates": 2, "eval_episodes": 0, "runs": str(tmp_path)} | SYSTEMS[system]
    torso = Returns(lambda scale, o: scale * o.reshape(len(o), -1).astype(jnp.float32))
    result = rookery.train(system, torso=torso, **options)
    assert result.metrics["updates"] >= 2
    scale = result.policy.params["network"]["encoder"]["params"]["scale"]
    assert np.isfinite(scale) and scale != 1.0, "it is trained"
    with pytest.raises(ConfigError, match=r"torso Returns must give features \[B, F\]"):
        rookery.train(system, torso=Returns(lambda scale, o: scale * o.astype(jnp.float32)), **options | {"run": "wrong"})
    assert not (tmp_path / "wrong").exists()
