"""Plans of the issues to come, run through the real engine: every part that moves here is the library's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from muzero_stub import MuZero
from plan_stubs import FromFile, League, Population, Refining
from qtopt_stub import QTOpt
from sac_stub import SAC

from rookery import envs, ops
from rookery.algorithms.qt_opt import QTOpt as LibraryQTOpt
from rookery.algorithms.vtrace import VTrace
from rookery.data.config import ReplayBuffer
from rookery.data.demonstrations import Demonstrations, Played, gather
from rookery.data.refined import RefinedBatch
from rookery.run import demonstrations
from rookery.run.assemble import assemble
from rookery.run.config import resolve
from rookery.run.show import describe
from rookery.run.trainer import Trainer
from rookery.runtime.local import LocalRuntime
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.topologies.meters import Meters
from rookery.topologies.parameter_server import ParameterServer
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.sync import Sync
from rookery.types import Agent, Batch, PyTree
from rookery.workers.learning.refiner import Refiner

ENV = "catch"


def drive(topology: Any, agent: Agent, *, env: Any = ENV, snapshot: PyTree | None = None, **job: Any) -> Iterator[Progress]:
    make = lambda num_envs, groups: envs.make(env, num_envs, groups=groups)
    return topology.drive(Job(agent, envs.spec_of(env), make, LocalRuntime(), 0, **job), snapshot)


def after(driver: Iterator[Progress], updates: int) -> Progress:
    return next(progress for progress in driver if progress.updates >= updates)


def built(algorithm: Any, env: Any = ENV) -> Agent:
    return algorithm.build(envs.spec_of(env), num_updates=100)


# --------------------------------------------------------------------------------------------- the plan as a value


def test_a_plan_with_a_name_twice_or_an_edge_to_nowhere_is_refused() -> None:
    one, edge = Node(name="a"), Edge("e", "a", "a", "request", 1, "waits")
    assert Plan((one,), (edge,), {}).checked().counts == {"a": 1}
    with pytest.raises(ValueError, match="nodes have names of their own, and a stands there twice"):
        Plan((one, one), (), {}).checked()
    with pytest.raises(ValueError, match="edges have names of their own"):
        Plan((one,), (edge, edge), {}).checked()
    with pytest.raises(ValueError, match="there is no node 'b'"):
        Plan((one,), (edge._replace(target="b"),), {}).checked()


def test_fleets_of_one_role_are_reserved_together() -> None:
    agent = built(VTrace(rollout_length=4))
    plan = League().plan(dict.fromkeys(League.policies, agent), envs.spec_of(ENV))
    assert plan.fleets == {"collector": (3, 3)} and plan.agents == League.policies
    assert plan.between("queue/exploiter", "learner/exploiter").name == "batches/exploiter"
    assert {edge.name for edge in plan.out_of("learner")} == {"parameters"}


@pytest.mark.parametrize("system", ["impala", "apex-dqn", "seed", "a3c", "gorila", "gala", "es", "sample-factory", "r2d2"])
def test_what_is_shown_is_the_plan_that_is_launched(system: str) -> None:
    cfg = resolve(system, env="CartPole-v1")
    plan = assemble(cfg).plan
    values, text = describe(cfg)
    assert values["nodes"] == plan.counts and [edge["name"] for edge in values["edges"]] == [e.name for e in plan.edges]
    assert all(node.name in text for node in plan.nodes) and all(edge.kind in text for edge in plan.edges)


def test_counting_an_edge_that_no_plan_has_is_an_error() -> None:
    meters = Meters.of(Sync(num_envs=2).plan({MAIN: built(VTrace(rollout_length=4))}, envs.spec_of(ENV)))
    with pytest.raises(KeyError, match="no edge of the plan: batches, parameters, rollouts"):
        meters.moved("gossip")


# ------------------------------------------------------------------------ an actor and a critic, each with its own loss


@pytest.mark.parametrize("topology", [Sync(num_envs=2), ActorLearner(num_envs=2, groups=1)])
def test_actor_critic_and_temperature_are_trained_by_the_ordinary_loop(topology: Any) -> None:
    agent = built(SAC(), "Pendulum-v1")
    driver = drive(topology, agent, env="Pendulum-v1")
    first = next(driver).params
    progress = after(driver, 5)
    assert {"loss/actor", "loss/critic", "loss/temperature"} <= set(progress.report)
    for name in agent.trained or ():
        before, now = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(p[name])]) for p in (first, progress.params))
        assert not np.array_equal(before, now), f"{name} has not moved"
    driver.close()  # type: ignore[attr-defined]


def test_three_optimizers_are_divided_among_shards_and_joined_again() -> None:
    """One bundle and three shards are one shard, to the rounding of two programs."""
    ends = {}
    for shards in (1, 3):
        driver = drive(ParameterServer(num_envs=2, workers=1, shards=shards), built(SAC(), "Pendulum-v1"), env="Pendulum-v1")
        progress = after(driver, 5)
        assert progress.snapshot is not None
        saved = progress.snapshot()
        driver.close()  # type: ignore[attr-defined]
        ends[shards] = (progress.updates, progress.params, saved["policies"][MAIN]["state"])
        other = ParameterServer(num_envs=2, workers=1, shards=4 - shards)
        driver = drive(other, built(SAC(), "Pendulum-v1"), env="Pendulum-v1", snapshot=saved)
        assert after(driver, progress.updates + 3).updates > progress.updates, "one number of shards goes on with another's"
        driver.close()  # type: ignore[attr-defined]
    assert ends[1][0] == ends[3][0]
    for one, three in zip(*(jax.tree.leaves(ends[shards][1:]) for shards in (1, 3))):
        np.testing.assert_allclose(one, three, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- refiners between tables


@pytest.fixture(scope="module")
def episodes() -> Demonstrations:
    """Played at random."""
    pool, rng = envs.make(ENV, 1), np.random.default_rng(0)
    step, played = pool.reset(0), []
    for _ in range(12):
        seen, done, given, ends = [step.observation[0].copy()], [], [], []
        while True:
            action = rng.integers(0, 3, 1).astype(np.int32)
            pool.send(action)
            step = pool.recv()
            seen.append(step.observation[0].copy())
            done.append(action[0])
            given.append(step.reward[0])
            ends.append(1.0 - step.terminated[0])
            if step.terminated[0] or step.truncated[0]:
                break
        played.append(Played(np.stack(seen), np.array(done), np.array(given, np.float32), np.array(ends, np.float32)))
        pool.send(action)
        step = pool.recv()
    pool.close()
    return gather(played, envs.spec_of(ENV))


def test_one_refiner_without_lag_gives_what_targets_in_the_learner_give(episodes: Demonstrations) -> None:
    """Bit for bit, with priorities that go back through the refined batch's keys: another draw would show."""
    runs = {}
    for refiners in (0, 1):
        driver = drive(FromFile(refiners=refiners), built(QTOpt(labelled=bool(refiners))), shown=episodes)
        progress = after(driver, 20)
        runs[refiners] = np.asarray(progress.params["w"])
        if refiners:
            counted = {name: progress.items[name] for name in ("drawn", "refined", "batches", "priorities")}
            assert progress.env_steps == 0 and counted["batches"] == counted["priorities"] == progress.updates
            assert counted["drawn"] == counted["refined"] >= progress.updates
        driver.close()  # type: ignore[attr-defined]
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], np.zeros_like(runs[0]))


def test_one_bellman_updater_without_lag_labels_as_qt_opt_itself_would() -> None:
    """Twenty updates in lock-step from a file, with the same random numbers on either side."""
    algorithm = LibraryQTOpt(
        batch_size=8, gradient_steps=1, samples=8, elites=2, network=_small(), replay=ReplayBuffer(capacity=400, min_size=40)
    )
    agent, key, env = built(algorithm, "point-reach"), ops.random.key(4), "point-reach"
    rng = np.random.default_rng(0)
    act = lambda now: rng.uniform(-1, 1, (5, 2)).astype(np.float32)
    logged = gather(demonstrations.play(env, act, episodes=5), envs.spec_of(env))
    alike = agent._replace(
        learn=lambda state, batch, _: agent.learn(state, batch, key),
        refine=lambda params, slow, batch, _: agent.refine(params, slow, batch, key),  # type: ignore[misc]
    )
    ends = {}
    for refiners in (0, 1):
        driver = drive(FromFile(refiners=refiners), alike, env=env, shown=logged)
        progress = after(driver, 20)
        ends[refiners], begun = progress, alike.init(ops.random.key(0)).params
        driver.close()  # type: ignore[attr-defined]
    assert ends[0].updates == ends[1].updates == 20 and ends[1].report["refined/lag_max"] == 0
    one, other = (jax.tree.leaves(ends[refiners].params) for refiners in (0, 1))
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6, rtol=1e-5)
    assert any(not np.allclose(x, y) for x, y in zip(one, jax.tree.leaves(begun), strict=True))


def test_collectors_refiners_and_learner_run_beside_each_other_and_every_edge_is_counted() -> None:
    topology, agent = Refining(refiners=2, uses=2), built(QTOpt())
    driver = drive(topology, agent)
    progress = after(driver, 12)
    assert set(progress.items) == {edge.name for edge in topology.plan({MAIN: agent}, envs.spec_of(ENV)).edges}
    assert progress.workers["refiners"] == 2 and progress.report["refined/batches"] * 2 >= progress.updates
    assert progress.snapshot is not None
    saved = progress.snapshot()
    assert 2 * int(saved["tables"]["refined"]["refined"]) == int(saved["tables"]["refined"]["learned"]), "each is used twice"
    driver.close()  # type: ignore[attr-defined]
    driver = drive(topology, agent, snapshot=saved)
    meters = saved["meters"]  # it learns at once, and collects a little later
    assert next(p for p in driver if p.updates > int(meters["updates"]) + 4 and p.env_steps > int(meters["env_steps"]))
    driver.close()  # type: ignore[attr-defined]


class Boards(gymnasium.Env[Any, Any]):
    """Nine cells, of which one is won; `state` is for searches on true rules and is not stored."""

    observation_space = Dict({"board": Box(-1.0, 1.0, (9,)), "state": Box(-1.0, 1.0, (2, 2))})
    action_space = Discrete(9)

    def __init__(self) -> None:
        self.moves = 0

    def _seen(self) -> Any:
        board = np.full(9, self.moves / 9, np.float32)
        return {"board": board, "state": np.full((2, 2), 0.5, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.moves = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.moves += 1
        return self._seen(), float(action == 4), self.moves == 7, False, {}


def test_muzero_is_searched_stored_and_learned_by_the_ordinary_parts() -> None:
    """`process` drops a leaf, declared extras are stored and sampled as sequences."""
    agent = built(MuZero(), Boards)
    driver = drive(Sync(num_envs=2), agent, env=Boards)
    progress = after(driver, 5)
    assert progress.report["loss"] > 0 and progress.items["priorities"] == progress.updates
    driver.close()  # type: ignore[attr-defined]


def test_reanalyze_with_unchanged_parameters_gives_the_targets_that_were_stored() -> None:
    agent = built(MuZero(), Boards)
    seen: list[Batch] = []

    class Watched(Refiner):
        def refine(self, *batches: Batch) -> RefinedBatch:
            (batch,) = batches
            made = super().refine(batch)
            fresh = np.asarray(batch.rollout.version) == made.version
            if fresh.all():
                seen.append(batch)
                new, old = made.batch.rollout.extras, batch.rollout.extras
                for name in ("visits", "root_value"):
                    np.testing.assert_allclose(new[name], old[name], rtol=1e-5, atol=1e-6)
            assert np.array_equal(made.batch.key, batch.key)
            return made

    runtime = LocalRuntime()
    spawn = runtime.spawn
    runtime.spawn = lambda worker, *a, **k: spawn(Watched if worker is Refiner else worker, *a, **k)  # type: ignore[method-assign]
    make = lambda num_envs, groups: envs.make(Boards, num_envs, groups=groups)
    still = agent._replace(learn=lambda state, batch, key: agent.learn(state, batch, key)._replace(
        state=state._replace(updates=state.updates + 1)))  # fmt: skip
    driver = Refining(num_envs=2, refiners=1, slots=1).drive(Job(still, envs.spec_of(Boards), make, runtime, 0))
    after(driver, 6)
    driver.close()  # type: ignore[attr-defined]
    versions = {int(v) for batch in seen for v in np.unique(batch.rollout.version)}
    assert seen and versions, "no batch was played by the parameters that searched it again"


# ---------------------------------------------------------------------------------------------- several policies


def test_three_learners_of_a_league_have_their_own_queue_version_evaluation_and_place_in_a_snapshot(tmp_path: Any) -> None:
    options: Any = dict(rollout_length=8, network={"hidden": (8,)}, eval_episodes=2, runs=str(tmp_path), total_steps=10**6)
    with Trainer(VTrace(), env="CartPole-v1", topology=League(), **options) as trainer:
        names = League.policies
        while any(trainer.advance().policies[name].version < 3 for name in names):
            assert trainer.progress.env_steps < 50_000
        progress = trainer.progress
        assert all(progress.items[f"batches{suffix}"] >= 3 for suffix in ("", "/exploiter", "/league-exploiter"))
        trainer.evaluate()
        assert set(trainer.eval_of_others) == {"exploiter", "league-exploiter"}
        assert "eval_return_mean/exploiter" in trainer.metrics() and "exploiter/loss/policy" in progress.report
        trainer.save()
        saved = progress.snapshot()
        assert set(saved["policies"]) == set(names) == set(progress.policies)
        flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(progress.policies[name].params)]) for name in names]
        assert not np.allclose(flat[0], flat[1]) and not np.allclose(flat[1], flat[2]), "they are three"


def test_a_population_copies_the_best_and_changes_rates_without_a_compilation() -> None:
    agent = built(VTrace(rollout_length=4, network=_small()), "CartPole-v1")
    driver = drive(Population(), agent, env="CartPole-v1")
    before = after(driver, 3)
    assert after(driver, 9).items["scores"] > before.items["scores"]
    driver.close()  # type: ignore[attr-defined]


def _small() -> Any:
    from rookery.networks import NetworkConfig

    return NetworkConfig(hidden=(8,))


# ------------------------------------------------------------------------------------------------------ from a file


def test_a_job_without_collectors_learns_from_a_file_and_goes_on_with_the_same_draws(episodes: Demonstrations) -> None:
    agent = built(QTOpt(labelled=False))
    driver = drive(FromFile(), agent, shown=episodes)
    progress = after(driver, 10)
    assert progress.snapshot is not None and progress.env_steps == 0 and progress.items == {"batches": progress.updates}
    saved = progress.snapshot()
    done = int(saved["meters"]["updates"])
    whole = {}
    for progress in driver:
        whole[progress.updates] = np.asarray(progress.params["w"])
        if progress.updates >= done + 8:
            break
    driver.close()  # type: ignore[attr-defined]
    driver = drive(FromFile(), agent, shown=episodes, snapshot=saved)
    for progress in driver:
        if progress.updates in whole:
            assert np.array_equal(whole[progress.updates], np.asarray(progress.params["w"]))
        if progress.updates >= done + 8:
            break
    driver.close()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="there is no file to read it from"):
        next(drive(FromFile(), agent))


# --------------------------------------------------------------------------------- a row's weight, from act to learn


def test_the_weight_that_act_gives_reaches_the_learner_through_queue_and_replay() -> None:
    for algorithm in (VTrace(rollout_length=4, network=_small()), QTOpt(labelled=False)):
        agent, seen = built(algorithm), []  # type: Agent, list[Any]

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Any, explore: PyTree, agent: Agent = agent) -> Any:
            decision = agent.act(params, observation, memory, key, explore)
            return decision._replace(weight=jax.numpy.full(decision.action.shape[:1], 0.5))

        def learn(state: Any, batch: Batch, key: Any, agent: Agent = agent, seen: list[Any] = seen) -> Any:
            jax.debug.callback(seen.append, batch.rollout.weight)
            return agent.learn(state, batch, key)

        driver = drive(ActorLearner(num_envs=2, groups=1), agent._replace(act=act, learn=learn))
        after(driver, 3)
        driver.close()  # type: ignore[attr-defined]
        jax.effects_barrier()
        rows = [np.asarray(weight) for weight in seen if np.any(weight)]  # not those of the warm-up
        assert rows and all(np.all(weight == 0.5) for weight in rows)


def test_a_table_that_is_to_store_what_nobody_writes_is_refused() -> None:
    agent = built(QTOpt(labelled=False))
    table = agent.needs.table._replace(extras=("visits",))
    with pytest.raises(ValueError, match="to store the extras visits, and a rollout has none"):
        next(drive(Sync(num_envs=2), agent._replace(needs=agent.needs._replace(table=table))))
