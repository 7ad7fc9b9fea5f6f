"""rookery.train, Trainer and rookery.load, as a Python user meets them."""

import dataclasses
import json
import shutil
import warnings
from pathlib import Path
from typing import ClassVar

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import rookery
from rookery import envs
from rookery.algorithms.a2c import A2C
from rookery.algorithms.vtrace import VTrace
from rookery.commands import status, train
from rookery.data.files import Gone
from rookery.networks import NetworkConfig
from rookery.run import api, checkpoint
from rookery.run.checkpoint import CheckpointError
from rookery.run.config import ConfigError, resolve
from rookery.run.directory import Run
from rookery.topologies.sync import Sync
from rookery.workers.acting.policy import Policy
from rookery.workers.learning.nonfinite import NonFinite

SMALL = {"num_envs": 8, "rollout_length": 8, "network": {"hidden": (8,)}, "eval_episodes": 2}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """One finished run that the tests look at; none may change it."""
    runs = str(tmp_path_factory.mktemp("runs"))
    return rookery.train(
        "impala", env="identity", total_steps=1000, checkpoint_every=5, runs=runs, run="r", **SMALL, in_flight=1
    )


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_train_returns_the_metrics_and_the_policy(result):
    assert result.status == "done" and result.metrics["env_steps"] >= 1000 and result.reason == "trained for 1,000 steps"
    assert result.metrics["trained_steps"] == result.metrics["env_steps"], "what was in flight was learned from"
    action, memory = result.policy(1)
    assert action in range(4)
    action, _ = result.policy(1, memory)


def test_a_loaded_run_is_the_policy_that_training_returned(result):
    policy = rookery.load(result.run)
    assert jax.tree.leaves(policy.params) and all(isinstance(x, np.ndarray) for x in jax.tree.leaves(policy.params))
    same(policy.params, result.policy.params)
    assert [policy(i)[0] for i in range(3)] == [result.policy(i)[0] for i in range(3)]
    newest = checkpoint.newest(_checkpoints(result.run))[0]
    same(rookery.load(newest).params, policy.params)
    oldest = checkpoint.listed(_checkpoints(result.run))[-1]
    with pytest.raises(AssertionError):
        same(rookery.load(oldest).params, policy.params)


def test_a_damaged_checkpoint_is_refused_and_the_newest_valid_one_taken_with_a_warning(result, tmp_path):
    run = shutil.copytree(result.run, tmp_path / "r")
    newest, second = checkpoint.listed(_checkpoints(run))[:2]
    data = next(newest.glob("arrays-*"))
    flipped = bytearray(data.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    data.write_bytes(flipped)
    with pytest.raises(CheckpointError, match=newest.name):
        rookery.load(newest)
    with pytest.warns(UserWarning, match=rf"{second.name} is used instead.*{newest.name}"):
        policy = rookery.load(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(policy.params, rookery.load(second).params)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        rookery.load(run)


def test_a_trainer_is_stepped_saved_and_restored_and_counts_on(tmp_path):
    options = {"env": "identity", "runs": str(tmp_path), "total_steps": 10_000, **SMALL}
    with rookery.Trainer("a2c", **options) as trainer:
        for progress in trainer:
            if progress.updates == 6:
                break
        path, mean = trainer.save(), trainer.return_mean
        assert mean is not None and path.is_dir()
    result = json.loads((path.parents[1] / "result.json").read_text())
    assert result["status"] == "stopped" and result["updates"] == 6, "closed without finish(): it says so"
    with rookery.Trainer("a2c", **options) as again:
        again.restore(path)
        assert again.return_mean == mean and again.returns.episodes == progress.episodes
        after = next(p for p in again if p.updates != 6)  # before it, signs of life only
        assert after.updates == 7 and after.episodes >= progress.episodes
        assert progress.env_steps < after.env_steps <= progress.env_steps + 64
        assert again.run.path != path.parents[1], "a restored trainer writes a run of its own"


def test_a_checkpoint_whose_chunks_went_with_their_shard_is_made_anew_from_another_snapshot(tmp_path, monkeypatch):
    write, given = checkpoint.write, []

    def lossy(directory, contents):
        given.append(contents)
        if len(given) == 1:
            raise Gone("chunk of a replay's shard: shard-1 is gone")
        return write(directory, contents)

    monkeypatch.setattr(checkpoint, "write", lossy)
    with rookery.Trainer("a2c", env="identity", runs=str(tmp_path), total_steps=10_000, **SMALL) as trainer:
        next(iter(trainer))
        path = trainer.save()
    assert len(given) == 2 and given[0].placed[0].array is not given[1].placed[0].array
    checkpoint.verify(path)


def test_a_checkpoint_of_something_else_is_refused(result, tmp_path):
    with pytest.raises(ConfigError, match="of the system 'impala', not of 'a2c'"):
        rookery.Trainer("a2c", env="identity", runs=str(tmp_path), **SMALL).restore(result.run)
    with pytest.raises(ConfigError, match="of the env 'identity', not of 'catch'"):
        rookery.Trainer("impala", env="catch", runs=str(tmp_path), **SMALL).restore(result.run)
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_combination_is_refused_before_anything_is_made(tmp_path):
    from rookery.algorithms.ppo import PPO
    from rookery.topologies.actor_learner import ActorLearner

    with pytest.raises(ConfigError, match="use Sync"):
        rookery.Trainer(PPO(), env="identity", topology=ActorLearner(), runs=str(tmp_path / "runs"))
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------- the policy's actions


class Odd(gymnasium.Env):
    """Spaces as environments have them: actions from 5, an observation that is a dict."""

    observation_space: ClassVar[spaces.Space] = spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Discrete(4, start=2)})
    action_space: ClassVar[spaces.Space] = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 1.0, False, False, {}


class Reach(Odd):
    action_space: ClassVar[spaces.Space] = spaces.Box(-0.01, 0.01, (2,))


def untrained(algorithm, env):
    spec = envs.spec_of(env)
    agent = algorithm.build(spec)
    return Policy(agent, spec, agent.init(jax.random.key(1)).params)


@pytest.mark.parametrize("env", [Odd, Reach])
def test_a_policy_takes_and_gives_what_the_environment_does(env):
    policy, made = untrained(A2C(network=NetworkConfig(hidden=(4,))), env), env()
    observation, _ = made.reset(seed=0)
    memory, seen = None, []
    for _ in range(10):
        action, memory = policy(observation, memory, explore=1.0)
        observation, *_ = made.step(action)  # checks the action's space
        seen.append(action)
    assert len({str(action) for action in seen}) > 1, "explore=1 samples"
    greedy = {str(policy(observation)[0]) for _ in range(5)}
    assert len(greedy) == 1


def test_a_memory_is_carried_from_step_to_step_and_none_starts_an_episode():
    network = NetworkConfig(hidden=(4,), core="lstm", core_size=4)
    policy = untrained(VTrace(network=network, previous=True), Odd)
    observation = {"a": np.ones(3, np.float32), "b": 2}
    _, first = policy(observation)
    _, second = policy(observation, first, reward=1.0)
    _, again = policy(observation)
    same(first, again)
    with pytest.raises(AssertionError):
        same(first, second)


# ---------------------------------------------------------------------------------------------------- not a number


class Explodes(Odd):
    """Gives a reward that no loss can square, after a while."""

    observation_space: ClassVar[spaces.Space] = spaces.Discrete(2)
    steps = 0

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1e30 if self.steps > 40 else 1.0, self.steps % 5 == 0, False, {}


def exploding(tmp_path, **options):
    return rookery.Trainer(
        "a2c", env=Explodes, runs=str(tmp_path), run="boom", checkpoint_every=1, num_envs=2, rollout_length=8,
        network={"hidden": (4,)}, total_steps=10_000, keep=50, **{"normalise_rewards": False} | options,
    )  # fmt: skip


def test_rewards_too_large_for_their_running_moments_are_named(tmp_path):
    words = r"moments of the rewards .* as large as 1e\+30.*--normalise-rewards False"
    with pytest.raises(NonFinite, match=words), exploding(tmp_path, normalise_rewards=True) as trainer:
        for _ in trainer:
            pass


def test_a_loss_that_is_not_finite_ends_the_command_with_4_and_the_last_good_checkpoint_intact(tmp_path, capsys):
    trainer = exploding(tmp_path)
    with trainer, pytest.raises(SystemExit) as left:
        train.run_to_the_end(trainer, True)
    assert left.value.code == status.DIVERGED == 4
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    last = checkpoint.newest(_checkpoints(tmp_path / "boom"))[0]
    update = int(last.name.split("-")[1])
    assert f"update {update + 1} was not applied" in err and "loss/value" in err and f"Last good checkpoint: {last}" in err
    policy = rookery.load(tmp_path / "boom", env=Explodes)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(policy.params))
    result = json.loads((tmp_path / "boom" / "result.json").read_text())
    assert result["status"] == "failed" and "loss/value" in result["reason"]


def test_in_python_a_loss_that_is_not_finite_is_an_error_and_the_run_says_so(tmp_path):
    trainer = exploding(tmp_path)
    with pytest.raises(NonFinite, match="loss/value became"), trainer:
        for _ in trainer:
            pass
    assert np.isfinite(jax.tree.leaves(trainer.progress.params)[0]).all()
    assert json.loads((tmp_path / "boom" / "result.json").read_text())["status"] == "failed"
    assert rookery.load(tmp_path / "boom")(1)[0] in range(5, 8), "the environment is not needed: its spaces are saved"


def _checkpoints(run):
    return Path(run) / "checkpoints"


def test_lost_collectors_end_the_command_with_7_the_last_good_checkpoint_and_the_command_that_goes_on(tmp_path, capsys):
    from rookery.runtime.interface import WorkerLost

    trainer = rookery.Trainer(
        "a2c", env="CartPole-v1", runs=str(tmp_path), run="lost", num_envs=2, rollout_length=8, network={"hidden": (4,)}
    )
    with trainer, pytest.raises(SystemExit) as left:
        trainer.advance()
        last = trainer.save()
        trainer.advance = lambda: (_ for _ in ()).throw(WorkerLost("the head is silent"))
        train.run_to_the_end(trainer, True)
    assert left.value.code == 7
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("rookery: the head is silent\n")
    assert f"Last good checkpoint: {last}. Go on with: rookery resume {tmp_path / 'lost'}" in err
    result = json.loads((tmp_path / "lost" / "result.json").read_text())
    assert result["status"] == "failed" and "the head is silent" in result["reason"]


def test_a_run_ends_after_so_many_updates_and_is_given_more(tmp_path):
    options = {"env": "identity", "runs": str(tmp_path), "run": "r", "total_updates": 7, **SMALL}
    result = rookery.train("a2c", **options)
    assert (result.metrics["updates"], result.reason) == (7, "made 7 updates")
    config = resolve("a2c", **options)
    assert config.num_updates == 7, "schedules end with the run"
    run = Run.open("r", str(tmp_path))
    with pytest.raises(ConfigError, match=r"all of its 7 updates.*--total-updates 14"):
        api.continued(run, config)
    longer = dataclasses.replace(config, run=dataclasses.replace(config.run, total_updates=9))
    with api.continued(run, longer) as trainer:
        for _ in trainer:
            pass
        assert trainer.finish().metrics["updates"] == 9


class OwnSync(Sync):
    """A topology of a user's own."""


def test_a_run_with_a_topology_of_its_own_is_loaded_when_it_is_passed_again(tmp_path):
    result = rookery.train("a2c", env="identity", topology=OwnSync(), total_steps=200, runs=str(tmp_path), run="r", **SMALL)
    with pytest.raises(ConfigError, match=r"topology of its own.*rookery.load\(run, topology='.*:OwnSync'\)"):
        rookery.load(result.run)
    same(rookery.load(result.run, topology=OwnSync()).params, result.policy.params)
