"""What is done to a run on Ray: processes killed and stopped, messages lost and doubled, the head killed, other configs.

Judged by the ledger that stands before the learner (rookery_bench/audit.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray
from actors import Deadlines
from waiting import until, wait_for

from rookery.run import config, startup
from rookery.run.assemble import assemble, pool_factory
from rookery.run.versions import fingerprint
from rookery.runtime.interface import Resources, RuntimeRefused, WorkerLost
from rookery.runtime.ray import RayHandle, RayRuntime
from rookery.runtime.ray import cluster as ray_cluster
from rookery.runtime.ray.reachability import Reachability
from rookery.testing import SPEC, ScriptedPool, counting_agent
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.job import Job, Progress
from rookery.topologies.launch import LIFE
from rookery.types import Rollout
from rookery_bench import process
from rookery_bench.audit import Audited
from rookery_bench.kills import cart_pole, children, lives_of

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
HERE = Path(__file__).parent
DRIVER = os.getpid()
kill = RayHandle.kill


def audited(collectors: int = 1, versions: Callable[[], dict[str, str]] = fingerprint) -> Audited:
    return Audited(
        RayRuntime(
            resources={"collector": Resources()}, counts={"collector": (collectors, collectors)}, prepare=startup.prepare,
            versions=versions,
        )
    )  # fmt: skip


def scripted(runtime: Audited, **topology: Any) -> Iterator[Progress]:
    make = lambda num_envs, groups: ScriptedPool(num_envs, groups, on_step=lambda slot: time.sleep(0.001))
    return ActorLearner(groups=1, **topology).drive(Job(counting_agent(3), SPEC, make, runtime, seed=0))


def closed(driver: Iterator[Progress], runtime: Audited) -> Any:
    """Drains, and finds nothing wrong with the books. -> the snapshot."""
    progress = until(driver, lambda p: p.snapshot is not None)
    saved = progress.snapshot()  # type: ignore[misc]
    waiting = [Rollout(**part) for part in saved["tables"]["queue"]["parts"]]
    counted = {name: int(saved["meters"][name]) for name in ("trained_steps", "env_steps")}
    assert runtime.ledger.closed(waiting, **counted) == []
    driver.close()  # type: ignore[attr-defined]
    return saved


@pytest.mark.usefixtures("cluster")
def test_a_stopped_collector_that_wakes_up_when_it_was_replaced_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be ended, as if its machine were cut off: what it was asked it does, and says, too late."""
    deadlines, deaf = Deadlines(monkeypatch), list[RayHandle]()
    given_up = lambda handle: (setattr(handle, "dead", True), handle._forget(handle))
    monkeypatch.setattr(RayHandle, "kill", lambda handle: given_up(handle) if handle in deaf else kill(handle))
    runtime = audited(2)
    driver = scripted(runtime, num_envs=4, collectors=2)
    until(driver, lambda p: p.workers["collectors"] == 2 and p.updates > 5)
    [life] = lives_of(runtime, "collector-1")
    earlier = until(driver, lambda p: life.answers > 2)
    deaf.append(life.handle)
    pid = life.handle.ready.result()[1]
    os.kill(pid, signal.SIGSTOP)
    with deadlines.of(1.0):
        lost = until(driver, lambda p: p.workers["collectors_lost"] == 1)
    before = life.answers
    until(driver, lambda p: p.updates > lost.updates + 5)  # the columns that it was to fill are another's now
    os.kill(pid, signal.SIGCONT)
    owed = lost.workers["rollouts_lost"] - earlier.workers["rollouts_lost"]
    until(driver, lambda p: owed > 0 and life.answers == before + owed, 20)
    until(driver, lambda p: p.workers["collectors"] == 2 and p.updates > lost.updates + 30)
    os.kill(pid, signal.SIGKILL)
    assert closed(driver, runtime)["lives"]["collector"] == [0, 1]
    assert runtime.ledger.incarnations == {env: [0] if env < 2 else [0, LIFE] for env in range(4)}


@pytest.mark.usefixtures("cluster")
def test_the_host_of_a_collectors_environments_is_killed_and_only_its_episodes_end() -> None:
    cfg = config.resolve(
        "impala", env=cart_pole, num_envs=4, groups=1, rollout_length=5, network={"hidden": (4,)}, env_processes=1
    )  # fmt: skip
    spec, agent, _ = assemble(cfg)
    runtime = audited()
    driver = cfg.topology.drive(Job(agent, spec, pool_factory(cfg), runtime, seed=0))
    until(driver, lambda p: p.updates > 5)
    [life] = lives_of(runtime, "collector-0")
    for failures in (1, 2):
        [host] = [host for fork_server in children(life.handle.ready.result()[1]) for host in children(fork_server)]
        os.kill(host, signal.SIGKILL)
        failed = until(driver, lambda p, n=failures: p.env_failures == n)
        until(driver, lambda p, steps=failed.env_steps: p.env_steps > steps)  # when the new ones are there
    saved = closed(driver, runtime)
    assert saved["lives"]["collector"] == [0] and life.lost is None
    assert runtime.ledger.incarnations == {env: [0, 1, 2] for env in range(4)}


class Sleeper:
    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def close(self) -> None: ...


@pytest.mark.usefixtures("cluster")
def test_of_a_machine_that_is_silent_nothing_is_waited_for_and_whoever_finds_no_room_elsewhere_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This machine itself is said to be silent; that a real cut is seen, test_ray_network.py shows."""
    node, silent = ray.get_runtime_context().get_node_id(), set[str]()
    look = lambda self, machines: machines.update({node: ("10.0.0.9", 1)}) or silent
    monkeypatch.setattr(Reachability, "look", look)
    runtime = audited().runtime
    assert runtime.room("collector", 0) > 0
    handle = runtime.spawn(Sleeper, name="w", role="collector")
    assert handle.call(Sleeper.sleep, 0.0).result(60) == 0.0
    asleep = handle.call(Sleeper.sleep, 30.0)
    silent.add(node)
    with pytest.raises(WorkerLost, match=r"w is cut off: 10\.0\.0\.9 has been silent"):
        asleep.result(10)
    with pytest.raises(WorkerLost, match="w is cut off"):
        handle.call(Sleeper.sleep, 0.0).result(1)
    assert runtime.room("collector", 0) == 0, "what is free there is not counted"
    handle.kill()
    again = runtime.spawn(Sleeper, name="w", role="collector")
    silent.clear()
    assert again.call(Sleeper.sleep, 0.0).result(60) == 0.0
    runtime.close()


def head_of(pid: int) -> int:
    """The process of the head of the Ray that a process has started."""
    for each in process.tree(pid):
        with contextlib.suppress(OSError):
            if Path(os.readlink(f"/proc/{each}/exe")).name == "gcs_server":
                return each
    raise AssertionError("there is no head")


class Faked:
    """A config that reads otherwise in another process."""

    def __init__(self, cfg: config.Config) -> None:
        self._cfg = cfg

    def unsigned(self) -> dict[str, Any]:
        read = self._cfg.unsigned()
        if os.getpid() != DRIVER:  # which travels by value
            read["algorithm"]["learning_rate"] = 0.5
        return read


@pytest.mark.usefixtures("cluster")
def test_a_machine_where_the_config_reads_otherwise_is_refused_with_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config.resolve("impala", env="CartPole-v1", learning_rate=0.25)
    versions = functools.partial(fingerprint, Faked(cfg))
    runtime = audited(versions=versions)
    said = r"algorithm\.learning_rate 0\.5, here 0\.25; config's digest \w{12}, here \w{12}$"
    with pytest.raises(RuntimeRefused, match=said) as refused:
        until(scripted(runtime, num_envs=2), lambda p: False)
    assert refused.value.exit_code == 2
    monkeypatch.setattr(ray_cluster, "started_here", False)  # as if it were somebody's cluster: asked before anything starts
    with pytest.raises(RuntimeRefused, match=r"do not agree:\n  .*: algorithm\.learning_rate 0\.5, here 0\.25\n  .*digest"):
        audited(versions=versions)


LOSSY = json.dumps({
    "CoreWorkerService.grpc_client.PushTask":
        {"num_failures": 8, "req_failure_prob": 2, "resp_failure_prob": 2, "in_flight_failure_prob": 2},
    "NodeManagerService.grpc_client.RequestWorkerLease":
        {"num_failures": 4, "req_failure_prob": 20, "resp_failure_prob": 20, "in_flight_failure_prob": 20},
    "ActorInfoGcsService.grpc_client.CreateActor":
        {"num_failures": 4, "req_failure_prob": 20, "resp_failure_prob": 20, "in_flight_failure_prob": 20},
})  # fmt: skip
PROGRAM = """
import json, sys
from rookery import cli
from rookery_bench.audit import Audited
from rookery.run import trainer
from rookery.runtime.ray import liveness

liveness.PULSE_SECONDS, liveness.LOST_SECONDS = 0.5, 5.0
made, books = trainer.open_runtime, []
trainer.open_runtime = lambda cfg, plan: books.append(Audited(made(cfg, plan))) or books[0]
try:
    cli.main(sys.argv[1:])
finally:
    print(json.dumps({"violations": books[0].ledger.violations, "rows": books[0].ledger.rows, "lives": len(books[0].lives)}))
"""


def test_messages_are_lost_and_doubled_and_then_the_head_is_killed(tmp_path: Path) -> None:
    """By Ray's own injection of faults: a call or its answer is lost, or it is done and reported as failed."""
    mark = f"ray-faults-{os.getpid()}"
    words = ["train", "impala", "--env", "CartPole-v1", "--runtime", "ray", "--collectors", "2", "--run", "r", "--runs", "."]
    words += ["--checkpoint-every", "100", "--total-steps", "1000000000"]
    env = os.environ | {process.MARK: mark, "RAY_testing_rpc_failure": LOSSY, "PYTHONPATH": str(HERE.parents[1])}
    how: Any = dict(env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path)
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], **how)
    try:
        log, run = tmp_path / "r" / "log.txt", tmp_path / "r"
        wait_for(lambda: log.exists() and "is gone (ActorUnavailableError)" in log.read_text(), program=program)
        saved = wait_for(lambda: {*(run / "checkpoints").glob("update-*")}, program=program)
        wait_for(lambda: {*(run / "checkpoints").glob("update-*")} - saved, program=program)  # it trains on
        os.kill(head_of(program.pid), signal.SIGKILL)
        killed = time.monotonic()
        out, err = program.communicate(timeout=60)
        seconds = time.monotonic() - killed
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 7 and seconds < 20, (program.returncode, seconds, err)
    newest = max(path.name for path in (run / "checkpoints").iterdir())
    assert f"Last good checkpoint: r/checkpoints/{newest}. Go on with: rookery resume r" in err and "Traceback" not in err, err
    books = json.loads(out.splitlines()[-1])
    assert books["violations"] == [] and books["lives"] >= 3 and books["rows"] > 0
    assert json.loads((run / "result.json").read_text())["status"] == "failed"
    wait_for(lambda: not process.marked(mark), 10)
    left = [*Path("/tmp").glob(f"rookery-ray-{program.pid}-*")]
    assert not left, [*map(str, left[0].rglob("*"))]
