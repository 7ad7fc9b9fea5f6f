"""A second machine (a network namespace) joins, is cut off, comes back and is killed while a run trains; see machines.py.

The cluster has Ray's own settings, with which Ray notices a cut after a minute: it is the runtime that does.
"""

from __future__ import annotations

import os
import signal

import pytest

from rookery.topologies.launch import LIFE
from rookery_bench import process

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
from machines import FAR, Machines, ip

NOTICED_SECONDS = 10.0


def test_a_machine_joins_is_cut_off_comes_back_and_is_killed_and_no_step_is_counted_twice() -> None:
    if missing := Machines.missing():
        pytest.skip(missing)
    with Machines() as machines:
        machines.start_head(cpus=1)
        driver = machines.drive(collectors="1..3", num_envs=6)
        alone, _ = driver.until(lambda said: said["collectors"] == 1 and said["updates"] > 5)
        machines.start_node(cpus=2)
        grown, _ = driver.until(lambda said: said["collectors"] == len(said["nodes"]) == 3)
        assert alone["nodes"] == [near := alone["nodes"][0]] and sorted(grown["nodes"], key=lambda n: n != near)[0] == near
        assert len({*grown["nodes"]}) == 2 and grown["collectors_lost"] == 0

        machines.cut()
        lost, noticed = driver.until(lambda said: said["collectors_lost"] == 2)
        assert noticed <= NOTICED_SECONDS and lost["collectors"] == 1
        driver.until(lambda said: said["updates"] > lost["updates"] + 20)
        assert f"{FAR} has been silent" in machines.said()

        machines.heal()
        back, _ = driver.until(lambda said: said["collectors"] == len(said["nodes"]) == 3)
        assert back["nodes"] == grown["nodes"] and back["collectors_lost"] == 2, "the same machine, and workers of a new life"

        [raylet] = machines.raylets(machines.far)
        os.kill(raylet, signal.SIGKILL)
        left, _ = driver.until(lambda said: said["collectors_lost"] == 4 and said["collectors"] == 1)
        driver.until(lambda said: said["updates"] > left["updates"] + 20)

        books = driver.close_the_books()
        assert books["violations"] == [] and books["lives"] == [0, 2, 2]
        assert books["incarnations"] == {str(env): [0] if env < 2 else [0, LIFE] for env in range(6)}
    assert not process.marked(machines.mark) and machines.mark not in ip("netns", "list") and not machines.directory.exists()
