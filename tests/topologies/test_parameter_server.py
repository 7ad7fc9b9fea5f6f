"""ParameterServer: one bundle is the synchronous run bit for bit, in however many shards; discards and pulls are counted."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from lockstep import ENV, agent_of, follow, start
from waiting import until

from rookery import envs, ops
from rookery.algorithms.a2c import A2C
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.data.config import ReplayConfig
from rookery.networks import NetworkConfig
from rookery.run.config import ConfigError, check, resolve
from rookery.testing import checkpointed
from rookery.topologies.parameter_server import ParameterServer
from rookery.topologies.staleness import Outliers
from rookery.topologies.sync import Sync
from rookery.types import Agent
from rookery.workers.learning.parameter_shard import joined, owned, trained, whole_state

SMALL = NetworkConfig(hidden=(4,))
AS_THEY_COME: dict = {"normalise_observations": False, "normalise_rewards": False}  # moments are equal to rounding alone
ALGORITHMS = {
    "dqn": DQN(
        rollout_length=3, batch_size=8, target_period=5, network=SMALL,
        replay=ReplayConfig(capacity=200, min_size=40, samples_per_insert=4.0),
    ),
    "prioritized": DQN(
        rollout_length=5, batch_size=8, n_step=3, double=True, noisy=True, network=SMALL,
        replay=ReplayConfig(capacity=200, min_size=40, samples_per_insert=4.0, selector="prioritized"),
    ),
    # loss and `apply` in one program are fused otherwise than alone: equal to Sync to rounding, which depends on the processor
    "a2c": A2C(
        rollout_length=4, gae_lambda=1.0, learning_rate=7e-4, entropy_cost=0.01, value_steps=1, rmsprop_epsilon=1e-5,
        network=SMALL, **AS_THEY_COME,
    ),
}  # fmt: skip


@cache
def built(name: str) -> Agent:
    return agent_of(ALGORITHMS[name])


@cache
def synchronous(name: str) -> dict:
    return plain(follow(Sync(num_envs=4), built(name), 40)[0])


def plain(run: dict) -> dict:
    return {update: step[0] for update, step in run.items()}


@cache
def in_one_shard(name: str) -> dict:
    return plain(follow(ParameterServer(num_envs=4, workers=1, shards=1), built(name), 40)[0])


@pytest.mark.parametrize("shards", [2, 3])
def test_a_parameter_server_is_the_same_bit_for_bit_in_however_many_shards(shards: int) -> None:
    seen, _ = follow(ParameterServer(num_envs=4, workers=1, shards=shards), built("a2c"), 40)
    assert plain(seen) == in_one_shard("a2c") and len(seen) == 40


def test_one_bundle_of_an_actor_critic_is_the_synchronous_run_to_rounding() -> None:
    runs = []
    for topology in (Sync(num_envs=4), ParameterServer(num_envs=4, workers=1, shards=2)):
        driver = start(topology, built("a2c"))
        progress = until(driver, lambda p: p.updates >= 40)
        runs.append((progress.updates, progress.env_steps, jax.tree.map(np.asarray, progress.params)))
        driver.close()
    (updates, steps, one), (theirs, same, other) = runs
    assert (updates, steps) == (theirs, same)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), one, other)


@pytest.mark.parametrize("name, shards", [("dqn", 1), ("dqn", 3), ("prioritized", 2)])
def test_one_bundle_is_the_synchronous_run_bit_for_bit_in_however_many_shards(name: str, shards: int) -> None:
    seen, _ = follow(ParameterServer(num_envs=4, workers=1, shards=shards), built(name), 40)
    assert plain(seen) == synchronous(name) and len(seen) == 40


@pytest.mark.parametrize("name", ["dqn", "a2c"])
def test_one_bundle_resumes_bit_for_bit_with_its_replay_and_the_moments_of_all_shards(name: str) -> None:
    topology = ParameterServer(num_envs=4, workers=1, shards=2)
    _, saved = follow(topology, built(name), 16, save_at=15)
    drained = int(saved["meters"]["updates"])
    assert drained <= 17
    rest = plain(follow(topology, built(name), 40, snapshot=saved)[0])
    whole = in_one_shard(name)
    assert {u: p for u, p in rest.items() if u > drained} == {u: p for u, p in whole.items() if u > drained}


def test_a_state_that_is_cut_into_shards_is_whole_again_with_its_optimizer() -> None:
    agent = built("dqn")
    state = jax.jit(agent.init)(ops.random.key(0))
    state = jax.tree.map(lambda x: x + np.arange(x.size, dtype=np.float32).reshape(x.shape).astype(x.dtype), state)
    parts = [owned(agent, state, state.params, shard, 3) for shard in range(3)]
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(trained(agent, part.params))) for part in parts]
    assert min(sizes) > 0 and sum(sizes) == sum(leaf.size for leaf in jax.tree.leaves(trained(agent, state.params)))
    moments = [leaf.size for part in parts for leaf in jax.tree.leaves(part.optimizer) if leaf.ndim]
    assert sum(moments) == 2 * sum(sizes), "Adam's two, each cut as the parameters are"
    for one, other in ((whole_state(agent, parts, state), state), (joined([part.params for part in parts]), state.params)):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_bundles_push_pull_and_count_and_their_ledger_is_clean_after_a_resume() -> None:
    topology, agent = ParameterServer(num_envs=4, workers=2, shards=2, pull_every=3), built("dqn")
    driver = start(topology, agent)
    progress = until(driver, lambda p: p.updates >= 30)
    assert {*progress.items} == {edge.name for edge in topology.plan({"main": agent}, envs.spec_of(ENV)).edges}
    saved = checkpointed(progress.snapshot())
    driver.close()
    meters, items = saved["meters"], saved["meters"]["items"]
    state, updates = saved["policies"]["main"]["state"], int(saved["meters"]["updates"])
    assert state["updates"] == updates == items["batches"] and items["gradients"] == 2 * updates
    assert meters["trained_steps"] == 8 * updates
    pulls = items["parameters"] // 2
    assert 2 + updates // 3 - 2 <= pulls <= 4 + updates // 3, "one for three gradients of a bundle"
    each = 4 * sum(np.size(state[name]) for name in state if name.startswith(("params/", "slow/")))
    assert saved["pulls"]["bytes"] == pulls * each and saved["pulls"]["seconds"] > 0
    report = progress.report
    assert report["pull_megabytes"] > 0 and report["sample_reuse"] > 1 and report["replay/size"] > 0
    assert report["staleness_max"] >= 1 and report["shard_skew"] >= 0 and progress.lag_max > 0
    driver = start(topology, agent, snapshot=saved)
    later = until(driver, lambda p: p.updates >= updates + 10).snapshot()
    driver.close()
    assert later["policies"]["main"]["state"]["updates"] == later["meters"]["items"]["batches"] >= updates + 10


def test_old_gradients_are_discarded_and_the_rest_is_as_young_as_asked_for() -> None:
    topology = ParameterServer(num_envs=4, workers=4, shards=1, pull_every=4, max_staleness=2)
    driver = start(topology, built("dqn"))
    progress = until(driver, lambda p: p.report.get("gradients_discarded", 0) >= 5)
    saved = progress.snapshot()
    driver.close()
    assert progress.report["staleness_max"] <= 2
    updates, items = saved["meters"]["updates"], saved["meters"]["items"]
    assert items["batches"] == updates + saved["staleness"]["discarded"] and items["gradients"] == updates
    assert saved["policies"]["main"]["state"]["updates"] == updates


def test_an_outlier_is_discarded_once_and_a_lasting_rise_is_admitted_again() -> None:
    outliers = Outliers(4.0, warm_up=20)
    rng = np.random.default_rng(0)
    quiet = [outliers.admits({"loss/q": 1 + 0.1 * rng.normal(), "q": 1e9}) for _ in range(200)]
    assert sum(quiet) >= 199
    assert not outliers.admits({"loss/q": 50.0}) and not outliers.admits({"loss/q": -50.0})
    again = Outliers(4.0, outliers.snapshot(), warm_up=20)
    assert again.admits({"loss/q": 1.1}), "two outliers have not moved the mean"
    risen = [again.admits({"loss/q": 3.0}) for _ in range(200)]
    assert not risen[0] and all(risen[-50:])
    assert Outliers(None).admits({"loss": 1e30})
    assert again.report()["outliers_discarded"] == outliers.discarded + risen.count(False)


@pytest.mark.parametrize(
    "algorithm, words",
    [(PPO(), "no gradients.*A2C instead of PPO"), (DQN(gradient_steps=4), "no gradients.*--gradient-steps 1")],
)
def test_what_has_no_gradients_is_refused(algorithm: Any, words: str) -> None:
    config = resolve(algorithm, env=ENV, topology=ParameterServer())
    with pytest.raises(ConfigError, match=words):
        check(config, algorithm.build(envs.spec_of(ENV)), envs.spec_of(ENV))


def test_more_shards_than_leaves_are_refused() -> None:
    with pytest.raises(ValueError, match="--shards 99: the network has 4 leaves"):
        ParameterServer(shards=99).plan({"main": built("dqn")}, envs.spec_of(ENV))


@pytest.mark.parametrize("num_shards", [1, 2])
def test_normalisers_of_a_sharded_server_have_seen_every_gradients_batch(num_shards: int) -> None:
    """Every shard adds the statistics that travel with a gradient, and what is published is whole."""
    agent = agent_of(A2C(rollout_length=4, network=SMALL, normalise_observations=True, normalise_rewards=True))
    _, saved = follow(ParameterServer(num_envs=4, workers=2, shards=num_shards), agent, 6, save_at=6)
    state = saved["policies"]["main"]["state"]
    assert float(state["params/reward/count"]) == float(saved["meters"]["trained_steps"]), "each valid row once"
    assert float(state["params/observation/0/count"]) > 0
