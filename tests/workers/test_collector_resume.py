"""A collector that is saved and restored goes on as if nothing had been; where it cannot, it starts anew and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collecting import collect
from gymnasium import spaces as gs

from rookery import envs, spaces
from rookery.testing import ScriptedPool, checkpointed, counting_agent
from rookery.testing import assert_same_rollout as same
from rookery.testing import counting_params as params
from rookery.types import Agent, Decision, Needs
from rookery.workers.acting.collector import Collector

B, T = 4, 3
AGENT = counting_agent(T, return_discount=0.5)


class Composite(gymnasium.Env):
    """Actions are a tuple and a dict; the state can be saved."""

    observation_space = gs.Box(-9, 9, (2,), np.float32)
    action_space = gs.Tuple([gs.Discrete(2), gs.Dict({"b": gs.Discrete(2), "a": gs.Discrete(2)})])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.state = np.zeros(2, np.float32)
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.state = self.state + np.array([action[0] + 2 * action[1]["a"] - action[1]["b"], 1], np.float32)
        return self.state, float(self.state[0]), False, bool(self.state[1] >= 5), {}

    def get_state(self) -> Any:
        return self.state.copy()

    def set_state(self, state: Any) -> None:
        self.state = np.array(state)


def random_agent(spec: Any) -> Agent:
    """Samples its actions, looks at its previous action, remembers: everything that a snapshot must hold."""

    def act(params: Any, observation: Any, memory: Any, key: Any, explore: Any) -> Decision:
        noise = jax.random.uniform(key, (len(memory),))
        leaves = jax.tree.leaves(observation)
        mixed = sum(jnp.sin(x.astype(jnp.float32)).reshape(len(memory), -1).sum(1) for x in leaves) + memory + noise

        def choose(zeros: Any) -> Any:
            if np.issubdtype(zeros.dtype, np.integer):
                return (jnp.abs(mixed) * 1e3).astype(jnp.int32) % 2
            return jnp.broadcast_to(jnp.sin(mixed)[:, None], zeros.shape)

        action = jax.tree.map(choose, spaces.zeros(spec.action, (len(memory),)))
        return Decision(action, memory * 0.5 + noise, {"mixed": mixed})

    needs = Needs(T, 0.9, previous=True, return_discount=0.9)
    fake = counting_agent(T)
    return fake._replace(act=act, memory=lambda B: jnp.zeros((B,)), needs=needs)


def unsaved(**options: Any) -> Collector:
    made = Collector(AGENT, lambda: ScriptedPool(B, savable=False), **options)
    made.publish(params(), 0)
    return made


def toy(name: Any, groups: int) -> Callable[[], Any]:
    return lambda: envs.make(name, 4, groups=groups)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("scripted", 2), ("catch", 1), ("cue-recall", 2), ("truncating", 1), ("dict-obs", 2), ("point-reach", 2)]
    + [("CartPole-v1", 1), ("CartPole-v1", 2), (Composite, 2)],
)
def test_a_collector_restored_in_the_middle_goes_on_bit_for_bit(name: Any, groups: int) -> None:
    make = (lambda: ScriptedPool(B, groups)) if name == "scripted" else toy(name, groups)
    agent = AGENT if name == "scripted" else random_agent(make().spec)
    worker = Collector(agent, make, index=1, num_workers=2, seed=3)
    worker.publish(params(), 4)
    collect(worker, 5)
    saved = checkpointed(worker.snapshot())
    kept = jax.tree.map(np.copy, saved)
    expected = collect(worker, 5)
    again = Collector(agent, make, index=1, num_workers=2, seed=3, snapshot=saved)
    again.publish(params(), 4)
    for a, b in zip(expected, collect(again, 5)):
        same(a.rollout, b.rollout)
        assert (a.episodes, a.env_steps) == (b.episodes, b.env_steps)
    jax.tree.map(np.testing.assert_array_equal, kept, saved)  # a snapshot may be used again
    for a, b in zip(jax.tree.leaves(worker.snapshot()), jax.tree.leaves(again.snapshot()), strict=True):
        assert np.array_equal(a, b)


def test_a_pool_that_cannot_be_saved_starts_new_episodes_in_new_streams() -> None:
    worker = unsaved(seed=3)
    before = collect(worker, 5)[-1]
    saved = checkpointed(worker.snapshot())
    pools: list[ScriptedPool] = []

    def make() -> ScriptedPool:
        pools.append(ScriptedPool(B, savable=False))
        return pools[-1]

    again = Collector(AGENT, make, seed=3, snapshot=saved)
    again.publish(params(), 9)
    first = again.collect().rollout
    assert (first.stream == before.rollout.stream + 1).all(), "the same slots, the next incarnation"
    assert (first.step == 0).all(), "a stream starts with its row 0"
    assert (first.observation[0, :, 2] == 0).all() and (first.memory["count"] == 0).all()
    reward = first.reward[0] * first.valid[0]
    assert (first.extras["discounted_return"][0] == reward).all(), "nothing of the episodes that were cut"
    assert again.collect().rollout.step.tolist() == [T] * B
    twice = Collector(AGENT, make, seed=3, snapshot=checkpointed(again.snapshot()))
    twice.publish(params(), 9)
    assert (twice.collect().rollout.stream == first.stream + 1).all()
    fresh = Collector(AGENT, make, seed=3)
    assert len({pool.seeds[0] for pool in pools}) == 3, "and not the episodes of before all over again"
    assert fresh.snapshot()["counter"] == 0


def test_draws_after_a_restart_are_not_those_of_before() -> None:
    worker = unsaved()
    before = {x for c in collect(worker, 4) for x in c.rollout.extras["drawn"].reshape(-1).tolist()}
    again = Collector(AGENT, lambda: ScriptedPool(B, savable=False), snapshot=worker.snapshot())
    again.publish(params(), 0)
    after = {x for c in collect(again, 4) for x in c.rollout.extras["drawn"].reshape(-1).tolist()}
    assert not before & after
