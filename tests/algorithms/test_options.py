"""Options that change what an update sees: reward clips, normalisers, previous action and reward, the user's own torso."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_cases import (
    NETWORK,
    SPEC,
    adapted,
    assert_trees_close,
    batch_of,
    model_of,
    random_params,
    random_rollout,
    random_state,
)

from rookery import envs, ops
from rookery.algorithms.a2c import A2C
from rookery.algorithms.minibatches import chunks_for
from rookery.algorithms.normalisers import clip_reward
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.types import Spec
from rookery.workers.acting.collector import Collector


def learn(algorithm, rollout, state=None, **options):
    agent = algorithm.build(SPEC, **options)
    state = random_state(agent) if state is None else state
    return jax.jit(agent.learn)(state, batch_of(rollout), ops.random.key(0))


# ------------------------------------------------------------------------------------------------------------- rewards


def test_rewards_are_clipped_to_the_unit_interval_or_squeezed_softly():
    reward = np.array([[-100.0, -2.0, -0.5, 0.0, 0.5, 2.0, 100.0]], np.float32)
    np.testing.assert_array_equal(clip_reward(reward, "none"), reward)
    np.testing.assert_allclose(clip_reward(reward, "unit"), np.clip(reward, -1, 1))
    soft = np.where(reward >= 0, 5 * np.tanh(reward / 5), 1.5 * np.tanh(reward / 5))
    np.testing.assert_allclose(clip_reward(reward, "soft-asymmetric"), soft, rtol=1e-5)


@pytest.mark.parametrize("name", ["vtrace", "appo"])
def test_a_reward_clip_is_applied_by_the_loss(name, rng):
    rollout = random_rollout(rng, reward_scale=3.0)
    clipped = rollout._replace(reward=np.clip(rollout.reward, -1, 1))
    got, plain = learn(adapted(name, reward_clip="unit"), rollout), learn(adapted(name), rollout)
    expected = learn(adapted(name), clipped)
    assert_trees_close(got.state.params, expected.state.params, rtol=1e-5, atol=1e-7)
    assert abs(float(plain.report["loss/value"] - got.report["loss/value"])) > 0.1


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return_seen_before_this_batch(name, rng):
    algorithm = adapted(name, normalise_rewards=True)
    agent = algorithm.build(SPEC)
    assert agent.needs.return_discount == algorithm.discount
    state, step = random_state(agent), jax.jit(agent.learn)
    rollouts, seen = [], []
    for scale in (1.0, 20.0):
        rollout = random_rollout(rng)
        returns = scale * rng.normal(size=rollout.valid.shape).astype(np.float32) + 3.0
        rollouts.append(rollout._replace(extras=rollout.extras | {"discounted_return": returns}))
        seen.append(returns[rollout.valid == 1])
    first = step(state, batch_of(rollouts[0]), ops.random.key(0))
    moments = first.state.params["reward"]
    np.testing.assert_allclose([moments.count, moments.mean], [len(seen[0]), seen[0].mean()], rtol=1e-5)
    second = step(first.state, batch_of(rollouts[1]), ops.random.key(0))
    both = np.concatenate(seen)
    np.testing.assert_allclose(ops.moments.std(second.state.params["reward"]), both.std(), rtol=1e-4)
    # what the updates saw: the first rewards as they are, the second divided by the deviation of the first batch
    plain = adapted(name).build(SPEC)
    bare, step = random_state(plain), jax.jit(plain.learn)
    bare = step(bare, batch_of(rollouts[0]), ops.random.key(0)).state
    assert_trees_close(first.state.params["network"], bare.params["network"], rtol=1e-5, atol=1e-6)
    scaled = rollouts[1]._replace(reward=np.clip(rollouts[1].reward / seen[0].std(), -10, 10))
    bare = step(bare, batch_of(scaled), ops.random.key(0)).state
    assert_trees_close(second.state.params["network"], bare.params["network"], rtol=1e-3, atol=1e-4)


def test_collectors_write_the_discounted_return_of_the_running_episode():
    algorithm = A2C(normalise_rewards=True, discount=0.8, rollout_length=9, network=NETWORK)
    agent = algorithm.build(envs.spec_of("point-reach"))
    collector = Collector(agent, lambda: envs.make("point-reach", 3, length=4), seed=1)
    collector.publish(random_params(agent), 0)
    running = np.zeros(3)
    for _ in range(2):
        rollout = collector.collect().rollout
        for t in range(9):
            running = np.where(rollout.valid[t] == 1, 0.8 * running + rollout.reward[t], 0.0)
            np.testing.assert_allclose(rollout.extras["discounted_return"][t], running, rtol=1e-5)
    collector.close()


# -------------------------------------------------------------------------------------------------------- observations


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_observations_are_normalised_by_what_was_seen_before_this_batch(name, rng):
    rollouts = [random_rollout(rng), random_rollout(rng)]
    rollouts[0] = rollouts[0]._replace(observation=3.0 * rollouts[0].observation + 2.0)
    agent, plain = adapted(name, normalise_observations=True).build(SPEC), adapted(name).build(SPEC)
    state, bare = random_state(agent), random_state(plain)
    step, plain_step = jax.jit(agent.learn), jax.jit(plain.learn)
    state = step(state, batch_of(rollouts[0]), ops.random.key(0)).state
    bare = plain_step(bare, batch_of(rollouts[0]._replace(observation=np.clip(rollouts[0].observation, -10, 10))),
                      ops.random.key(0)).state  # fmt: skip
    assert_trees_close(state.params["network"], bare.params["network"], rtol=1e-5, atol=1e-6)
    seen = rollouts[0].observation[:-1].reshape(-1, 3)  # the last row is the next rollout's first
    (moments,) = state.params["observation"]
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(ops.moments.std(moments), seen.std(0), rtol=1e-4)
    normalised = (rollouts[1].observation - seen.mean(0)) / seen.std(0)
    act, observation = jax.jit(model_of(normalise_observations=True).act), rollouts[1].observation[0]
    arguments = (), ops.random.key(1), np.ones(len(observation), np.float32)
    told = act(state.params, observation, *arguments).extras["value"]
    by_hand = jax.jit(model_of().act)(bare.params, normalised[0], *arguments).extras["value"]
    np.testing.assert_allclose(told, by_hand, rtol=1e-3, atol=1e-3, err_msg="acting normalises by what is in params")
    state = step(state, batch_of(rollouts[1]), ops.random.key(0)).state
    bare = plain_step(bare, batch_of(rollouts[1]._replace(observation=normalised.astype(np.float32))), ops.random.key(0)).state
    assert_trees_close(state.params["network"], bare.params["network"], rtol=1e-3, atol=1e-3)


def test_an_agent_with_previous_sees_its_last_action_and_reward_except_at_an_episodes_start():
    spec = envs.spec_of("catch", rows=4, columns=3)
    algorithm = VTrace(previous=True, rollout_length=6, network=NETWORK)
    agent = algorithm.build(spec)
    assert agent.needs.previous
    collector = Collector(agent, lambda: envs.make("catch", 5, rows=4, columns=3), seed=0)
    collector.publish(random_params(agent), 0)
    for _ in range(2):
        rollout = collector.collect().rollout
        seen, going_on = rollout.observation, rollout.valid == 1
        np.testing.assert_array_equal(seen["previous_action"][1:], np.where(going_on, rollout.action, 0))
        np.testing.assert_array_equal(seen["previous_reward"][1:], np.where(going_on, rollout.reward, 0))
        assert (~going_on).any() and (rollout.reward != 0).any()
    collector.close()
    model = model_of(spec, NETWORK, previous=True)
    kernel = jax.eval_shape(model.init, ops.random.key(0))["network"]["policy_encoder"]["dense_0"]["kernel"]
    assert kernel.shape[0] == 4 * 3 + 3 + 1  # board, one-hot action, reward


@pytest.mark.parametrize("how", ["unit", "soft-asymmetric", "scaled"])
def test_the_previous_reward_is_seen_as_the_loss_sees_rewards(how, rng):
    """In acting and in learning, and once: no moments of observations are taken of it."""
    options = {"normalise_rewards": True} if how == "scaled" else {"reward_clip": how}
    told, plain = (model_of(previous=True, **more) for more in (options, {}))
    params = random_params(told)
    if how == "scaled":
        params["reward"] = ops.moments.of(jnp.array([-3.0, 5.0]), 0)
    rollout = random_rollout(rng)
    reward = 7.0 * rng.normal(size=(10, 6)).astype(np.float32)

    def answers(model, reward):
        seen = {"observation": rollout.observation, "previous_action": np.zeros((10, 6), np.int32), "previous_reward": reward}
        decision = jax.jit(model.act)(
            params, jax.tree.map(lambda x: x[0], seen), (), ops.random.key(0), np.ones(6, np.float32)
        )
        return [*decision.extras.values(), *jax.jit(model.evaluate)(params, rollout._replace(observation=seen))]

    by_hand = reward / 4.0 if how == "scaled" else np.asarray(clip_reward(jnp.asarray(reward), how))
    for got, expected, raw in zip(answers(told, reward), answers(plain, by_hand), answers(plain, reward)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert np.abs(np.asarray(got) - np.asarray(raw)).max() > 1e-3
    both = jax.eval_shape(model_of(previous=True, normalise_observations=True).init, ops.random.key(0))
    assert [moments.mean.shape for moments in both["observation"]] == [(3,)]


# ------------------------------------------------------------------------------------------------------------- networks


def test_a_torso_of_the_users_is_read_and_learned(rng):
    def init(key, observation):
        return {"weights": jax.random.normal(key, (observation.shape[-1], 5))}

    def apply(params, observation):
        return jnp.tanh(observation @ params["weights"])

    for name in ("ppo", "vtrace"):
        agent = adapted(name).build(SPEC, torso=(init, apply))
        state = random_state(agent)
        assert state.params["network"]["encoder"]["weights"].shape == (3, 5)
        learned = jax.jit(agent.learn)(state, batch_of(random_rollout(rng)), ops.random.key(0)).state
        moved = learned.params["network"]["encoder"]["weights"] - state.params["network"]["encoder"]["weights"]
        assert (np.abs(np.asarray(moved)).max(axis=1) > 1e-5).all()


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_every_parameter_of_a_recurrent_and_a_gaussian_policy_is_moved(core, rng):
    from gymnasium.spaces import Box

    network = NetworkConfig(hidden=(8,), core=core, core_size=5)
    spec = Spec(SPEC.observation, Box(-1, 1, (2,), np.float32))
    agent = adapted("vtrace", network=network).build(spec)
    rollout = random_rollout(rng, memory=tuple(rng.normal(size=x.shape).astype(np.float32) for x in agent.memory(6)))
    rollout = rollout._replace(action=rng.normal(size=(9, 6, 2)).astype(np.float32))
    state = random_state(agent)
    learned = jax.jit(agent.learn)(state, batch_of(rollout), ops.random.key(0)).state
    names = set()
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(state.params["network"]), jax.tree.leaves(learned.params["network"])
    ):
        names.add(jax.tree_util.keystr(path, simple=True, separator="/"))
        assert np.abs(np.asarray(new - old)).max() > 1e-5, f"{jax.tree_util.keystr(path)} has no gradient"
    assert {"core/recurrent", "heads/log_std"} <= names


def test_images_are_learned_from_in_a_few_chunks_and_vectors_at_once():
    from gymnasium.spaces import Box

    def batch(T, B):
        return batch_of(random_rollout(np.random.default_rng(0), T=max(T, 5), B=B)._replace(valid=np.ones((T, B))))

    image = Spec(Box(0, 255, (84, 84, 4), np.uint8), SPEC.action)
    assert chunks_for(SPEC, batch(20, 32)) == 1
    assert chunks_for(image, batch(20, 32)) == 4  # 8 columns of 21 frames
    assert chunks_for(image, batch(20, 2)) == 1
    assert chunks_for(image, batch(20, 14)) == 2  # what divides the columns
    assert chunks_for(image, batch(128, 64)) == 4  # never more: each is compiled


def test_costs_of_zero_leave_only_the_policys_gradient(rng):
    """So that the weights of the terms are where they are said to be."""
    algorithm = dataclasses.replace(adapted("a2c"), value_cost=0.0, entropy_cost=0.0)
    learned = learn(algorithm, random_rollout(rng))
    before = random_state(algorithm.build(SPEC)).params["network"]
    after = learned.state.params["network"]
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, after)
    assert max(jax.tree.leaves(moved["value_encoder"])) == 0 and max(jax.tree.leaves(moved["policy_encoder"])) > 1e-4
    assert float(learned.report["loss/value"]) == float(learned.report["loss/entropy"]) == 0
