"""The Ray runtime keeps the promises of every runtime, and copies nothing that it need not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from waiting import wait_for

from rookery.runtime.interface import Resources, RuntimeRefused, WorkerLost

pytest.importorskip("ray", reason="ray is not installed: pip install 'rookery[ray]'")
import ray

from rookery.runtime.ray import ClusterLost, InsecureCluster, RayRuntime, cleanup, liveness
from rookery.runtime.ray import cluster as ray_cluster
from rookery.runtime.ray.checks import differences

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import what only pytest finds
DRIVER = os.getpid()


class Said(NamedTuple):
    number: int
    rollout: Any


class Odd(Exception):
    """Its constructor wants more than its args: pickle cannot bring it back."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Worker:
    """Does as it is told, and remembers."""

    def __init__(self, fail: bool = False) -> None:
        if fail:
            raise OSError("no such environment")
        self.log: list[Any] = []
        self.given: Any = None

    def note(self, value: Any) -> Any:
        self.log.append(value)
        return list(self.log)

    def pair(self, first: int, second: Any) -> tuple[int, list[int]]:
        return first, second.tolist()

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return time.monotonic()

    def when(self) -> float:
        return self.given

    def give(self, tree: Any) -> None:
        self.given = (time.monotonic(), type(jax.tree.leaves(tree)[0]).__module__, float(sum(x.sum() for x in tree.values())))

    def fail(self) -> None:
        raise ZeroDivisionError("in the worker")

    def fail_oddly(self) -> None:
        raise Odd("with two", 7)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def settings(self) -> dict[str, Any]:
        return {"NPROC": os.environ.get("NPROC"), "devices": str(jax.devices()), "pid": os.getpid(),
                "cache": jax.config.jax_compilation_cache_dir, "mine": os.environ.get("ROOKERY_MINE")}  # fmt: skip

    def collect(self, out: Any) -> Said:
        if self.given == "slowly":
            time.sleep(1.0)
        self.log.append(out is not None)
        rollout = out or {"a": np.zeros((1000, 300)), "b": np.zeros(3)}
        rollout["a"][:] = len(self.log)
        return Said(len(self.log), rollout)

    def slowly(self) -> None:
        self.given = "slowly"

    def close(self) -> None: ...


def prepare() -> None:
    from rookery.run import startup

    startup.prepare()


def versions() -> dict[str, str]:
    return {"jax": "1", "rookery": "1"}


def runtime_of(**more: Any) -> RayRuntime:
    given = dict(resources={"worker": Resources(variables=("ROOKERY_MINE",))}, counts={"worker": (1, 2)})
    return RayRuntime(**given | dict(prepare=prepare, versions=versions) | more)  # type: ignore[arg-type]


@pytest.fixture
def runtime(cluster: None) -> Iterator[RayRuntime]:
    runtime = runtime_of()
    yield runtime
    runtime.close()
    assert ray.is_initialized(), "a Ray that was there before stays"


def test_calls_run_in_their_order_and_errors_come_out_as_they_were_raised(runtime: RayRuntime) -> None:
    handle = runtime.spawn(Worker, name="w", role="worker")
    futures = [handle.call(Worker.note, i) for i in range(50)]
    assert futures[-1].result(60) == list(range(50))
    with pytest.raises(ZeroDivisionError, match="in the worker") as error:
        handle.call(Worker.fail).result(60)
    assert "in fail" in "".join(error.value.__notes__) and "a Ray actor" in error.value.__notes__[0]
    with pytest.raises(Odd, match="with two") as odd:
        handle.call(Worker.fail_oddly).result(60)
    assert odd.value.number == 7
    assert len(handle.call(Worker.note, "alive").result(60)) == 51
    broken = runtime.spawn(Worker, True, name="broken", role="worker")
    with pytest.raises(OSError, match="no such environment"):
        broken.ready.result(60)


def test_a_killed_worker_is_known_at_once_by_all_its_calls(runtime: RayRuntime) -> None:
    handle = runtime.spawn(Worker, name="w", role="worker")
    pid = handle.call(Worker.settings).result(60)["pid"]
    calls = [handle.call(Worker.sleep, 30), handle.call(Worker.note, 1), handle.fill(Worker.collect, {})]
    time.sleep(0.1)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(WorkerLost, match="w is gone"):
            call.result(30)
    assert time.monotonic() - begin < 5.0
    with pytest.raises(WorkerLost):
        handle.call(Worker.note, 2).result(30)


def test_a_rollout_is_written_into_its_place_and_pins_nothing(runtime: RayRuntime) -> None:
    handle = runtime.spawn(Worker, name="w", role="worker")
    outs = [{"a": np.zeros((1000, 300)), "b": np.ones(3)} for _ in range(3)]
    said = [handle.fill(Worker.collect, out) for out in outs]
    for number, (future, out) in enumerate(zip(said, outs), start=1):
        answer = future.result(60)
        assert answer.number == number and answer.rollout is out
        assert (out["a"] == number).all() and (out["b"] == 0).all() and out["a"].flags.writeable
    assert handle.call(Worker.note, 0).result(60)[:3] == [False, True, True], "the actor fills one buffer again and again"


def test_after_kill_nothing_is_written_however_late_it_comes(runtime: RayRuntime) -> None:
    handle = runtime.spawn(Worker, name="w", role="worker")
    handle.call(Worker.slowly).result(60)
    out = {"a": np.full((1000, 300), -1.0), "b": np.ones(3)}
    future = handle.fill(Worker.collect, out)
    handle.kill()
    with pytest.raises(WorkerLost):
        future.result(30)
    answered = {"a": np.zeros((1000, 300)), "b": np.zeros(3)}  # already, before it was killed
    runtime._fetcher._copied(handle, Said(1, None), answered, out)
    assert (out["a"] == -1).all()


def test_what_is_published_is_put_once_and_passes_a_call_that_is_running(
    runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [runtime.spawn(Worker, name=f"w{i}", role="worker") for i in range(2)]
    for handle in handles:
        handle.ready.result(60)
        handle.now(Worker.give, runtime.put({"x": jax.numpy.ones(2)}))
        while handle.call(Worker.when).result(60) is None:  # the first one imports jax there, which takes as long as it takes
            time.sleep(0.05)
    puts, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    slept = [handle.call(Worker.sleep, 3.0) for handle in handles]
    shared = runtime.put({"x": jax.numpy.ones((500, 500)), "y": jax.numpy.ones(2)})
    for handle in handles:
        handle.now(Worker.give, shared)
    for handle, sleep in zip(handles, slept):
        arrived, kind, total = handle.call(Worker.when).result(60)
        assert arrived < sleep.result(60) and total == 250_002
        assert kind.startswith("jax"), "a copy of the worker's own, not a view of the store"
    assert len(puts) == 1


def test_of_many_publications_the_newest_arrives_and_few_of_the_others(runtime: RayRuntime) -> None:
    handle = runtime.spawn(Worker, name="w", role="worker")
    handle.ready.result(60)
    for i in range(200):
        handle.now(Worker.note, i)
    time.sleep(0.5)
    log = handle.call(Worker.note, "end").result(60)
    assert log[-2:] == [199, "end"] and len(log) < 150


def test_keywords_arrive_as_such_on_either_lane_and_by_reference_too(runtime: RayRuntime) -> None:
    handle, tree = runtime.spawn(Worker, name="w", role="worker"), runtime.put({"x": np.ones(2)})
    assert handle.call(Worker.pair, 1, second=runtime.put(np.arange(3))).result(60) == (1, [0, 1, 2])
    first, kept = handle.keep(Worker.pair, first=2, second=np.arange(1)).result(60)
    assert first == 2 and handle.call(Worker.note, value=kept).result(60) == [[0]]
    handle.now(Worker.give, tree=tree)
    assert handle.fill(Worker.collect, None).result(60).number == 2, "what was told comes with it"
    assert handle.call(Worker.when).result(60)[2] == 2.0


def test_workers_have_one_thread_their_variables_and_the_cache_of_the_machine(
    runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOKERY_MINE", "handed on")
    settings = runtime.spawn(Worker, name="w", role="worker").call(Worker.settings).result(60)
    assert settings["NPROC"] == "1" and "Cpu" in settings["devices"] and settings["pid"] != DRIVER
    assert settings["cache"] and settings["mine"] == "handed on"


def test_a_role_without_resources_lives_in_this_process(runtime: RayRuntime) -> None:
    assert runtime.spawn(Worker, name="learner", role="learner").call(Worker.settings).result(5)["pid"] == DRIVER


def test_a_head_that_is_silent_for_too_long_ends_the_run_with_7(runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.wait([], 0.0) == ([], [])
    before = runtime._liveness.pulse
    deadline = time.monotonic() + 10
    while runtime._liveness.pulse == before:
        assert time.monotonic() < deadline, "nobody asks for a sign of life"
        time.sleep(0.05)
    monkeypatch.setattr(liveness, "LOST_SECONDS", -1.0)
    with pytest.raises(ClusterLost, match="Resume the run") as error:
        runtime.wait([], 0.0)
    assert error.value.exit_code == 7
    monkeypatch.undo()


WRITES = "while true; do mkdir -p $0/logs; touch $0/logs/line; sleep 0.02; done 2>/dev/null"


def test_who_would_write_into_the_directory_of_a_ray_again_is_ended_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is just starting makes its directories anew, also when the raylet that started it is dead."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):  # put back afterwards: the cluster of the other tests needs them
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(ray_cluster, "started_here", True)
    directory = tmp_path / "ray"
    marked = lambda path: os.environ | {cleanup.MARK: str(path)}
    started = ["sh", "-c", 'sh -c "$0" "$1" & exec sleep 60', WRITES, str(directory)]
    raylet, other = (
        subprocess.Popen(started, env=marked(directory)),
        subprocess.Popen(["sleep", "60"], env=marked(f"{directory}2")),
    )
    try:
        wait_for((directory / "logs" / "line").exists)
        raylet.kill()
        raylet.wait()
        ray_cluster.remove(directory)
        time.sleep(0.2)
        assert not directory.exists() and other.poll() is None
    finally:
        cleanup.end(directory)
        other.kill()
        other.wait()


# --------------------------------------------------------------------------------------------------------- refusals


def test_another_version_on_a_machine_is_refused_with_the_list(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    skew = lambda: {"jax": "0.10.2" if os.getpid() == DRIVER else "0.9.0", "rookery": "1"}  # DRIVER travels by value
    runtime = runtime_of(versions=skew)
    with pytest.raises(RuntimeRefused, match=r"jax 0\.9\.0, here 0\.10\.2"):
        runtime.spawn(Worker, name="w", role="worker").ready.result(60)
    runtime.close()
    monkeypatch.setattr(ray_cluster, "started_here", False)  # as if it were somebody's cluster: asked before anything starts
    with pytest.raises(RuntimeRefused, match=r"do not agree:\n  .*: jax 0\.9\.0, here 0\.10\.2"):
        runtime_of(versions=skew)


def test_more_workers_than_there_is_room_for_are_refused_with_a_way_out(cluster: None) -> None:
    with pytest.raises(RuntimeRefused, match=r"100 × worker of 1 CPU each need 100, .* has 8 in all.*--worker\.cpus 0\.08"):
        runtime_of(counts={"worker": (100, 100)})


def test_a_cluster_that_asks_for_no_token_gets_a_loud_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray_cluster, "probe_head", lambda address: None)
    monkeypatch.setattr(ray_cluster.raylet, "watch", lambda: None)
    for mode, address, loud in ((None, "10.0.0.5", True), ("token", "10.0.0.5", False), (None, "127.0.0.1", False)):
        monkeypatch.setattr(ray, "nodes", lambda address=address: [{"NodeManagerAddress": address}])
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        if mode:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ray_cluster.join("10.0.0.5:6379")
        assert [w.category is InsecureCluster for w in caught] == [True] * loud, (mode, address)


def test_strict_security_refuses_what_is_otherwise_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    for name, value in (("init", lambda **_: None), ("shutdown", lambda: ended.append(True))):
        monkeypatch.setattr(ray, name, value)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": "10.0.0.5"}])
    monkeypatch.setattr(ray_cluster, "probe_head", lambda address: None)
    monkeypatch.setattr(ray_cluster.raylet, "watch", lambda: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(RuntimeRefused, match=r"ASKS NOBODY FOR A TOKEN[\s\S]*--strict-security"):
        ray_cluster.join("10.0.0.5:6379", strict=True)
    assert ended == [True]


def test_what_differs_is_named_once_each() -> None:
    theirs = {"jax": "2", "python": "3.11", "extra": "1"}
    assert differences({"jax": "1", "python": "3.11"}, theirs) == ["extra 1, here missing", "jax 2, here 1"]
