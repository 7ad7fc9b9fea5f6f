"""`rookery doctor ENV` finds what an environment breaks, says it in a sentence with a remedy, and raises nothing."""

import functools

import bad_envs
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery.envs import examination


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(examination, "PLAY_STEPS", 150)
    monkeypatch.setattr(examination, "QUICK_STEPS", 300)


def examined(env, **options):
    """What is told: the findings, and the rest by its kind."""
    found, rest = [], {}

    def tell(kind, what):
        if kind == "finding":
            found.append(examination.Finding(**what))
        else:
            rest.setdefault(kind, []).append(what)

    examination.examine(env, options, tell)
    return found, rest


def faulty(wrong):
    return functools.partial(bad_envs.Faulty, wrong)


def worse(found):
    return [finding for finding in found if finding.level != "ok" and finding.part != "pictures"]


class Unbuildable(bad_envs.Counter):
    def __init__(self) -> None:
        raise ValueError("no licence")


class Drawing(bad_envs.Counter):
    """Draws from a generator of its own after the first observation."""

    random = np.random.default_rng(0)

    def _seen(self):
        return np.array([self.number, self.random.random() if self.steps else 0], np.float32)


class Unlike(bad_envs.Counter):
    """Holds something that differs between environments, whatever the seed."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Unlike.made += 1
        self.own = Unlike.made

    def _seen(self):
        return np.array([self.number, self.own], np.float32)


class Words(bad_envs.Counter):
    observation_space = gs.Text(5)


class Endless(bad_envs.Counter):
    def __init__(self) -> None:
        super().__init__(length=10**9)


class NoChoice(gymnasium.Env):
    observation_space = gs.Dict(action_mask=gs.MultiBinary(3), seen=gs.Box(0, 1, (2,), np.float32))
    action_space = gs.Discrete(3)
    legal = (0, 0, 0)

    def _seen(self):
        return {"action_mask": np.array(self.legal, np.int8), "seen": np.zeros(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        return self._seen(), {}

    def step(self, action):
        assert any(self.legal) is False or self.legal[action], f"illegal {action}"
        return self._seen(), 1.0, True, False, {}


class OneChoice(NoChoice):
    legal = (0, 1, 0)


class TwoChoices(NoChoice):
    """A mask of several choices: the parts beside each other."""

    observation_space = gs.Dict(action_mask=gs.MultiBinary(5), seen=gs.Box(0, 1, (2,), np.float32))
    action_space = gs.MultiDiscrete([2, 3])
    legal = (0, 1, 0, 0, 1)

    def step(self, action):
        assert tuple(action) == (1, 2), f"illegal {action}"
        return self._seen(), 1.0, True, False, {}


FAULTS = {
    "made": (Unbuildable, "made", "problem", "no licence (test_examination.py:"),
    "space": (Words, "spaces", "problem", "Text"),
    "old reset": (bad_envs.OldReset, "calls", "problem", "(observation, info) is expected"),
    "reset raises": (bad_envs.ResetRaises, "calls", "problem", "ValueError: no second chance (bad_envs.py:"),
    "spaces change": (bad_envs.Growing, "calls", "problem", "spaces changed"),
    "raises": (faulty("raises"), "calls", "problem", "OSError: the simulator is gone (bad_envs.py:"),
    "leaves": (faulty("leaves"), "calls", "problem", "SystemExit: goodbye"),
    "old step": (faulty("old interface"), "calls", "problem", "terminated, truncated, info) is expected"),
    "nothing": (faulty("nothing"), "calls", "problem", "returned None"),
    "reward": (faulty("reward"), "calls", "problem", "the reward is None"),
    "flag": (faulty("flag"), "calls", "problem", "terminated is 'yes'"),
    "shape": (faulty("shape"), "calls", "problem", "shape (3,)"),
    "type": (faulty("dtype"), "calls", "problem", "complex"),
    "NaN": (faulty("NaN"), "observations", "problem", "is nan at [1], step 3"),
    "index": (bad_envs.Index, "calls", "problem", "outside of its space"),
    "bounds": (bad_envs.Beyond, "observations", "note", "outside of its space"),
    "aliasing": (bad_envs.Reusing, "observations", "note", "the same array is given again"),
    "seed": (bad_envs.Seedless, "seeds", "problem", "reset(seed) is ignored"),
    "determinism": (Drawing, "seeds", "problem", "part at step 1"),
    "two of them": (Unlike, "seeds", "problem", "two environments with one seed differ"),
    "no action": (NoChoice, "mask", "problem", "leaves no action"),
}


@pytest.mark.parametrize("env, part, level, said", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_once_with_a_remedy(env, part, level, said):
    found, rest = examined(env)
    (fault,) = worse(found)
    assert (fault.part, fault.level) == (part, level) and said in fault.text and fault.remedy, found
    assert "Traceback" not in fault.text and "refused" not in rest


def test_a_good_environment_has_no_fault_and_its_facts_are_told():
    found, rest = examined(bad_envs.Counter)
    assert not worse(found)
    facts = {name: value for fact in rest["fact"] for name, value in fact.items()}
    assert facts["actions"] == "discrete" and facts["length"] == 5 and 0 < facts["step_seconds"] < 1e-3
    said = {finding.part: finding.text for finding in found}
    assert "0 terminated, 30 truncated" in said["episodes"] and "the same seed gives the same episode" in said["seeds"]
    assert "steps/s" in said["speed"] and "stepped one by one" in said["pool"]


@pytest.mark.parametrize("env", [OneChoice, TwoChoices])
def test_masks_are_obeyed_and_illegal_actions_never_tried(env):
    found, rest = examined(env)
    assert not worse(found), found
    assert next(finding for finding in found if finding.part == "mask").level == "ok"
    assert any(fact.get("mask") for fact in rest["fact"])


def test_episodes_without_an_end_and_rewards_that_never_come_are_told(monkeypatch):
    monkeypatch.setattr(examination, "ENDLESS", 100)
    monkeypatch.setattr(examination, "SPARSE", 100)
    parts = [(finding.part, finding.level) for finding in worse(examined(Endless)[0])]
    assert parts == [("episodes", "note")]
    monkeypatch.setattr(Endless, "step", lambda self, action: (self._seen(), 0.0, False, False, {}))
    assert ("rewards", "note") in [(finding.part, finding.level) for finding in worse(examined(Endless)[0])]


@pytest.mark.parametrize("id", ["catch", "masked", "CartPole-v1"])
def test_pools_of_their_own_are_examined_as_pools(id):
    found, _ = examined(id)
    assert not worse(found), found
    assert {"made", "spaces", "calls", "seeds", "speed", "pool"} <= {finding.part for finding in found}


def test_an_id_that_nobody_knows_is_refused_with_the_near_ones():
    found, rest = examined("CartPol-v1")
    assert not found and "CartPole-v1" in rest["refused"][0]
