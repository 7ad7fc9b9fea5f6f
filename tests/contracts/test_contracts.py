"""Seven algorithms of very different shape, each a real Agent, so that the contracts pinch here first.

The strict type check of this folder is part of `./check` (mypy needs half a minute for jax when its cache is cold).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from es_stub import ES
from gorila_stub import DQN, Bundle, joined, owned
from gymnasium.spaces import Box, Dict, Discrete
from league_stub import League
from muzero_stub import MuZero
from ppo_stub import PPO
from r2d2_stub import R2D2
from sac_stub import SAC

from rookery.testing import check_agent, random_rollout
from rookery.types import Agent, Algorithm, Batch, Gradients, PyTree, Rollout, Spec, TrainState

B = 4
FLAT = Spec(Box(-1.0, 1.0, (3,)), Discrete(5), "Fake-v0")
MOTOR = Spec(Box(-1.0, 1.0, (3,)), Box(-2.0, 2.0, (2,)), "FakeMotor-v0")
BOARD = Spec(Dict({"board": Box(-1.0, 1.0, (9,)), "state": Box(-1.0, 1.0, (2, 2))}), Discrete(9), "FakeBoard-v0")
CASES: dict[str, tuple[Algorithm, Spec]] = {
    "ppo": (PPO(), FLAT),
    "r2d2": (R2D2(), FLAT),
    "gorila": (DQN(), FLAT),
    "es": (ES(), FLAT),
    "muzero": (MuZero(), BOARD),
    "league": (League(), FLAT),
    "sac": (SAC(), MOTOR),
}


# ------------------------------------------------------------------------------------------------------ a fake world


def batch_of(agent: Agent, rollout: Rollout) -> Batch:
    """What a table does: gamma into the discount, weights and keys beside it."""
    rollout = rollout._replace(discount=np.float32(agent.needs.discount) * rollout.discount)
    return Batch(rollout, np.ones(B, np.float32), np.arange(B, dtype=np.int64))


class World:
    """An agent with a state, a rollout as the collector gives it, and the batch that comes of it."""

    def __init__(self, name: str) -> None:
        algorithm, self.spec = CASES[name]
        self.agent = algorithm.build(self.spec)
        self.learn = jax.jit(self.agent.learn)
        self.state = jax.jit(self.agent.init)(jax.random.key(0))
        self.played = random_rollout(self.agent, self.spec, self.state.params, num_envs=B)
        self.rollout, self.priorities = self.played, None
        if self.agent.process is not None:
            self.rollout, self.priorities = jax.jit(self.agent.process)(self.state.params, self.played)
        self.batch = batch_of(self.agent, self.rollout)


make = functools.cache(World)


@pytest.fixture(scope="module", params=CASES)
def world(request: pytest.FixtureRequest) -> World:
    return make(request.param)


def layout(tree: PyTree) -> Any:
    """Structure, shapes and types: what must not change, else a function is compiled twice."""
    return jax.tree.structure(tree), [(np.shape(x), jax.numpy.result_type(x)) for x in jax.tree.leaves(tree)]


# ------------------------------------------------------------------------------------------------ every agent alike


def test_every_stub_keeps_the_contracts_of_an_agent(world: World) -> None:
    check_agent(world.agent, world.spec, batch=world.batch)


@pytest.mark.parametrize("name", ["r2d2", "es", "muzero"])
def test_process_gives_a_rollout_whose_columns_can_be_batched(name: str) -> None:
    world = make(name)
    assert world.agent.process is not None
    assert isinstance(world.rollout, Rollout)
    rows = world.rollout.reward.shape[0]
    assert world.rollout.reward.shape == (rows, B)
    assert world.rollout.version.shape == (rows, B)
    assert all(x.shape[:2] == (rows + 1, B) for x in jax.tree.leaves(world.rollout.observation))
    assert all(x.shape[:2] == (rows, B) for x in jax.tree.leaves(world.rollout.extras))
    if world.priorities is not None:
        assert world.priorities.shape in ((B,), (rows, B)) and np.all(np.asarray(world.priorities) >= 0)


def test_priorities_are_first_given_and_then_renewed(world: World) -> None:
    learned = world.learn(world.state, world.batch, jax.random.key(2))
    assert (learned.priorities is None) == (world.priorities is None)


@pytest.mark.parametrize("name", ["r2d2", "gorila"])
def test_the_target_is_refreshed_every_second_update(name: str) -> None:
    world = make(name)
    agent = world.agent
    assert agent.gradients is not None and agent.apply is not None
    found = jax.jit(agent.gradients)(world.state.params, world.state.slow, world.batch, jax.random.key(2))
    state = jax.jit(agent.apply)(world.state, found)
    again = jax.jit(agent.apply)(state, found)
    for first, second, params in zip(*(jax.tree.leaves(tree) for tree in (state.slow, again.slow, again.params))):
        assert np.array_equal(second, params) and not np.array_equal(first, params)


# ------------------------------------------------------------------------------------------------ what is special


def test_shards_of_a_parameter_server_together_do_what_one_apply_does() -> None:
    world = make("gorila")
    agent, state = world.agent, world.state
    assert agent.apply is not None
    apply = jax.jit(agent.apply)
    bundle = Bundle(agent, capacity=4)
    bundle.insert(world.played)
    shards = [TrainState(*(owned(part, state.params, k, 2) for part in state)) for k in range(2)]
    whole = state
    for i in range(3):
        found = bundle.gradients(whole.params, whole.slow, jax.random.key(i))
        pieces = [Gradients(owned(found.tree, state.params, k, 2), {}) for k in range(2)]
        shards = [apply(shard, piece) for shard, piece in zip(shards, pieces)]
        whole = apply(whole, found)
    assert all(len(jax.tree.leaves(shard.params)) == 1 for shard in shards)
    for name in ("params", "slow"):
        parts = joined([getattr(shard, name) for shard in shards])
        for new, old in zip(jax.tree.leaves(parts), jax.tree.leaves(getattr(whole, name))):
            np.testing.assert_allclose(new, old, rtol=1e-6)


def test_each_loss_of_an_actor_critic_moves_its_own_part_with_its_own_optimizer() -> None:
    world = make("sac")
    state = world.learn(world.state, world.batch, jax.random.key(2)).state
    for name in (trained := world.agent.trained or ()):
        actor, critic, temperature = (0.0 if other == name else 1e-3 for other in ("actor", "critic", "temperature"))
        agent = SAC(learning_rates=(actor, critic, temperature)).build(world.spec)
        without = jax.jit(agent.learn)(world.state, world.batch, jax.random.key(2)).state
        for other in trained:
            moved = world.state if other == name else state
            pairs = zip(jax.tree.leaves(without.params[other]), jax.tree.leaves(moved.params[other]))
            assert all(np.array_equal(new, old) for new, old in pairs), f"{name} at rest, {other}"
        assert set(state.optimizer) == set(trained)


def test_evolution_moves_towards_the_member_that_did_better_and_ships_no_observation() -> None:
    world = make("es")
    assert jax.tree.leaves((world.rollout.observation, world.rollout.action)) == []
    sides = []
    for better in (0, 1):
        reward = np.zeros((1, B), np.float32)
        reward[0, better] = 1.0
        batch = world.batch._replace(rollout=world.batch.rollout._replace(reward=reward))
        learned = world.learn(world.state, batch, jax.random.key(0))
        sides.append(np.asarray(learned.state.params["w"] - world.state.params["w"]))
    np.testing.assert_allclose(sides[0], -sides[1], rtol=1e-4, atol=1e-7)  # members 0 and 1 mirror each other
    assert np.abs(sides[0]).max() > 0


def test_members_act_with_parameters_of_their_own_around_those_that_learn() -> None:
    world = make("es")
    assert world.agent.perturb is not None
    population = jax.jit(world.agent.perturb)(world.state.params, np.arange(B), jax.random.key(0))
    assert layout(population)[0] == layout(world.state.params)[0]
    w, centre = np.asarray(population["w"]), np.asarray(world.state.params["w"])
    assert w.shape == (B, *centre.shape) and not np.allclose(w[0], w[2])
    np.testing.assert_allclose((w[0::2] + w[1::2]) / 2, np.broadcast_to(centre, w[0::2].shape), atol=1e-6)
    batch = world.batch._replace(rollout=world.batch.rollout._replace(reward=np.array([[1, 0, 0, 0]], np.float32)))
    moved = np.asarray(world.learn(world.state, batch, jax.random.key(0)).state.params["w"]) - centre
    assert np.sum(moved * (w[0] - centre)) > 0, "with the key that they were made with"


def test_the_return_of_a_member_is_that_of_its_first_episode() -> None:
    world = make("es")
    assert (world.played.valid == 0).any()
    columns = zip(world.played.reward.T, world.played.valid.T)
    expected = [reward[: [*valid, 0].index(0)].sum() for reward, valid in columns]
    np.testing.assert_allclose(world.rollout.reward[0], expected, rtol=1e-5)


def test_a_planner_searches_on_the_state_and_does_not_store_it() -> None:
    world = make("muzero")
    assert set(world.played.observation) == {"board", "state"} and set(world.rollout.observation) == {"board"}
    assert world.batch.rollout.discount.min() == -1
    np.testing.assert_allclose(world.rollout.extras["visits"].sum(-1), 1, rtol=1e-5)


def test_an_opponent_stays_for_its_episode_and_a_frozen_policy_never_learns() -> None:
    world = make("league")
    longer = world.agent._replace(needs=world.agent.needs._replace(rollout_length=40))
    rollout = random_rollout(longer, world.spec, world.state.params, num_envs=B)
    opponent, valid = rollout.extras["opponent"], rollout.valid
    same = opponent[1:] == opponent[:-1]
    assert np.all(same | (valid[:-1] == 0)), "the opponent changed inside an episode"
    assert not np.all(same), "no opponent was ever drawn again"
    state = world.learn(world.state, world.batch, jax.random.key(0)).state
    assert np.array_equal(state.params["historical"]["net"], world.state.params["historical"]["net"])
    assert not np.array_equal(state.params["main"]["net"], world.state.params["main"]["net"])
