"""Anakin does what Sync does, in one program: the same rollouts, the same updates; and its state is all there is to save."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import envs
from rookery.algorithms.a2c import A2C
from rookery.algorithms.dqn import DQN
from rookery.algorithms.ppo import PPO
from rookery.algorithms.sac import SAC
from rookery.algorithms.vtrace import VTrace
from rookery.data.config import ReplayConfig
from rookery.envs.jax.env import JaxEnv
from rookery.envs.jax.sources import build
from rookery.networks import NetworkConfig
from rookery.run.config import ConfigError
from rookery.runtime.local import LocalRuntime
from rookery.testing import checkpointed
from rookery.topologies import anakin
from rookery.topologies.anakin import Anakin
from rookery.topologies.job import Job, Progress
from rookery.topologies.sync import Sync
from rookery.types import Agent, Learned
from rookery.workers.learning.nonfinite import NonFinite

SMALL, LSTM = NetworkConfig(hidden=(4,)), NetworkConfig(hidden=(4,), core="lstm", core_size=3)
REPLAY = ReplayConfig(capacity=160, min_size=40, samples_per_insert=2.0)  # 160 steps: it is overwritten within 11 rollouts


class Case(NamedTuple):
    env: str
    algorithm: Any


CASES = {
    "ppo": Case("jax:CartPole-v1", PPO(rollout_length=16, epochs=2, minibatches=2, normalise_observations=True,
                                       normalise_rewards=True, network=SMALL)),
    "vtrace-lstm": Case("jax:cue-recall", VTrace(rollout_length=8, previous=True, network=LSTM)),
    "a2c": Case("jax:catch", A2C(rollout_length=7, network=SMALL)),
    "dqn": Case("jax:catch", DQN(rollout_length=4, batch_size=16, n_step=2, epsilon_steps=400, target_period=3, network=SMALL,
                                 replay=REPLAY)),
}  # fmt: skip
ON_POLICY = [name for name, case in CASES.items() if not isinstance(case.algorithm, DQN)]


class Step(NamedTuple):
    """What one call left behind."""

    updates: int
    params: Any
    env_steps: int
    report: dict[str, float]


class Past(NamedTuple):
    steps: list[Step]
    episodes: list[tuple]
    saved: Any
    last: Progress


@cache
def agent_of(name: str) -> Agent:
    return CASES[name].algorithm.build(envs.spec_of(CASES[name].env), num_updates=20)


def run(
    topology: Any, name: str, updates: int, *, seed: int = 3, save_at: int | None = None, snapshot: Any = None,
    agent: Agent | None = None, env: Any = None,
) -> Past:  # fmt: skip
    env = env or CASES[name].env
    make = lambda num_envs, groups: envs.make(env, num_envs, groups=groups)
    agent = agent or agent_of(name)
    driver = topology.drive(Job(agent, envs.spec_of(env), make, LocalRuntime(), seed, env=env), snapshot)
    steps, episodes, saved = [], [], None  # type: list[Step], list[tuple], Any
    for progress in driver:
        episodes += map(tuple, progress.finished)
        if progress.snapshot is None:
            continue
        steps.append(Step(progress.updates, jax.tree.map(np.array, progress.params), progress.env_steps, progress.report))
        if progress.updates == save_at:
            saved = checkpointed(progress.snapshot())
        if progress.updates >= updates:
            break
    driver.close()
    return Past(steps, episodes, saved, progress)


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if ".lost" not in jax.tree_util.keystr(path):  # that is rounding itself
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------------------- equalities


@pytest.mark.parametrize("name", ON_POLICY)
def test_it_trains_as_sync_does_on_the_same_environments(name: str) -> None:
    one = run(Anakin(num_envs=4, updates_per_call=1), name, 5)
    two = run(Sync(num_envs=4), name, 5)
    assert [step.env_steps for step in one.steps] == [step.env_steps for step in two.steps]
    assert one.episodes == two.episodes and len(one.episodes) > 3
    for mine, other in zip(one.steps, two.steps, strict=True):
        near(mine.params, other.params)
    assert one.last.trained_steps == one.last.env_steps and one.last.lag_max == 0


@pytest.mark.parametrize("name", ["vtrace-lstm", "dqn"])
def test_many_updates_in_one_call_are_as_many_calls(name: str) -> None:
    single = run(Anakin(num_envs=4, updates_per_call=2), name, 12)
    many = run(Anakin(num_envs=4, updates_per_call=4), name, 12)
    assert [digest(s.params) for s in many.steps if s.updates] == [
        digest(s.params) for s in single.steps if s.updates in (4, 8, 12)
    ]
    assert many.episodes == single.episodes and many.last.env_steps == single.last.env_steps
    assert len({digest(step.params) for step in single.steps if step.updates}) == 6, "every update changes something"


@pytest.mark.parametrize("name", ["vtrace-lstm", "dqn"])
def test_a_run_that_is_restored_goes_on_bit_for_bit(name: str) -> None:
    topology = Anakin(num_envs=4, updates_per_call=4)
    whole = run(topology, name, 32, save_at=20)  # the ring of the DQN is full by then
    rest = run(topology, name, 32, snapshot=whole.saved)
    after = [step for step in whole.steps if step.updates > 20]
    assert [digest(step.params) for step in rest.steps] == [digest(step.params) for step in after] and len(after) == 3
    assert [step.report for step in rest.steps] == [step.report for step in after]
    assert rest.last.env_steps == whole.last.env_steps and rest.episodes == whole.episodes[-len(rest.episodes) :]


@pytest.mark.parametrize("name", ["dqn"])
def test_each_of_many_seeds_learns_what_it_would_alone(name: str) -> None:
    topology = Anakin(num_envs=4, num_seeds=3, updates_per_call=4)
    together = run(topology, name, 8, seed=5, save_at=8)
    alone = [run(Anakin(num_envs=4, updates_per_call=4), name, 8, seed=5 + n, save_at=8) for n in range(3)]
    near(together.last.params, alone[0].last.params)
    assert together.last.env_steps == sum(past.last.env_steps for past in alone)
    for number, past in enumerate(alone):
        mine = [(env - 4 * number, *rest) for env, *rest in together.episodes if env // 4 == number]
        assert mine == [tuple(episode) for episode in past.episodes] and mine
        states = {
            path: value[number] for path, value in together.saved["program"]["carry"].items() if path.startswith("state/")
        }
        near(states, {path: past.saved["program"]["carry"][path] for path in states})
        returns = [total for _, total, _ in mine][-100:]
        assert together.last.report[f"return_mean/seed_{number}"] == pytest.approx(np.mean(returns))
    rest = run(topology, name, 12, seed=5, snapshot=together.saved)
    assert digest(rest.last.params) == digest(run(topology, name, 12, seed=5).last.params)


def test_a_checkpoint_of_other_counts_is_refused_by_name() -> None:
    saved = run(Anakin(num_envs=4, updates_per_call=1), "a2c", 1, save_at=1).saved
    with pytest.raises(ValueError, match=r"--num-envs or --num-seeds: .*streams"):
        run(Anakin(num_envs=8), "a2c", 1, snapshot=saved)


# ------------------------------------------------------------------------------------------------------ replay


def test_a_ring_that_is_too_large_to_be_saved_is_filled_anew() -> None:
    case = CASES["dqn"]
    none = DQN(**{**vars(case.algorithm), "replay": ReplayConfig(**{**vars(REPLAY), "save_megabytes": 0})})
    agent = none.build(envs.spec_of(case.env))
    topology = Anakin(num_envs=4, updates_per_call=4)
    before = run(topology, "dqn", 8, save_at=8, agent=agent)
    assert before.saved["program"]["ring"] is None
    after = run(topology, "dqn", 12, snapshot=before.saved, agent=agent)
    assert [step.updates for step in after.steps] == [8, 12], "the first call only collects"
    assert after.steps[0].env_steps - before.last.env_steps >= 40 * 0.8
    assert digest(after.steps[0].params) == digest(before.last.params)


def test_sample_reuse_is_what_was_asked_for() -> None:
    last = run(Anakin(num_envs=4, updates_per_call=8), "dqn", 160).last
    collected = (160 / 2 + 3) * 16  # two updates pay for a rollout of 16 rows; three rollouts are the warm-up
    assert last.env_steps / collected == pytest.approx(7 / 8, abs=0.07), "one row in eight or so leads to a new episode"
    assert last.report["sample_reuse"] == pytest.approx(2.0, rel=0.1)
    assert 0 < last.lag_mean < last.lag_max <= 160


# ------------------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_the_edges_that_a_run_counts_are_those_that_it_declares(name: str) -> None:
    topology = Anakin(num_envs=4, num_seeds=2, updates_per_call=2)
    graph = topology.plan({"main": agent_of(name)}, envs.spec_of(CASES[name].env))
    past = run(topology, name, 4)
    assert set(past.last.items) == {edge.name for edge in graph.edges}
    assert all(edge.nbytes > 0 for edge in graph.edges)
    steps = 2 * 4 * CASES[name].algorithm.rollout_length
    assert graph.facts["steps per update"] == str(steps if name == "ppo" else steps // 2)
    assert topology.steps_per_update(CASES[name].algorithm) == float(graph.facts["steps per update"])


def test_it_gives_signs_of_life_while_a_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anakin, "TICK_SECONDS", 0.01)  # compiling takes longer
    spec = envs.spec_of("jax:catch")
    driver = Anakin(num_envs=4).drive(Job(agent_of("a2c"), spec, lambda *_: None, LocalRuntime(), 0, env="jax:catch"))  # type: ignore[arg-type, return-value]
    first = next(driver)
    driver.close()
    assert first.snapshot is None and first.updates == 0


# ------------------------------------------------------------------------------------------------- not a number


def test_an_update_that_is_not_finite_is_named_and_never_kept() -> None:
    agent = agent_of("a2c")

    def learn(state: Any, batch: Any, key: Any) -> Learned:
        learned = agent.learn(state, batch, key)
        bad = jnp.where(state.updates == 4, jnp.nan, 1.0)
        params = jax.tree.map(lambda x: x * bad, learned.state.params)
        return learned._replace(state=learned.state._replace(params=params))

    with pytest.raises(NonFinite, match=r"update 5 was not applied: parameters .*network/.* would have become non-finite"):
        run(Anakin(num_envs=4, updates_per_call=3), "a2c", 9, agent=agent._replace(learn=learn))


def test_an_environment_that_gives_what_is_no_number_is_named() -> None:
    catch = build("jax:catch")

    def step(state: Any, action: Any, key: Any) -> Any:
        after, answer = catch.step(state, action, key)
        return after, answer._replace(reward=jnp.where(answer.terminated, jnp.inf, answer.reward))

    env = JaxEnv(catch.spec, catch.reset, step)
    with pytest.raises(NonFinite, match=r"update \d was not applied: the data's reward holds .* \(seed 3\)"):
        run(Anakin(num_envs=4, num_seeds=2, updates_per_call=3), "a2c", 9, env=env)


# ----------------------------------------------------------------------------------------------------- refusals


def refusal(system: str, env: str = "jax:catch", **options: Any) -> str:
    from rookery.run.assemble import assemble
    from rookery.run.config import resolve

    topology = options.pop("topology", None)
    with pytest.raises(ConfigError) as caught:
        assemble(resolve(system, env=env, topology=topology, env_options=options.pop("env_options", {}), **options))
    return str(caught.value)


def test_what_cannot_be_compiled_into_the_program_is_refused_with_the_nearest_that_can() -> None:
    assert "use --env jax:CartPole-v1" in refusal("anakin-ppo", "CartPole-v1")
    assert "'identity' is not written in JAX" in refusal("anakin-ppo", "identity")
    assert "options of pools" in refusal("anakin-ppo", env_options={"reward_scale": 0.5})
    assert "use --replay.selector uniform" in refusal("rainbow", topology=Anakin())
    assert "use ActorLearner" in refusal("r2d2", topology=Anakin(), network={"core": "lstm"})
    assert "plain ring" in refusal("anakin-dqn", replay={"remover": "lifo"})
    uneven: dict[str, Any] = {"num_envs": 8, "rollout_length": 3, "batch_size": 16}  # 24 steps per rollout
    assert "--replay.samples-per-insert 4." in refusal("anakin-dqn", **uneven, replay={"samples_per_insert": 4.2})
    assert "use --replay.capacity 512 or more" in refusal("anakin-dqn", num_envs=64, rollout_length=4, batch_size=64,
                                                          replay={"capacity": 300})  # fmt: skip


def test_agents_that_need_the_host_or_whole_episodes_are_refused() -> None:
    agent, spec = agent_of("a2c"), envs.spec_of("jax:catch")
    assert "processes rollouts on the host" in str(Anakin().refuses(agent._replace(process=lambda p, r: (r, None)), spec))
    assert "use Evolution" in str(Anakin().refuses(agent._replace(needs=agent.needs._replace(whole_episodes=True)), spec))
    assert Anakin().refuses(agent, spec) is None


def test_a_call_of_large_gradient_steps_is_short_enough_to_hear_a_signal() -> None:
    agent = SAC().build(envs.spec_of("jax:Pendulum-v1"))
    table, asked = agent.needs.table, Anakin(updates_per_call=4096).pace(agent)
    assert table is not None and asked.turns * asked.updates == 4096, "whoever says how many gets them"
    for num_seeds in (1, 4):
        pace = Anakin(num_seeds=num_seeds).pace(agent)
        work = num_seeds * pace.turns * pace.updates * anakin.work_of_update(agent, table.batch_size)
        assert work < 2 * anakin.WORK_PER_CALL or pace.turns == 1
    long = Anakin(num_envs=4).pace(agent_of("dqn"))
    assert long.turns * long.rollouts * 4 * 4 >= 0.9 * anakin.STEPS_PER_CALL, "small networks are called as rarely as ever"


def test_one_device_is_all_it_takes() -> None:
    job = Job(agent_of("a2c"), envs.spec_of("jax:catch"), lambda *_: None, LocalRuntime(), 0, devices=2, env="jax:catch")  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="--devices 2"):
        next(Anakin().drive(job))
