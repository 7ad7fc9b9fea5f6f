"""R2D2: targets by a loop over the rows, no gradient through the burn-in, and memory that is reset inside a sequence."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import ops, spaces
from rookery.algorithms.r2d2 import R2D2, first_priorities, loss
from rookery.networks import NetworkConfig
from rookery.networks.q_network import q_network
from rookery.types import Batch, Rollout, Spec

SPEC = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(4))
BURN, L, B, GAMMA = 3, 7, 5, 0.9
CONFIG = R2D2(
    rollout_length=5, burn_in=BURN, sequence_length=L, n_step=3, network=NetworkConfig(hidden=(6,), core="lstm", core_size=4)
)
NETWORK = q_network(spaces.with_previous(SPEC), CONFIG.network, dueling=True)


def random_network(seed):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(NETWORK.init, ops.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), jnp.float32), shapes)


def sequence(rng, T=BURN + L):
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    observation = {
        "observation": draw(T + 1, B, 3), "previous_action": rng.integers(0, 4, (T + 1, B)).astype(np.int32),
        "previous_reward": draw(T + 1, B),
    }  # fmt: skip
    valid, discount = np.ones((T, B), np.float32), np.full((T, B), GAMMA, np.float32)
    valid[5, 0] = valid[1, 1] = valid[8, 2] = 0.0
    discount[4, 0] = 0.0  # terminated; the others were cut
    rollout = Rollout(
        observation, rng.integers(0, 4, (T, B)).astype(np.int32), 3 * draw(T, B), discount, valid, {}, (draw(B, 4), draw(B, 4)),
        np.zeros((T, B), np.int32), (), (),
    )  # fmt: skip
    return Batch(rollout, rng.random(B).astype(np.float32), ())


def values(params, rollout, b):
    """[T + 1, A], one row after the other, as an actor would."""
    memory = tuple(x[b : b + 1] for x in rollout.memory)
    out = []
    for t in range(len(rollout.reward) + 1):
        if t > 0 and rollout.valid[t - 1, b] == 0:
            memory = NETWORK.memory(1)
        row = {name: x[t, b : b + 1] for name, x in rollout.observation.items()}
        found, memory = NETWORK.step(params, row, memory, None)
        out.append(np.asarray(found.q[0], np.float64))
    return np.stack(out)


h = lambda x: np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x
inverse = lambda x: np.sign(x) * (((np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


def test_errors_and_priorities_are_those_of_a_loop_over_the_rows(rng):
    newest, slow, batch = random_network(0), random_network(1), sequence(rng)
    rollout = batch.rollout
    value, (_, priorities) = loss(newest, slow, batch, network=NETWORK, config=CONFIG)
    total = count = 0.0
    for b in range(B):
        q, q_slow = values(newest, rollout, b), values(slow, rollout, b)
        errors = []
        for t in range(BURN, BURN + L):
            if not rollout.valid[t, b]:
                continue
            gain, product, at = 0.0, 1.0, t
            while at < min(t + CONFIG.n_step, BURN + L) and rollout.valid[at, b]:
                gain, product, at = gain + product * rollout.reward[at, b], product * rollout.discount[at, b], at + 1
            target = h(gain + product * inverse(q_slow[at, q[at].argmax()]))
            errors.append(target - q[t, rollout.action[t, b]])
        expected = 0.9 * np.abs(errors).max() + 0.1 * np.abs(errors).mean()
        np.testing.assert_allclose(priorities[b], expected, rtol=1e-3)
        total += batch.weight[b] * 0.5 * np.square(errors).sum()
        count += len(errors)
    np.testing.assert_allclose(value, L * total / count, rtol=1e-3)  # of a sequence whose rows all count


def test_no_gradient_flows_through_the_burn_in_or_into_the_targets(rng):
    newest, slow, batch = random_network(0), random_network(1), sequence(rng)

    def through(observation, memory, slow):
        rollout = batch.rollout._replace(observation=batch.rollout.observation | {"observation": observation}, memory=memory)
        return loss(newest, slow, batch._replace(rollout=rollout), network=NETWORK, config=CONFIG)[0]

    by_observation, by_memory, by_slow = jax.grad(through, (0, 1, 2))(
        batch.rollout.observation["observation"], batch.rollout.memory, slow
    )
    assert not np.asarray(by_observation[:BURN]).any() and np.asarray(by_observation[BURN:-1]).any()
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves((by_memory, by_slow)))


def test_the_burn_in_matters_and_a_reset_in_it_forgets_the_stored_memory(rng):
    newest, slow, batch = random_network(0), random_network(1), sequence(rng)
    other = batch.rollout._replace(memory=tuple(2.0 * x for x in batch.rollout.memory))
    one, two = (
        loss(newest, slow, batch._replace(rollout=r), network=NETWORK, config=CONFIG)[1][1] for r in (batch.rollout, other)
    )
    changed = np.abs(one - two) > 1e-6
    assert changed[[0, 2, 3, 4]].all() and not changed[1]  # column 1 starts an episode within the burn-in


def test_every_parameter_is_learned_and_the_target_is_copied_in_time(rng):
    agent = dataclasses.replace(CONFIG, target_period=2, max_gradient_norm=1e9, learning_rate=0.01).build(SPEC)
    state = jax.jit(agent.init)(ops.random.key(0))
    begin, learn, copied = state, jax.jit(agent.learn), []
    for update in range(3):
        state = learn(state, sequence(rng), ops.random.key(update)).state
        same = jax.tree.map(lambda a, b: bool((a == b).all()), state.slow, state.params["network"])
        copied.append(all(jax.tree.leaves(same)))
    assert copied == [False, True, False]
    before, now = begin.params["network"], state.params["network"]
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), before, now)))


def test_first_priorities_are_errors_within_the_rollout(rng):
    T = 5
    draw = lambda: rng.normal(size=(T, 2)).astype(np.float32)
    valid, discount = np.ones((T, 2)), np.ones((T, 2))
    discount[1, 0], valid[2, 0] = 0.0, 0.0
    rollout = Rollout((), (), draw(), discount, valid, {"q": draw(), "value": draw()}, (), (), (), ())
    got = first_priorities(rollout, dataclasses.replace(CONFIG, discount=GAMMA))
    reward, value, q = rollout.reward, rollout.extras["value"], rollout.extras["q"]
    np.testing.assert_allclose(got[1, 0], abs(h(reward[1, 0]) - q[1, 0]), rtol=1e-4)
    target = h(reward[0, 1] + GAMMA * reward[1, 1] + GAMMA**2 * reward[2, 1] + GAMMA**3 * inverse(value[3, 1]))
    np.testing.assert_allclose(got[0, 1], abs(target - q[0, 1]), rtol=1e-3)
    target = h(reward[3, 1] + GAMMA * inverse(value[4, 1]))  # what follows is not known: a shorter window
    np.testing.assert_allclose(got[3, 1], abs(target - q[3, 1]), rtol=1e-3)
    assert (got[-1] == 0).all() and got[2, 0] == 0


def test_without_a_memory_it_is_refused():
    with pytest.raises(ValueError, match="core lstm"):
        R2D2(network=NetworkConfig()).build(SPEC)
