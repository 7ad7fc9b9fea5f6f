"""Environments by the names of modules and files, in every pool, and what is said where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from own_files import GRID, REGISTERED, forgotten, write

from rookery import envs
from rookery.envs import UnknownEnvironment
from rookery.envs.jax.pool import JaxPool
from rookery.envs.pools.serial import SerialPool
from rookery.envs.pools.vectorised import VectorisedPool
from rookery.envs.processes.process_pool import ProcessPool
from rookery.testing import advance, play

IN_JAX = "from rookery.envs.jax.toys import toy_env\n\ncatch = toy_env('catch', {})\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, grid_a=GRID, grid_b=REGISTERED, in_jax=IN_JAX)
    with forgotten():
        yield tmp_path


IDS = ["grid_a.py:GridEnv", "grid_a:GridEnv", "grid_a.py:make_grid", "grid_b:Grid-v0", "grid_b.py:Grid-v0"]


@pytest.mark.parametrize("id", IDS)
def test_a_name_makes_a_pool_in_this_process_and_in_others_that_answer_the_same(here, id):
    pools = [envs.make(id, 3, seed=1, processes=processes, size=4) for processes in (0, 2)]
    assert [type(pool) for pool in pools] == [SerialPool, ProcessPool]
    first, second = (play(pool, 12, seed=1).steps for pool in pools)
    for pool in pools:
        pool.close()
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a.observation, b.observation)
    assert envs.spec_of(id).id == id.partition(":")[2].replace(".py:", "")
    limit = max(step.truncated.sum() for step in first[:6])
    assert bool(limit) == ("Grid-v0" in id), "an id that is registered brings its limit of time"


def test_files_of_one_name_reach_worker_processes_each_as_itself(here):
    for size in (3, 5):
        (here / f"of_{size}").mkdir()
        write(here / f"of_{size}", grid_a=GRID.replace("size=3", f"size={size}"))
        pool = envs.make(f"of_{size}/grid_a.py:GridEnv", 2, processes=1)
        seen = np.concatenate([play(pool, 60).steps[i].observation.ravel() for i in range(0, 60, 7)])
        pool.close()
        assert set(np.unique(np.round(seen * (size - 1), 3))) <= set(range(size)), "the places of a grid of that size"
        assert seen.max() == 1


def test_an_environment_in_jax_is_found_by_its_name(here):
    pool = envs.make("in_jax.py:catch", 2)
    assert isinstance(pool, JaxPool) and pool.reset(0).observation.shape == envs.make("jax:catch", 2).reset(0).observation.shape


def test_ids_that_everybody_has_are_known_behind_any_module(here):
    assert isinstance(envs.make("grid_a:CartPole-v1", 2), VectorisedPool), "as gymnasium.make has it"


SAID = {
    "grid_b:Grid-v1": "grid_b .*has no 'Grid-v1': did you mean 'Grid-v0'",
    "grid_b.py:GridEnvironment": "grid_b.py has no 'GridEnvironment': did you mean 'GridEnv'",
    "math:pi": "'math:pi' is a float: an environment's class, or a function that makes one",
    "one.py:env": "'one.py:env' is one GridEnv, and a run makes as many as it needs: name its class",
}


@pytest.mark.parametrize(("id", "said"), SAID.items())
def test_what_is_no_environment_is_told_so(here, id, said):
    write(here, one="from grid_a import GridEnv\n\nenv = GridEnv()\n")
    for ask in (envs.spec_of, envs.resolved, lambda id: envs.make(id, 2), lambda id: envs.chosen(id, 2, 1)):
        with pytest.raises(UnknownEnvironment, match=said):
            ask(id)


def test_pool_options_and_own_options_are_told_apart_behind_a_name(here):
    pool = envs.make("grid_a.py:GridEnv", 2, size=4, frame_stack=3)
    pool.reset(0)
    assert advance(pool, np.zeros(2, int)).observation.shape == (2, 3, 2)
