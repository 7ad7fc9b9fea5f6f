"""A share of a population: first episodes, whole ones, the same whoever plays them; members act with their own parameters."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import envs, ops
from rookery.algorithms.es import ES
from rookery.envs.pools.pool import EnvironmentFailed
from rookery.networks import NetworkConfig
from rookery.testing import SPEC, ScriptedPool
from rookery.testing import episode_length as length
from rookery.types import Agent, Batch, Decision, Learned, Needs, TrainState
from rookery.workers.acting.evaluator import Evaluator
from rookery.workers.acting.evolution_worker import EvolutionWorker, Generation, Shares, compiled, digest, kept_specs
from rookery.workers.learning.learner import Learner

SMALL = NetworkConfig(hidden=(4,))
CARTPOLE = ES(network=SMALL, sigma=0.5, max_episode_steps=60).build(envs.spec_of("CartPole-v1"))


def naming(limit: int = 100) -> Agent:
    """A member acts with its number, modulo the actions; the memory counts its steps."""

    def learn(state: TrainState, batch: Batch, key: Any) -> Learned:
        return Learned(state._replace(params={"base": state.params["base"] + 1}, updates=state.updates + 1), {}, None)

    def act(params: Any, observation: Any, memory: Any, key: Any, explore: Any) -> Decision:
        return Decision(jnp.full(memory.shape, params["base"], jnp.int32), memory + 1, {})

    return Agent(
        init=lambda key: TrainState({"base": jnp.float32(0)}, (), (), jnp.int32(0)),
        memory=lambda B: jnp.zeros(B, jnp.int32), act=act, learn=learn,
        explore=lambda params, index, num, steps: np.zeros(len(index)),
        needs=Needs(limit, 1.0, max_lag=0, whole_episodes=True),
        process=lambda params, rollout: (rollout._replace(extras={"steps": rollout.memory[None]}), None),
        perturb=lambda params, member, key: {"base": params["base"] + (member % 4).astype(jnp.float32)},
    )  # fmt: skip


def worker(agent: Agent, make: Any, shares: Shares, seed: int = 0, **options: Any) -> EvolutionWorker:
    state = Learner(agent, seed=seed).snapshot()
    return EvolutionWorker(agent, make, seed=seed, shares=shares, state=state, **options)


def played(env: int, action: int, steps: int) -> float:
    """The rewards of the first episode of the scripted environment, if it lasts so long."""
    return sum(1.0 + env + 0.25 * step + 0.125 * action for step in range(min(steps, length(env, 0))))


@pytest.mark.parametrize("limit", [100, 3])
def test_the_first_episode_of_each_member_counts_and_is_cut_at_the_limit(limit: int) -> None:
    score = worker(naming(limit), lambda: ScriptedPool(8), Shares(1, 8)).evaluate(0, 0)
    assert (score.generation, score.share) == (0, 0)
    lengths = [min(limit, length(env, 0)) for env in range(8)]
    assert score.length.tolist() == lengths and len(set(lengths)) > 2
    np.testing.assert_allclose(score.total, [played(env, env % 4, limit) for env in range(8)])
    assert score.ended.tolist() == [length(env, 0) <= limit for env in range(8)]
    assert score.extras["steps"].tolist() == [lengths], "the memory stays as it was at the end"


def test_shares_have_every_member_once_and_neighbours_the_two_signs_of_the_same_pairs() -> None:
    for shares in (Shares(1, 8), Shares(2, 4), Shares(4, 3), Shares(3, 2)):
        every = np.concatenate([shares.members(share) for share in range(shares.number)])
        assert sorted(every.tolist()) == list(range(shares.number * shares.size))
    shares = Shares(4, 3)
    for share in (0, 2):
        np.testing.assert_array_equal(shares.members(share) + 1, shares.members(share + 1))
        assert shares.start(share) == shares.start(share + 1)
    assert len({shares.start(share) for share in range(4)}) == 2
    assert len({Shares(3, 2).start(share) for share in range(3)}) == 3


def test_a_score_depends_on_the_share_and_not_on_who_evaluates_it_or_what_came_before() -> None:
    make = lambda: envs.make("CartPole-v1", 6)
    shares = Shares(4, 6)
    one, two = worker(CARTPOLE, make, shares), worker(CARTPOLE, make, shares)
    for share in (3, 0, 3, 2):
        two.evaluate(0, share)
    first, again = one.evaluate(0, 1), two.evaluate(0, 1)
    for name in ("total", "length", "ended"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    jax.tree.map(np.testing.assert_array_equal, first.extras, again.extras)
    assert first.digest == again.digest and len(set(first.total.tolist())) > 1
    other = worker(CARTPOLE, make, shares, seed=1).evaluate(0, 1)
    assert other.total.tolist() != first.total.tolist()


def test_a_member_gets_the_return_that_its_parameters_get_alone() -> None:
    """Against the Evaluator, one policy at a time, from the same states."""
    shares = Shares(2, 5)
    mine = worker(CARTPOLE, lambda: envs.make("CartPole-v1", 5), shares)
    score = mine.evaluate(0, 1)
    params = Learner(CARTPOLE, seed=0).params
    population = compiled(CARTPOLE)[0](params, shares.members(1), ops.random.key(0), np.uint32(1))
    seed = int(np.random.SeedSequence((0, 0, 0)).generate_state(1)[0] >> 1)
    alone = Evaluator(CARTPOLE, lambda: envs.make("CartPole-v1", 5), seed=seed, max_steps=60)
    for place in range(5):
        found = alone.evaluate(jax.tree.map(lambda x, p=place: x[p], population))
        assert found.returns[place] == score.total[place] and found.lengths[place] == score.length[place]


def test_a_worker_that_was_told_a_generation_has_the_learners_parameters_bit_for_bit() -> None:
    shares, learner = Shares(2, 4), Learner(CARTPOLE, seed=0)
    mine = worker(CARTPOLE, lambda: envs.make("CartPole-v1", 4), shares)
    for number in range(3):
        scores = [mine.evaluate(number, share) for share in range(2)]
        assert scores[0].digest == digest(learner.params)
        extras = jax.tree.map(lambda *x: np.concatenate(x, 1), *(score.extras for score in scores))
        total, lengths = (np.concatenate([getattr(score, name) for score in scores]) for name in ("total", "length"))
        generation = Generation(number, total, lengths, extras)
        before = digest(learner.params)
        learner.learn(generation.batch())
        mine.learn(generation)
        assert digest(learner.params) != before
    with pytest.raises(RuntimeError, match="asked for generation 2, but this worker is at 3"):
        mine.evaluate(2, 0)


def test_an_environment_that_fails_begins_its_episode_anew() -> None:
    class Failing(ScriptedPool):
        failed = False

        def recv(self, group: int = 0) -> Any:
            if self._slots[6].step == 2 and not self.failed:  # environment 6 plays 4 steps
                self.failed = True
                raise EnvironmentFailed("it broke", 6, (6,))
            return super().recv(group)

        def rebuild(self, env_id: int) -> None:
            slot = self._slots[env_id]
            self._slots[env_id] = slot._replace(episode=-1, step=0, ended=True)  # its next answer starts episode 0

    assert length(6, 0) == 4
    score = worker(naming(), lambda: Failing(8), Shares(1, 8)).evaluate(0, 0)
    np.testing.assert_allclose(score.total, [played(env, env % 4, 100) for env in range(8)])
    assert score.length[6] == 4 and score.extras["steps"][0, 6] == 4
    assert [failure.env_ids for failure in score.incidents] == [(6,)]


def test_what_is_kept_of_an_episode_does_not_grow_with_the_network() -> None:
    spec = envs.spec_of("CartPole-v1")
    sizes = [
        jax.tree.map(lambda x: x.shape, kept_specs(ES(network=NetworkConfig(**config)).build(spec), 6))
        for config in ({"hidden": (4,)}, {"hidden": (128, 128)}, {"hidden": (4,), "core": "lstm"})
    ]
    assert sizes[0] == sizes[1] == sizes[2] and sizes[0]["seen"][0].mean == (1, 6, 4)
    assert kept_specs(ES(normalise_observations=False).build(spec), 6) == {}


def test_the_memory_of_a_recurrent_policy_starts_anew_with_each_share() -> None:
    agent = ES(network=NetworkConfig(hidden=(4,), core="gru", core_size=3), max_episode_steps=20, sigma=0.5).build(
        envs.spec_of("CartPole-v1")
    )
    one = worker(agent, lambda: envs.make("CartPole-v1", 4), Shares(2, 4))
    assert one.evaluate(0, 0).total.tolist() == one.evaluate(0, 0).total.tolist()


def test_box_actions_and_trees_of_observations_are_played() -> None:
    for env in ("Pendulum-v1", "dict-obs"):
        spec = envs.spec_of(env)
        agent = ES(network=SMALL, max_episode_steps=9).build(spec)
        assert isinstance(spec.action, gymnasium.spaces.Box) or env == "dict-obs"
        score = worker(agent, lambda env=env: envs.make(env, 3), Shares(2, 3)).evaluate(0, 0)
        assert np.isfinite(score.total).all() and score.length.max() <= 9
    assert SPEC.id == "scripted"
