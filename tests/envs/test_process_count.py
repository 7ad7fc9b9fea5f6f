"""In this process or in others: what is measured, what is chosen, and what is found out before a run starts."""

from __future__ import annotations

from functools import partial

import bad_envs
import pytest
from bad_envs import Counter, Slow

from rookery import envs
from rookery.envs import EnvironmentFailed
from rookery.envs.pools.serial import SerialPool
from rookery.envs.probe import Probe
from rookery.envs.processes import fork_server
from rookery.envs.processes.process_count import Measured, choose, measure
from rookery.envs.processes.process_pool import ProcessPool

pytestmark = pytest.mark.skipif(not fork_server.supported(), reason="worker processes need Linux")


def costs(step, wake=100e-6):
    return Measured(Probe(Counter.observation_space, Counter.action_space, step, ()), wake)


@pytest.mark.parametrize(
    ("step", "num_envs", "groups", "cores", "processes", "here"),
    [
        (10e-6, 8, 1, 2, 0, False),  # 80 µs in all: not worth waking anybody
        (10e-6, 64, 1, 2, 1, True),  # 640 µs: shared with one other, rather than waiting for two
        (10e-6, 256, 1, 4, 3, True),
        (1e-3, 8, 1, 4, 4, False),
        (1e-3, 8, 1, 1, 0, False),  # one core: nobody to share with
        (0.5e-3, 2, 1, 8, 1, True),  # not more shares than environments
        (10e-3, 2, 1, 8, 2, False),
        (10e-6, 16, 2, 2, 0, False),
        (1e-3, 16, 2, 2, 1, False),  # one core is left to whoever decides
        (1e-3, 64, 2, 8, 7, False),
        (1e-3, 64, 2, 1, 0, False),
    ],
)
def test_the_choice_follows_the_costs(step, num_envs, groups, cores, processes, here):
    count = choose(costs(step), num_envs, groups, cores)
    assert (count.processes, count.here) == (processes, here) and "to wake a process" in count.why


def test_what_is_measured_is_near_the_truth_and_remembered():
    found = measure(Slow, "Slow", "key")
    assert 0.001 < found.probe.step_seconds < 0.02 and 0 < found.wake_seconds < 0.01
    assert measure(Slow, "Slow", "key") is found


def test_auto_takes_what_was_measured(monkeypatch):
    monkeypatch.setattr("rookery.envs.python_envs.usable_cores", lambda: 2)
    slow = envs.make(Slow, 64, processes="auto")
    fast = envs.make(Counter, 2, processes="auto")
    assert isinstance(slow, ProcessPool) and isinstance(fast, SerialPool)
    assert envs.chosen(Slow, 64, 1).processes == 2
    slow.close()
    assert envs.chosen("catch", 8, 1).why == "it has a pool of its own"


def test_the_spec_is_found_without_making_one_here(monkeypatch):
    monkeypatch.setattr(bad_envs.Counter, "__init__", None)  # here it cannot be made
    spec = envs.spec_of(Counter, processes="auto", frame_stack=3)
    assert spec.observation.shape == (3, 2) and spec.raw[0].shape == (2,)


def test_what_dies_or_hangs_when_tried_takes_nothing_with_it():
    with pytest.raises(EnvironmentFailed, match="the process that tried it exited with status 9"):
        envs.spec_of(bad_envs.DiesInConstructor, processes="auto")
    with pytest.raises(EnvironmentFailed, match=r"took more than 0.2 s"):
        measure(bad_envs.HangsInConstructor, "HangsInConstructor", timeout=0.2)


def test_what_raises_when_tried_is_made_here_and_raises_what_it_raises():
    with pytest.raises(KeyError, match="unheard of"):
        envs.spec_of(partial(bad_envs.Faulty, "unheard of"), processes="auto")


def test_one_that_fails_when_tried_is_told_and_still_measured():
    found = measure(partial(bad_envs.Faulty, "raises"), "Faulty")
    assert any("failed when it was tried" in note and "simulator is gone" in note for note in found.probe.notes)


def test_a_seed_that_is_ignored_is_told():
    with pytest.warns(UserWarning, match=r"'Seedless' ignores the seed of reset\(\)"):
        envs.make(bad_envs.Seedless, 2, processes="auto").close()
    assert measure(Counter, "Counter").probe.notes == ()


def test_an_id_that_a_script_registered_is_known_in_its_workers():
    import gymnasium

    gymnasium.register("test/Local-v0", lambda length: Counter(length), kwargs={"length": 3})
    pool = envs.make("test/Local-v0", 2, processes=1, length=2)
    pool.reset(0)
    for _ in range(2):
        pool.send([0, 0])
        step = pool.recv()
    assert step.truncated.all()
    pool.close()
    del gymnasium.registry["test/Local-v0"]
