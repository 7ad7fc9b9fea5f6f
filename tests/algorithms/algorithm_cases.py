"""Small agents and random rollouts that the tests of the algorithms share."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery import ops
from rookery.algorithms import actor_critic, hyper, optimizers
from rookery.algorithms.a2c import A2C
from rookery.algorithms.appo import APPO
from rookery.algorithms.pg import PG
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.types import Batch, Rollout, Spec

T, B, GAMMA = 9, 6, 0.5
SPEC = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(4))
NETWORK = NetworkConfig(hidden=(8,))
COSTS = dict(
    network=NETWORK, entropy_cost=0.02, max_gradient_norm=1e9, learning_rate=0.01, anneal=False, normalise_rewards=False,
)

ALGORITHMS = {
    "ppo": PPO(epochs=1, minibatches=1, value_cost=0.7, **COSTS),
    "a2c": A2C(gae_lambda=0.9, value_cost=0.7, value_steps=1, rmsprop_epsilon=1e-5, **COSTS),
    "pg": PG(**COSTS),
    "vtrace": VTrace(trace_lambda=0.9, value_cost=0.7, value_steps=1, rmsprop_epsilon=0.01, **COSTS),
    "appo": APPO(value_cost=0.7, clip=0.2, value_clip=0.3, epochs=1, minibatches=1, **COSTS),
    "appo-target": APPO(variant="target-policy", value_cost=0.7, clip=0.2, epochs=1, minibatches=1, **COSTS),
}
FIRST_ORDER = [name for name in ALGORITHMS if name != "ppo"]


def adapted(name, **changes):
    return dataclasses.replace(ALGORITHMS[name], **changes)


def model_of(spec=SPEC, network=NETWORK, **options):
    """One that remembers of its decisions all that there is."""
    return actor_critic.build(spec, network, remembers=("behaviour_logp", "value"), **options)


def random_params(agent_or_model, seed=0, scale=0.5):
    """Normal numbers in place of the initial weights: a policy that is far from uniform, values that are far from 0."""
    shapes = jax.eval_shape(agent_or_model.init, ops.random.key(0))
    params = getattr(shapes, "params", shapes)
    rng = np.random.default_rng(seed)
    network = jax.tree.map(lambda x: jnp.asarray(scale * rng.normal(size=x.shape), jnp.float32), params["network"])
    params = zeros_like(params) | {"network": network}
    if "hyper" in params:  # of an agent, as they were built
        params["hyper"] = jax.jit(lambda key: agent_or_model.init(key).params["hyper"])(ops.random.key(0))
    return params


def random_state(agent, seed=0, *, params=None, slow=None):
    """A state before the first update. Optimizers start from zeros: nothing needs to be compiled for it."""
    shapes = jax.eval_shape(agent.init, ops.random.key(0))
    params = random_params(agent, seed) if params is None else params
    if slow is None:
        slow = jax.tree.map(lambda x: 0.9 * x, params["network"]) if jax.tree.leaves(shapes.slow) else ()
    return zeros_like(shapes)._replace(params=params, slow=slow)


def zeros_like(shapes):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def random_rollout(rng, *, T=T, B=B, gamma=GAMMA, memory=(), reward_scale=1.0):
    """Rows as a collector writes them: after the last row of an episode comes one with valid = 0 (next-step autoreset).

    Every way in which an episode can end is there; columns 0 and 1 are a fixed truncation and a fixed termination.
    """
    valid, discount = np.ones((T, B), np.float32), np.full((T, B), gamma, np.float32)
    valid[4, :2] = 0.0  # row 3 is the last of its episode
    discount[3, 1] = 0.0
    for b in range(2, B):
        ended = b == 2  # a window may begin with a reset row
        for t in range(T):
            valid[t, b] = 0.0 if ended else 1.0
            ended = not ended and rng.random() < 0.3
            if ended and rng.random() < 0.5:
                discount[t, b] = 0.0
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return Rollout(
        observation=normal(T + 1, B, 3),
        action=rng.integers(0, 4, (T, B)).astype(np.int32),
        reward=reward_scale * normal(T, B) * valid,
        discount=discount,
        valid=valid,
        extras={"behaviour_logp": -1.4 + 0.5 * normal(T, B), "value": normal(T, B)},
        memory=memory,
        version=np.zeros((T, B), np.int32),
        stream=(),
        step=(),
    )


def on_policy(model, params, rollout):
    """The same rollout as if `params` had acted: ratios are 1, and the stored values are the current ones."""
    out = jax.jit(model.evaluate)(params, rollout)
    return rollout._replace(extras={"behaviour_logp": np.asarray(out.logp), "value": np.asarray(out.value)})


def batch_of(rollout):
    return Batch(rollout, np.ones(rollout.valid.shape[1], np.float32), ())


def with_plain_steps(monkeypatch):
    """Agents built from now on step by minus the gradient, so that what learn() changes is the gradient."""
    for name in ("adam", "rmsprop"):
        monkeypatch.setattr(optimizers, name, lambda **options: optax.with_extra_args_support(optax.sgd(1.0)))


def gradient_of(algorithm, params, rollout, *, slow=(), spec=SPEC):
    """What learn() moves the network by, as a tree; the agent was built under `with_plain_steps`."""
    agent = algorithm.build(spec)
    state = random_state(agent, params=params | {"hyper": hyper.leaves(algorithm)}, slow=slow)
    learned = jax.jit(agent.learn)(state, batch_of(rollout), ops.random.key(1))
    difference = jax.tree.map(lambda old, new: old - new, params["network"], learned.state.params["network"])
    return difference, learned.report


def assert_trees_close(got, expected, **tolerance):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, err_msg=jax.tree_util.keystr(path), **tolerance)
