"""A policy is loaded where its environment is not, and travels to other processes."""

import json
import multiprocessing
import pickle
import shutil
import sys
import warnings

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rookery
from rookery.run import checkpoint
from rookery.run.checkpoint import CheckpointError
from rookery.run.config import ConfigError
from rookery.run.directory import Run
from rookery.run.loading import check_same

PACKAGE = '''
import gymnasium, numpy as np
from gymnasium import spaces

class Hidden(gymnasium.Env):
    """Go where the arrow points; needs a package that others do not have."""

    observation_space = spaces.Dict(arrow=spaces.Discrete(3, start=1), place=spaces.Box(-5, 5, (2,), np.float64))
    action_space = spaces.Discrete(3, start=4)

    def _show(self):
        self.arrow = int(self.np_random.integers(1, 4))
        return {"arrow": self.arrow, "place": self.np_random.uniform(-1, 1, 2)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward, self.steps = float(action - 3 == self.arrow), self.steps + 1
        return self._show(), reward, self.steps == 8, False, {}

gymnasium.register("Hidden-v0", Hidden)
'''
OBSERVATION = {"arrow": 2, "place": np.array([0.5, -0.5])}
OPTIONS = {
    "num_envs": 4, "rollout_length": 4, "network": {"hidden": (4,)}, "eval_episodes": 1, "total_updates": 2,
    "env_processes": 0, "env_options": {"frame_stack": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """Two runs on an environment of a package, by its id and by its class, and after them the package is gone."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "hidden_package.py").write_text(PACKAGE)
    sys.path.insert(0, str(folder))
    import hidden_package

    runs = str(tmp_path_factory.mktemp("runs"))
    by_id = rookery.train("a2c", env="Hidden-v0", runs=runs, run="id", **OPTIONS)
    by_class = rookery.train("a2c", env=hidden_package.Hidden, runs=runs, run="class", **OPTIONS)
    sys.path.remove(str(folder))
    del sys.modules["hidden_package"], gymnasium.registry["Hidden-v0"]
    shutil.rmtree(folder)
    return {"id": by_id, "class": by_class}


def acts(policy):
    memory, actions = None, []
    for arrow in (1, 2, 3, 1):
        action, memory = policy(OBSERVATION | {"arrow": arrow}, memory)
        actions.append(int(action))
    return actions


@pytest.mark.parametrize("which", ["id", "class"])
def test_a_run_is_loaded_without_the_package_of_its_environment(hidden, which):
    result = hidden[which]
    policy = rookery.load(result.run)
    assert acts(policy) == acts(result.policy) and set(acts(policy)) <= {4, 5, 6}
    best = rookery.load(result.run, which="best")
    assert set(acts(best)) <= {4, 5, 6}


def test_a_checkpoint_that_does_not_say_its_spaces_needs_the_environment_and_says_so(hidden, tmp_path):
    run = shutil.copytree(hidden["id"].run, tmp_path / "old")
    path = checkpoint.newest(run / "checkpoints")[0]
    tree, meta = checkpoint.load(path)
    del meta["spec"]
    checkpoint.save(path, tree, meta=meta)
    with pytest.raises(ValueError, match="there is no environment 'Hidden-v0'") as error:
        rookery.load(run)
    assert "does not say its spaces" in error.value.__notes__[0]


class Known(gymnasium.Env):
    """Has the spaces of the hidden one."""

    observation_space = spaces.Dict(arrow=spaces.Discrete(3, start=1), place=spaces.Box(-5, 5, (2,), np.float64))
    action_space = spaces.Discrete(3, start=4)


def test_an_old_checkpoint_is_loaded_where_its_environment_can_be_made(hidden, tmp_path):
    path = checkpoint.newest(shutil.copytree(hidden["class"].run, tmp_path / "old") / "checkpoints")[0]
    tree, meta = checkpoint.load(path)
    checkpoint.save(path, tree, meta={name: value for name, value in meta.items() if name != "spec"})
    assert acts(rookery.load(path, env=Known)) == acts(hidden["class"].policy)
    with pytest.raises(ConfigError, match=r"env of its own.*env='.*hidden_package.py:Hidden'"):
        rookery.load(path)
    checkpoint.save(path, tree, meta=meta | {"spec": meta["spec"] | {"observation": {"os.system": "true"}}})
    with pytest.raises(CheckpointError, match=r"does not hold what its config says: .*unknown kind 'os.system'"):
        rookery.load(path)


def test_the_spaces_are_plain_json_in_every_checkpoint(hidden):
    checkpoints = Run.open(hidden["class"].run).checkpoints
    for path in (checkpoints / "best", checkpoint.newest(checkpoints)[0]):
        spec = checkpoint.read_meta(path)["spec"]
        assert json.loads(json.dumps(spec)) == spec and spec["pool"]["frame_stack"] == 2
        assert spec["raw"][1] == {"discrete": {"n": 3, "start": 4, "dtype": "int64"}}


def test_a_policy_is_not_evaluated_on_an_environment_that_has_changed(hidden):
    spec = rookery.load(hidden["id"].run).spec
    check_same(spec, spec, "Hidden-v0")
    with pytest.raises(ConfigError, match=r"Hidden-v0 is not what .* actions were Discrete\(3.*, they are Discrete\(4\) now"):
        check_same(spec, spec._replace(action=spaces.Discrete(4)), "Hidden-v0")


# ------------------------------------------------------------------------------------------------------- travelling


def played_elsewhere(policy, observations):
    """Play in another process; how, and with what in memory, it says too."""
    memory, actions = None, []
    for observation in observations:
        action, memory = policy(observation, memory)
        actions.append(int(action))
    return actions, int(policy.act(observations[0])), "hidden_package" in sys.modules


@pytest.mark.parametrize("packer", [pickle, cloudpickle])
def test_a_policy_is_pickled_without_its_environment(hidden, packer):
    for policy in (hidden["class"].policy, rookery.load(hidden["class"].run)):
        again = pickle.loads(packer.dumps(policy))
        assert acts(again) == acts(policy)
        policy.reset(seed=0)
        drawn = [policy.act(OBSERVATION) for _ in range(6)]
        assert [again.act(OBSERVATION) for _ in range(6)] == drawn, "it begins with its seed"


def test_a_policy_is_sent_to_a_process_that_was_started_anew(hidden):
    policy = rookery.load(hidden["id"].run, seed=5)
    observations = [OBSERVATION | {"arrow": arrow} for arrow in (1, 2, 3)]
    expected = played_elsewhere(policy, observations)
    with warnings.catch_warnings(), multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(played_elsewhere, (policy, observations)) == (*expected[:2], False)


def test_a_result_is_pickled_with_its_policy(hidden):
    assert acts(pickle.loads(pickle.dumps(hidden["id"])).policy) == acts(hidden["id"].policy)
