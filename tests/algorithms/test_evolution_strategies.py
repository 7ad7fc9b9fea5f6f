"""ES and ARS as functions of returns: directions, variance, ties, variants, whitening; noise that anybody can rebuild."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import ops
from rookery.algorithms import ars, es, perturbed
from rookery.algorithms.ars import ARS
from rookery.algorithms.es import ES
from rookery.networks import NetworkConfig
from rookery.types import Spec, TrainState
from rookery.workers.acting.evolution_worker import Generation

DISCRETE = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(4))
CONTINUOUS = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Box(-2, 2, (2, 1), np.float32))
SMALL = NetworkConfig(hidden=(5,))
KEY = ops.random.key(3)
CENTRE, DIM = np.linspace(-1, 1, 20, dtype=np.float32), 20


def linear(algorithm, spec=DISCRETE):
    """The agent and its state."""
    agent = algorithm.build(spec)
    return agent, jax.jit(agent.init)(KEY)


def batch_of(total, *, seen=None):
    extras = {} if seen is None else {"seen": (perturbed.Seen(*(x[None] for x in seen)),)}
    return Generation(0, np.asarray(total, np.float32), np.full(len(total), 10, np.int32), extras).batch()


def network(state: TrainState) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params["network"])])


def estimate(pairs: int, key, *, mirrored: bool = True, sigma: float = 0.1, shape=None) -> np.ndarray:
    """The direction of ES at 0 for F = -|theta - c|^2; without mirrors, of as many members that have no twin.

    shape: of returns in place of ranks."""
    count = pairs if mirrored else 2 * pairs
    draws = jax.vmap(lambda pair: perturbed.noise(key, pair, DIM))(jnp.arange(count))
    score = lambda theta: -jnp.sum(jnp.square(theta - CENTRE[None]), 1)
    if not mirrored:
        total = score(sigma * draws)
        return np.asarray((shape or (lambda x: ops.centred_ranks(x) / count))(total) @ draws)
    total = jnp.stack([score(sigma * draws), score(-sigma * draws)], 1).reshape(-1)
    weight = es.utilities(total) if shape is None else shape(total)[0::2] - shape(total)[1::2]
    return np.asarray(weight @ draws)


def test_the_direction_is_nearly_that_of_the_true_gradient():
    found = estimate(2000, KEY)
    cosine = found @ CENTRE / np.linalg.norm(found) / np.linalg.norm(CENTRE)  # the gradient at 0 is 2 c
    assert cosine > 0.9


@pytest.mark.parametrize("shape", [lambda total: total / total.size, None], ids=["returns", "ranks"])
def test_mirrored_pairs_vary_less_than_as_many_single_members(shape):
    """Of returns as they are, and of ranks where chance changes the return more than the direction does (a large sigma)."""
    keys, spread = [jax.random.fold_in(KEY, i) for i in range(60)], {}
    for mirrored in (True, False):
        many = np.array([estimate(20, key, mirrored=mirrored, sigma=0.1 if shape else 2.0, shape=shape) for key in keys])
        spread[mirrored] = (many / np.linalg.norm(many.mean(0))).var(0).sum()  # in units of the direction itself
    assert spread[True] < 0.6 * spread[False], spread


def test_an_update_of_es_is_adam_on_the_ranked_sum_of_the_noise_with_weight_decay():
    agent, state = linear(ES(network=SMALL, sigma=0.1, learning_rate=0.05, weight_decay=0.02, normalise_observations=False))
    total = [3.0, 1.0, 5.0, 5.0, -2.0, 7.0]
    theta = network(state)
    draws = np.array([perturbed.noise(KEY, pair, theta.size) for pair in range(3)])
    rank = np.array([2, 1, 3.5, 3.5, 0, 5]) / 5 - 0.5
    ascent = ((rank[0::2] - rank[1::2])[:, None] * draws).sum(0) / 6
    gradient = -ascent + 0.02 * theta
    learned = jax.jit(agent.learn)(state, batch_of(total), KEY)
    step = network(learned.state) - theta
    np.testing.assert_allclose(step, -0.05 * gradient / (np.abs(gradient) + 1e-8), rtol=1e-3, atol=1e-6)  # Adam's first
    np.testing.assert_allclose(learned.report["direction_norm"], np.linalg.norm(ascent), rtol=1e-4)
    assert learned.report["population_return_mean"] == np.mean(total, dtype=np.float32)


def test_members_are_the_network_plus_and_minus_the_noise_that_learn_sums():
    agent, state = linear(ES(network=SMALL, sigma=0.1))
    population = jax.jit(agent.perturb)(state.params, np.arange(2, 6), KEY)
    for index, member in enumerate(range(2, 6)):
        mine = jax.tree.map(lambda x, i=index: x[i], population)
        expected = network(state) + 0.1 * (1, -1)[member % 2] * np.asarray(
            perturbed.noise(KEY, member // 2, network(state).size)
        )
        np.testing.assert_allclose(network(state._replace(params=mine)), expected, rtol=1e-5, atol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, mine["observation"], state.params["observation"])


def test_another_process_rebuilds_the_noise_bit_for_bit():
    code = (
        "import numpy as np, jax\n"
        "from rookery import ops\nfrom rookery.algorithms import perturbed\n"
        "key = jax.random.fold_in(ops.random.key(7), np.uint32(41))\n"
        "print(np.concatenate([perturbed.noise(key, pair, 333) for pair in (0, 5, 70_000)]).tobytes().hex())\n"
    )
    root = Path(__file__).parents[2]
    there = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert there.returncode == 0, there.stderr
    key = jax.random.fold_in(ops.random.key(7), np.uint32(41))
    made = jax.jit(jax.vmap(lambda pair: perturbed.noise(key, pair, 333)))(np.array([0, 5, 70_000]))  # as workers make it
    assert there.stdout.strip() == np.asarray(made).tobytes().hex()
    assert len(np.unique(made)) > 990


# ------------------------------------------------------------------------------------------------------------- ARS


def by_hand(score, draws, rate, best):
    """From the paper, in a loop."""
    plus, minus = score[0::2], score[1::2]
    order = sorted(range(len(plus)), key=lambda k: -max(plus[k], minus[k]))[: best or len(plus)]
    used = [r for k in order for r in (plus[k], minus[k])]
    return rate / (len(order) * np.std(used)) * sum((plus[k] - minus[k]) * draws[k] for k in order)


@pytest.mark.parametrize("variant", ["v1", "v1-t", "v2", "v2-t"])
def test_each_variant_of_ars_steps_as_the_paper_says(variant, rng):
    agent, state = linear(ARS(variant=variant, best=3, learning_rate=0.3))
    whitened = variant.startswith("v2")
    assert bool(state.params["observation"]) == whitened and not np.any(network(state))
    total = rng.normal(5, 2, 16)
    seen = (np.full(16, 10.0, np.float32), *rng.random((2, 16, 3)).astype(np.float32)) if whitened else None
    learned = jax.jit(agent.learn)(state, batch_of(total, seen=seen), KEY)
    draws = [np.asarray(perturbed.noise(KEY, pair, network(state).size)) for pair in range(8)]
    expected = by_hand(total, draws, 0.3, 3 if variant.endswith("-t") else None)
    np.testing.assert_allclose(network(learned.state), expected, rtol=1e-3, atol=1e-5)
    if whitened:
        (moments,) = learned.state.params["observation"]
        assert moments.count == 160
        np.testing.assert_allclose(moments.mean, seen[1].mean(0), rtol=1e-4)


def test_directions_that_are_equal_at_the_bound_are_all_kept():
    weight, _ = ars.steps(jnp.array([4.0, 0, 9, 0, 4, 0, 1, 0]), 2)
    assert np.flatnonzero(weight).tolist() == [0, 1, 2]
    np.testing.assert_allclose(weight[0], 4 / (3 * np.std([4, 0, 9, 0, 4, 0])), rtol=1e-5)


@pytest.mark.parametrize("level", [0.0, 500.0, -123.456])
def test_equal_returns_make_no_step_and_nothing_that_is_no_number(level):
    for algorithm in (ARS(variant="v1-t"), ES(network=SMALL, weight_decay=0.0, normalise_observations=False)):
        agent, state = linear(algorithm)
        learned = jax.jit(agent.learn)(state, batch_of([level] * 16), KEY)
        np.testing.assert_array_equal(network(learned.state), network(state))
        assert int(learned.state.updates) == 1


def test_the_survival_bonus_is_taken_off_for_every_step():
    agent, state = linear(ARS(variant="v1", survival_bonus=2.0))
    batch = batch_of([30.0, 10, 20, 20])
    longer = batch._replace(rollout=batch.rollout._replace(extras={"length": np.array([[10, 0, 5, 5]], np.int32)}))
    assert np.any(network(jax.jit(agent.learn)(state, batch, KEY).state))
    assert not np.any(network(jax.jit(agent.learn)(state, longer, KEY).state)), "all 10 without it"


def test_more_directions_than_there_are_cannot_be_kept():
    with pytest.raises(ValueError, match="--best 9: a population of 16 has only 8 directions"):
        ars.steps(jnp.zeros(16), 9)


# ----------------------------------------------------------------------------------------------------------- acting


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "box"])
def test_a_policy_is_deterministic_and_has_no_head_that_nothing_reads(spec, rng):
    agent, state = linear(ES(network=SMALL), spec)
    assert set(state.params["network"]["heads"]) == {"policy"}
    observation = rng.normal(size=(6, 3)).astype(np.float32)
    actions = [
        jax.jit(agent.act)(state.params, observation, agent.memory(6), ops.random.key(i), explore).action
        for i, explore in enumerate((np.zeros(6, np.float32), np.ones(6, np.float32)))
    ]
    np.testing.assert_array_equal(*actions)
    assert actions[0].shape == (6, *spec.action.shape)
    assert jnp.issubdtype(actions[0].dtype, jnp.floating) == isinstance(spec.action, gymnasium.spaces.Box)


def test_of_equally_good_actions_the_first_is_taken():
    agent, state = linear(ARS(variant="v1"))
    action = jax.jit(agent.act)(state.params, np.ones((3, 3), np.float32), agent.memory(3), KEY, np.zeros(3)).action
    assert action.tolist() == [0, 0, 0]


def test_an_episode_remembers_the_moments_of_what_it_saw_and_learn_merges_them(rng):
    agent, state = linear(ES(network=SMALL))
    episodes = rng.normal([0, 30, -4], [1, 0.1, 5], (7, 2, 3)).astype(np.float32)
    memory = agent.memory(2)
    for observation in episodes:
        memory = jax.jit(agent.act)(state.params, observation, memory, KEY, np.zeros(2)).memory
    (seen,) = memory["seen"]
    np.testing.assert_allclose(seen.mean, episodes.mean(0), rtol=1e-4, atol=1e-5)
    learned = jax.jit(agent.learn)(state, batch_of([1.0, 2.0], seen=seen), KEY).state
    (moments,) = learned.params["observation"]
    every = episodes.reshape(-1, 3)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ops.moments.std(moments), every.std(0), rtol=1e-3)
    (moments,) = jax.jit(agent.learn)(learned, batch_of([1.0, 2.0], seen=seen), KEY).state.params["observation"]
    assert moments.count == 28
