"""Acting: actions of every space, masks, and log-probabilities that acting and learning agree on."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_cases import adapted, batch_of, model_of, random_params, random_state
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rookery import envs, ops, spaces
from rookery.algorithms.a2c import A2C
from rookery.algorithms.appo import APPO
from rookery.algorithms.ppo import PPO
from rookery.algorithms.vtrace import VTrace
from rookery.networks import NetworkConfig
from rookery.types import Rollout, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.learning.learner import device_part

VECTOR = Box(-1, 1, (3,), np.float32)
NUMBER = 64  # decisions per test
SPACES = {
    "discrete": Discrete(4),
    "multi-discrete": MultiDiscrete([3, 4]),
    "multi-binary": MultiBinary(5),
    "box": Box(-2, 2, (2,), np.float32),
    "squashed": Box(np.float32([-2, 0]), np.float32([2, 3])),
    "dict": Dict({"go": Discrete(3), "turn": Box(-1, 1, (2,), np.float32)}),
    "tuple": Tuple([MultiBinary(2), MultiDiscrete([2, 3]), Discrete(5)]),
}


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_in_the_space_and_learning_recomputes_the_same_log_probability(name):
    space = SPACES[name]
    model = model_of(Spec(VECTOR, space), NetworkConfig(hidden=(8,)), squash=name == "squashed")
    params, observation = random_params(model), np.random.default_rng(0).normal(size=(NUMBER, 3)).astype(np.float32)

    @jax.jit
    def both(observation):
        explore = jnp.ones(NUMBER).at[0].set(0.0)  # the first decision is greedy
        decision = model.act(params, observation, (), ops.random.key(0), explore)
        again = model.act(params, observation, (), ops.random.key(1), explore)
        row = jax.tree.map(lambda x: x[None], (decision.action, decision.extras))
        rollout = Rollout(jnp.stack([observation] * 2), row[0], *(jnp.ones((1, NUMBER)),) * 3, row[1], (), (), (), ())
        return decision, again, model.evaluate(params, rollout)

    decision, again, evaluation = jax.tree.map(np.asarray, both(observation))
    for i in range(NUMBER):
        action = jax.tree.map(lambda x, i=i: x[i], decision.action)
        executed = spaces.canonical_action(space, action)
        assert space.contains(executed), (action, executed)
        if name == "squashed":
            assert space.contains(action), "a squashed action needs no clipping"
    np.testing.assert_allclose(decision.extras["behaviour_logp"], evaluation.logp[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(decision.extras["value"], evaluation.value[0], rtol=1e-5, atol=1e-5)
    same = [x == y for x, y in zip(jax.tree.leaves(decision.action), jax.tree.leaves(again.action))]
    assert all(s[0].all() for s in same), "greedy decisions do not depend on the key"
    assert not all(s[1:].all() for s in same), "others do"
    assert (evaluation.entropy < 20).all() and np.isfinite(evaluation.entropy).all()


@pytest.mark.parametrize("float_mask", [False, True], ids=["binary mask", "float mask"])
def test_illegal_actions_are_never_taken_and_do_not_count_for_the_entropy(float_mask, rng):
    """Also with normalised observations: a mask is not a number to normalise, whatever its type."""
    mask_space = Box(0, 1, (5,), np.float32) if float_mask else MultiBinary(5)
    space = Dict({"action_mask": mask_space, "x": VECTOR})
    model = model_of(Spec(space, Discrete(5)), NetworkConfig(hidden=(8,)), normalise_observations=True)
    mask = (rng.random((NUMBER, 5)) < 0.5).astype(mask_space.dtype)
    mask[np.arange(NUMBER), rng.integers(0, 5, NUMBER)] = 1
    observation = {"action_mask": mask, "x": rng.normal(size=(NUMBER, 3)).astype(np.float32)}
    params = random_params(model, scale=2.0)

    @jax.jit
    def decide(observation, explore, key):
        rows = jax.tree.map(lambda x: jnp.stack([x, x]), observation)
        blank = jnp.ones((1, NUMBER))
        rollout = Rollout(rows, jnp.zeros((1, NUMBER), jnp.int32), blank, blank, blank, {}, (), (), (), ())
        # moments that would shift and scale a mask, if they were used on it
        seen = model.normalisers.observed(params, model.normalisers.statistics(rollout))
        evaluation = model.evaluate(seen, rollout)
        return model.act(seen, observation, (), key, explore), evaluation

    for seed in range(4):
        for explore in (1.0, 0.0):
            decision, evaluation = decide(observation, np.full(NUMBER, explore, np.float32), ops.random.key(seed))
            assert mask[np.arange(NUMBER), np.asarray(decision.action)].all()
    logits = np.where(mask != 0, np.asarray(evaluation.outputs[0], np.float64), -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), -1)
    np.testing.assert_allclose(evaluation.entropy[0], entropy, atol=1e-5)
    assert (evaluation.entropy[0][mask.sum(-1) == 1] < 1e-6).all()


def test_the_components_of_a_multi_discrete_action_are_masked_one_by_one(rng):
    space = Dict({"action_mask": MultiBinary(7), "x": VECTOR})
    model = model_of(Spec(space, MultiDiscrete([3, 4])), NetworkConfig(hidden=(8,)))
    mask = np.zeros((NUMBER, 7), np.int8)
    allowed = rng.integers(0, 3, NUMBER), rng.integers(0, 4, NUMBER)
    mask[np.arange(NUMBER), allowed[0]] = mask[np.arange(NUMBER), 3 + allowed[1]] = 1  # one legal choice for each
    observation = {"action_mask": mask, "x": np.zeros((NUMBER, 3), np.float32)}
    decision = jax.jit(model.act)(random_params(model), observation, (), ops.random.key(0), np.ones(NUMBER, np.float32))
    np.testing.assert_array_equal(decision.action, np.stack(allowed, -1))
    np.testing.assert_allclose(decision.extras["behaviour_logp"], 0.0, atol=1e-6)


# ------------------------------------------------------------------------- acting and learning see the same policy

FRESH = {
    "lstm, normalised": ("cue-recall", PPO, dict(normalise_observations=True), "lstm"),
    "gru": ("cue-recall", APPO, {}, "gru"),
    "squashed, normalised": ("point-reach", PPO, dict(normalise_observations=True, squash=True), "none"),
    "lstm, previous action and reward": ("cue-recall", VTrace, dict(previous=True), "lstm"),
    "mask": ("masked", A2C, {}, "none"),
}


REMEMBERED = {"ppo": (PPO(), {"behaviour_logp"}), "appo": (APPO(), {"behaviour_logp", "value"}), "a2c": (A2C(), set())}


@pytest.mark.parametrize("algorithm, names", REMEMBERED.values(), ids=REMEMBERED)
def test_only_what_learning_needs_is_remembered(algorithm, names):
    """What nobody asks for is not computed: a critic apart costs as much as the actor."""
    agent = algorithm.build(Spec(VECTOR, Discrete(3)))
    params = jax.eval_shape(agent.init, ops.random.key(0)).params
    arguments = np.zeros((2, 3), np.float32), (), ops.random.key(0), np.ones(2, np.float32)
    assert set(jax.eval_shape(agent.act, params, *arguments).extras) == names


def collect_from(env, agent):
    options = {"delay": 2} if env == "cue-recall" else {"length": 4}
    return Collector(agent, lambda: envs.make(env, 6, **options), seed=0)


@pytest.mark.parametrize("name", FRESH)
def test_acting_and_learning_see_the_same_policy(name):
    """The stored log π(a|x) and V(x) are those that the learner computes, to 1e-5, with episodes that end inside a
    rollout, memory that is carried from rollout to rollout, and normalisers that move between them."""
    env, kind, options, core = FRESH[name]
    network = NetworkConfig(hidden=(8,), core=core, core_size=6)
    spec = envs.spec_of(env)
    model = model_of(spec, network, **options)
    agent = kind(rollout_length=7, network=network, **options).build(spec)._replace(act=model.act)
    params, rng = random_params(model), np.random.default_rng(0)
    evaluate = jax.jit(model.evaluate)
    observe = jax.jit(lambda params, rollout: model.normalisers.observed(params, model.normalisers.statistics(rollout)))
    collector = collect_from(env, agent)
    for version in range(3):
        collector.publish(params, version)
        rollout = collector.collect().rollout._replace(stream=(), step=())
        assert (rollout.valid == 0).any()
        out = evaluate(params, rollout)
        np.testing.assert_allclose(out.logp, rollout.extras["behaviour_logp"], atol=1e-5)
        np.testing.assert_allclose(out.value, rollout.extras["value"], atol=1e-5)
        params = observe(params, rollout)
        moved = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params["network"])
        params = params | {"network": moved}
    if core != "none":
        assert any(np.abs(leaf).max() > 0.01 for leaf in jax.tree.leaves(rollout.memory)), "memory was carried over"
    collector.close()


def test_the_first_minibatch_of_a_recurrent_ppo_clips_nothing():
    network = NetworkConfig(hidden=(8,), core="lstm", core_size=6)
    algorithm = adapted("ppo", rollout_length=7, network=network, normalise_observations=True)
    agent = algorithm.build(envs.spec_of("cue-recall"))
    state, learn = random_state(agent), jax.jit(agent.learn)
    collector = collect_from("cue-recall", agent)
    for update in range(3):  # from the second on, the observations are normalised
        collector.publish(state.params, update)
        rollout = collector.collect().rollout
        assert (rollout.valid == 0).any()
        learned = learn(state, device_part(batch_of(rollout)), ops.random.key(update))
        state = learned.state
        assert learned.report["clip_fraction"] == 0 and abs(learned.report["approx_kl"]) < 1e-8
    assert state.params["observation"][0].count == 3 * 7 * 6
    collector.close()


def test_an_action_space_that_cannot_be_squashed_is_refused_by_name():
    unbounded = Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(TypeError, match=r"squash=False"):
        PPO(squash=True).build(Spec(VECTOR, unbounded))
    with pytest.raises(TypeError, match="MultiDiscrete"):
        PPO().build(Spec(VECTOR, gymnasium.spaces.Text(4)))
