"""Six algorithms of very different shape, each a real Agent, so that the contracts pinch here first.

The strict type check of this folder is part of `./check` (mypy needs half a minute for jax when its cache is cold).
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
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

from rookery.types import Agent, Algorithm, Batch, Decision, Gradients, Learned, PyTree, Rollout, Spec, TrainState

B = 4
FLAT = Spec(Box(-1.0, 1.0, (3,)), Discrete(5), "Fake-v0")
BOARD = Spec(Dict({"board": Box(-1.0, 1.0, (9,)), "state": Box(-1.0, 1.0, (2, 2))}), Discrete(9), "FakeBoard-v0")
CASES: dict[str, tuple[Algorithm, Spec]] = {
    "ppo": (PPO(), FLAT),
    "r2d2": (R2D2(), FLAT),
    "gorila": (DQN(), FLAT),
    "es": (ES(), FLAT),
    "muzero": (MuZero(), BOARD),
    "league": (League(), FLAT),
}


# ------------------------------------------------------------------------------------------------------ a fake world


def observe(space: gymnasium.Space[Any], rng: np.random.Generator) -> PyTree:
    if isinstance(space, Dict):
        return {name: observe(leaf, rng) for name, leaf in space.spaces.items()}
    return rng.uniform(-1, 1, (B, *(space.shape or ()))).astype(np.float32)


def play(world: World, num_rows: int, seed: int = 0) -> Rollout:
    """A collector in twenty lines: next-step autoreset, memories reset, previous action and reward where asked for."""
    agent, spec, params = world.agent, world.spec, world.state.params
    rng, explore = np.random.default_rng(seed), agent.explore(params, np.arange(B), B, 0)
    fresh = agent.memory(B)
    memory, rows = fresh, []
    action, reward, over = np.zeros(B, np.int32), np.zeros(B, np.float32), np.zeros(B, bool)
    observation, over_for_good = observe(spec.observation, rng), np.zeros(B, bool)
    for t in range(num_rows + 1):
        leaves = {"observation": observation, "previous_action": action, "previous_reward": reward}
        seen = leaves if agent.needs.previous else observation
        if t == num_rows:
            break
        decision = world.act(params, seen, memory, jax.random.key(1000 * seed + t), explore)
        action = np.asarray(decision.action)
        first = over | (over_for_good if agent.needs.whole_episodes else False)  # of the next observation
        ended = ~first & (rng.random(B) < 0.2)
        terminated = ended & (rng.random(B) < 0.5)
        reward = np.where(first, 0, rng.normal(size=B)).astype(np.float32)
        discount, valid = 1 - terminated.astype(np.float32), 1 - first.astype(np.float32)
        rows.append((seen, action, reward, discount, valid, decision.extras))
        memory = jax.tree.map(
            lambda new, old, first=first: np.where(first.reshape((-1,) + (1,) * (new.ndim - 1)), old, new),
            decision.memory,
            fresh,
        )
        action, reward = np.where(first, 0, action), np.where(first, 0, reward).astype(np.float32)
        observation, over, over_for_good = observe(spec.observation, rng), ended, over_for_good | ended
    stacked: Any = jax.tree.map(lambda *x: np.stack(x), *rows)
    observations = jax.tree.map(lambda *x: np.stack(x), *[row[0] for row in rows], seen)
    version = np.zeros((num_rows, B), np.int32)
    ids = np.arange(B, dtype=np.int64)
    _, action, reward, discount, valid, extras = stacked
    return Rollout(observations, action, reward, discount, valid, extras, fresh, version, stream=ids, step=0 * ids)


def batch_of(agent: Agent, rollout: Rollout) -> Batch:
    """What a table does: gamma into the discount, weights and keys beside it."""
    rollout = rollout._replace(discount=np.float32(agent.needs.discount) * rollout.discount)
    return Batch(rollout, np.ones(B, np.float32), np.arange(B, dtype=np.int64))


class World:
    """An agent with a state, a rollout as the collector gives it, and the batch that comes of it."""

    def __init__(self, name: str) -> None:
        algorithm, self.spec = CASES[name]
        self.agent = algorithm.build(self.spec)
        self.act, self.learn = jax.jit(self.agent.act), jax.jit(self.agent.learn)
        self.state = jax.jit(self.agent.init)(jax.random.key(0))
        self.played = play(self, self.agent.needs.rollout_length)
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


def finite(tree: PyTree) -> bool:
    return all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(tree))


# ------------------------------------------------------------------------------------------------ every agent alike


def test_init_gives_a_state_that_has_seen_no_update(world: World) -> None:
    assert isinstance(world.state, TrainState)
    assert world.state.updates.shape == () and int(world.state.updates) == 0


def test_act_answers_for_every_column_and_keeps_the_layout_of_the_memory(world: World) -> None:
    agent, memory = world.agent, world.agent.memory(B)
    observation = jax.tree.map(lambda x: x[0], world.played.observation)
    explore = agent.explore(world.state.params, np.arange(B), 2 * B, 10)
    assert all(x.shape == (B,) for x in jax.tree.leaves(explore))
    decision = world.act(world.state.params, observation, memory, jax.random.key(1), explore)
    assert isinstance(decision, Decision)
    assert layout(decision.memory) == layout(memory)
    assert np.asarray(decision.action).shape == (B, *(world.spec.action.shape or ()))
    assert all(x.shape[:1] == (B,) for x in jax.tree.leaves(decision.extras))


def test_act_without_exploration_does_not_depend_on_the_key(world: World) -> None:
    agent, observation = world.agent, jax.tree.map(lambda x: x[0], world.played.observation)
    greedy = jax.tree.map(np.zeros_like, agent.explore(world.state.params, np.arange(B), B, 0))
    actions = [
        np.asarray(world.act(world.state.params, observation, agent.memory(B), jax.random.key(i), greedy).action)
        for i in range(5)
    ]
    assert all(np.array_equal(actions[0], action) for action in actions)


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
        assert world.priorities.shape == (B,) and np.all(np.asarray(world.priorities) >= 0)


def test_learn_changes_the_parameters_and_no_layout(world: World) -> None:
    learned = world.learn(world.state, world.batch, jax.random.key(2))
    assert isinstance(learned, Learned) and isinstance(learned.state, TrainState)
    assert layout(learned.state) == layout(world.state)
    assert int(learned.state.updates) == 1
    assert learned.report and all(np.shape(value) == () for value in learned.report.values())
    assert finite(learned.state.params) and finite(learned.report)
    pairs = zip(jax.tree.leaves(learned.state.params), jax.tree.leaves(world.state.params))
    assert any(not np.array_equal(new, old) for new, old in pairs)
    assert (learned.priorities is None) == (world.priorities is None), "priorities are first given and then renewed"
    if learned.priorities is not None:
        assert learned.priorities.shape == (B,)


@pytest.mark.parametrize("name", ["r2d2", "gorila"])
def test_learn_is_apply_of_gradients_where_there_are_gradients(name: str) -> None:
    world = make(name)
    agent = world.agent
    assert agent.gradients is not None and agent.apply is not None
    found = jax.jit(agent.gradients)(world.state.params, world.state.slow, world.batch, jax.random.key(2))
    assert isinstance(found, Gradients) and layout(found.tree) == layout(world.state.params)
    state = jax.jit(agent.apply)(world.state, found)
    expected = world.learn(world.state, world.batch, jax.random.key(2)).state
    for new, old in zip(jax.tree.leaves(state), jax.tree.leaves(expected)):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
    again = jax.jit(agent.apply)(state, found)  # both refresh their target every second update
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
    rollout = play(world, 40)
    opponent, valid = rollout.extras["opponent"], rollout.valid
    same = opponent[1:] == opponent[:-1]
    assert np.all(same | (valid[:-1] == 0)), "the opponent changed inside an episode"
    assert not np.all(same), "no opponent was ever drawn again"
    state = world.learn(world.state, world.batch, jax.random.key(0)).state
    assert np.array_equal(state.params["historical"]["net"], world.state.params["historical"]["net"])
    assert not np.array_equal(state.params["main"]["net"], world.state.params["main"]["net"])
