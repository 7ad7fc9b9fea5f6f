"""The pure parts of each bench, and a fake peer that is a real program."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery_bench import (
    cartpole,
    central,
    learning,
    memory,
    metrics,
    peers,
    pong,
    process,
    record,
    returns,
    roofline,
    runtimes,
    updaters,
)

NOW = {
    "date": "2026-01-02T10:00:00+00:00", "cores": 2, "processor": "Z80", "load_before": [0, 0, 0],
    "versions": {"rookery": "1"}, "commit": None,
}  # fmt: skip


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """A directory of drivers: both print their line among other things."""
    code = """
import json, os, sys
print("some chatter")
seed = int(sys.argv[sys.argv.index("--seed") + 1])
assert "XLA_FLAGS" not in os.environ
print(json.dumps(dict(peer=NAME, version="9.9", steps_per_s=1000.0 + seed, import_s=2.0, compile_s=1.0,
                      time_to_target_s=None if seed == 2 else 20.0 + seed, cap=os.environ["PEER_CAP_S"])))
"""
    (tmp_path / "sb3.py").write_text(code.replace("NAME", repr("stable-baselines3")))
    (tmp_path / "rejax_peer.py").write_text(code.replace("NAME", repr("rejax")))
    return tmp_path


# ------------------------------------------------------------------------------------------------------- cartpole


def finished(seconds: float, /, **answer) -> process.Finished:
    return process.Finished(seconds, answer, None)


def test_cartpole_compares_rookery_with_the_peers_that_are_given(drivers: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--ours")
    caches: list[tuple[str, Path, bool]] = []

    def fake(command: list[str], *, runs: Path, cache: Path, timeout: float) -> process.Finished:
        caches.append((command[4], cache, cache.exists()))
        cache.mkdir(exist_ok=True)
        wall = 8.0 if caches[-1][2] else 10.0
        reached = None if "--total-steps" in command else 7.5
        return finished(wall, env_steps=200_000, seconds=9.0, seconds_to_target=reached, run="somewhere")

    monkeypatch.setattr(process, "rookery", fake)
    options = cartpole.parse(
        ["--seeds", "3", "--peers", str(drivers), "--sb3-python", sys.executable, "--rejax-python", sys.executable]
    )
    (found,) = cartpole.measure(options)
    first, again, sb3, rejax = found.rows
    assert (first["steps/s"], again["steps/s"], sb3["steps/s"]) == (20_000, 25_000, 1001.0)
    assert first["s_to_target"] == 10.0 and first["own_clock"] == 7.5 and first["reached"] == "3/3"
    assert sb3["s_to_target"] == 23.0 and sb3["reached"] == "2/3", "one seed never reached it and counts as the slowest"
    assert [v.value for v in found.verdicts[:3]] == pytest.approx([20_000 / 1001, 10 / 23, 10 / 23])
    assert [v.bar for v in found.verdicts[:3]] == [15.0, 0.6, 1.0]
    assert found.conditions["versions"]["rejax"] == "9.9" and rejax["arm"] == "rejax"
    assert str(drivers) not in json.dumps(found.to_dict()), "a record is public: no paths"
    assert [fresh for _, _, fresh in caches] == [False, True] * 6, "first run with an empty cache, then with a full one"
    order = [run["arm"] for run in found.runs if run["seed"] == 1]
    assert order[-2:] == [cartpole.FIRST, cartpole.AGAIN] and order[2] == "stable-baselines3", "the order rotates"


def test_cartpole_without_peers_measures_rookery_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "rookery", lambda *_, **__: finished(4.0, env_steps=100, seconds_to_target=None))
    (found,) = cartpole.measure(cartpole.parse(["--seeds", "1", "--no-warm", "--total-steps", "7"]))
    assert [row["arm"] for row in found.rows] == [cartpole.FIRST] and found.verdicts == []
    assert found.command == "rookery bench cartpole --seeds 1 --total-steps 7 --no-warm"
    assert found.rows[0]["s_to_target"] is None and found.rows[0]["reached"] == "0/1"


def test_a_peer_that_fails_is_reported_and_spoils_no_other(drivers: Path, monkeypatch: pytest.MonkeyPatch):
    (drivers / "sb3.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setattr(process, "rookery", lambda *_, **__: finished(4.0, env_steps=100, seconds_to_target=3.0))
    options = cartpole.parse(["--seeds", "1", "--peers", str(drivers), "--sb3-python", sys.executable])
    (found,) = cartpole.measure(options)
    assert "no torch here" in found.failures[0] and not any(v.met for v in found.verdicts)
    assert found.rows[0]["s_to_target"] == 4.0


def test_a_peer_without_a_driver_is_refused_before_anything_runs(tmp_path: Path):
    with pytest.raises(SystemExit, match="--peers DIR"):
        cartpole.measure(cartpole.parse(["--sb3-python", sys.executable]))
    with pytest.raises(SystemExit, match=r"holds no sb3\.py"):
        cartpole.measure(cartpole.parse(["--peers", str(tmp_path), "--sb3-python", sys.executable]))


def test_a_peers_time_from_typing_the_command_includes_its_imports():
    assert peers.time_to_target({"time_to_target_s": 20.0, "import_s": 2.5}) == 22.5
    assert peers.time_to_target({"time_to_target_s": None, "import_s": 2.5}) is None


# ----------------------------------------------------------------------------------------------------------- pong


def rows(upto: int, *, first_update: int = 5, rate: int = 100) -> metrics.Rows:
    """One row per second; half the rate during the first 15 s after the first update."""
    made, steps = [], 0
    for second in range(upto + 1):
        learning = second >= first_update
        steps += 0 if not learning else rate // 2 if second < first_update + 15 else rate
        made.append({"seconds": float(second), "env_steps": steps, "trained_steps": steps // 2, "updates": steps // 50,
                     "learner_idle": 0.5 if second < first_update + 15 else 0.02, "policy_lag_mean": 1.5})  # fmt: skip
    return made


def test_the_steady_rate_leaves_out_start_and_warm_up():
    window = pong.steady(rows(60), warm=15, length=1000, until=60)
    assert window is not None and window.env_steps_per_s == 100 and window.trained_steps_per_s == 50
    assert window.window_seconds == 40 and window.learner_idle == pytest.approx(0.02) and window.policy_lag_mean == 1.5


def test_the_steady_rate_leaves_out_the_row_written_after_the_final_checkpoint():
    late = rows(60)[-1] | {"seconds": 90.0}
    window = pong.steady([*rows(60), late], warm=15, length=1000, until=61)
    assert window is not None and window.env_steps_per_s == 100


def test_the_window_is_no_longer_than_asked_and_absent_where_there_is_nothing():
    window = pong.steady(rows(60), warm=15, length=20, until=60)
    assert window is not None and window.window_seconds in (20, 21)
    assert pong.steady(rows(19), warm=15, length=20, until=60) is None
    assert pong.steady([], warm=15, length=20, until=60) is None


def test_pong_takes_ratios_of_medians():
    options = pong.parse(["--repeats", "2"])
    run = lambda arm, rate, **more: {"arm": arm, "seed": 0, "command": "c", "steps_per_s": rate, **more}
    found = pong.summarise(options, NOW, [
        run("rookery impala", 800.0), run("rookery impala", 900.0), run("rllib", 200.0), run("rllib", 300.0),
        run("sample-factory", 600.0), {"arm": "sample-factory", "seed": 1, "command": "c", "failure": "lost"},
    ])  # fmt: skip
    assert [v.value for v in found.verdicts] == pytest.approx([3.4, 850 / 600])
    assert [v.met for v in found.verdicts] == [True, False]
    assert found.rows[2]["runs"] == 1 and found.failures == ["c: lost"]


# -------------------------------------------------------------------------------------------------------- central


def test_central_compares_medians_and_says_where_the_time_goes():
    options = central.parse(["--repeats", "2", "--more", "seed"])
    metrics = [
        {"seconds": float(s), "updates": s, "env_steps": 100 * s, "trained_steps": 100 * s, "time/env": 0.2 if s < 18 else 0.4}
        for s in range(1, 60)
    ]
    found = central.window(metrics, options, until=60)
    assert found["steps_per_s"] == pytest.approx(100) and 0.35 < found["env"] < 0.4 and found["learn"] is None
    assert "--start-seconds" in central.window(metrics[:10], options, until=60)["failure"]
    run = lambda arm, rate: {"arm": arm, "seed": 0, "command": "c", "steps_per_s": rate, "inference": rate / 1000}
    arms = [run("impala", 800.0), run("impala", 1000.0), run("sample-factory", 880.0), run("sample-factory", 840.0)]
    record = central.summarise(options, NOW, [*arms, {"arm": "seed", "seed": 0, "command": "c", "failure": "lost"}])
    assert [v.value for v in record.verdicts] == pytest.approx([860 / 900]) and record.verdicts[0].met
    assert [row["arm"] for row in record.rows] == ["impala", "sample-factory", "seed"]
    assert record.rows[1]["inference"] == pytest.approx(0.86) and record.failures == ["c: lost"]


# ------------------------------------------------------------------------------------------------------- updaters


def test_updaters_changes_one_number_at_a_time_and_holds_rates_against_the_first(tmp_path):
    options = updaters.parse(["--repeats", "1", "--collectors", "7", "3", "--seconds", "20"])
    arms = options.arms()
    assert [arm.name for arm in arms[:4]] == ["as it is", "2 updaters", "4 updaters", "labels used 4 times"]
    for arm in arms[1:]:
        assert sum(mine != first for mine, first in zip(arm[1:], arms[0][1:])) == 1, arm
    row = lambda s: {"refined/batches": 3.0 * s, "refined/target_age": 1.0, "refined/lag_mean": 4.0,
                     "replay/samples_per_insert": 2.0, "seconds": float(s), "updates": 2 * s, "env_steps": 100 * s}  # fmt: skip
    metrics = [row(s) for s in range(1, 60)]
    found = updaters.window(metrics, options)
    assert [found[name] for name in updaters.RATES] == pytest.approx([100, 3, 2]) and found["lag"] == 4.0
    assert "--start-seconds" in updaters.window(metrics[:10], options)["failure"]
    rates = {"as it is": (100.0, 3.0, 3.0), "2 updaters": (95.0, 5.4, 5.4), "labels used 4 times": (100.0, 3.0, 9.0)}
    runs = [
        {"arm": name, "seed": 0, "command": "c"} | dict(zip(updaters.RATES, mine)) | dict.fromkeys(updaters.MEANS, 1.0)
        for name, mine in rates.items()
    ]
    record = updaters.summarise(options, NOW, [*runs, {"arm": "3 collectors", "seed": 0, "command": "c", "failure": "lost"}])
    assert [v.value for v in record.verdicts[:3]] == pytest.approx([1.8, 0.95, 3.0])
    assert [v.met for v in record.verdicts[:3]] == [True] * 3 and record.failures == ["c: lost"]


def test_the_commands_of_updaters_are_ones_that_train_takes(tmp_path):
    from rookery.run import demonstrations
    from rookery.run.assemble import assemble
    from rookery.run.config import resolve

    logs = updaters.write_logs(tmp_path / "logs", 3)
    found = demonstrations.read(logs)
    assert len(found.episodes) == 3 and found.env == "grasping"
    arm = updaters.Arm("a", 3, updaters=2, uses=4, logged=0.5)
    words = arm.words(updaters.parse([]), logs)
    cfg = resolve(
        "qt-opt", env="grasping", collectors=3, num_envs=3, updaters=2, uses=4, demo_ratio=0.5, demonstrations=str(logs),
        replay={"error_buffer": updaters.FREE},
    )
    assert words[:4] == ["train", "qt-opt", "--env", "grasping"] and "logged experience" in assemble(cfg).plan.facts


# --------------------------------------------------------------------------------------------------------- memory


def test_growth_is_that_of_the_part_after_the_start():
    samples = [(0.0, 100.0), (30.0, 900.0)] + [(60.0 * m, 1000.0 + 3.0 * m) for m in range(2, 61)]
    assert memory.growth(samples) == pytest.approx(3.0, rel=0.05)


def test_a_size_that_swings_below_a_steady_peak_does_not_grow():
    samples = [(5.0 * i, 800.0 if i % 7 == 0 else 500.0 + 3 * (i % 50)) for i in range(360)]
    assert memory.growth(samples) == pytest.approx(0, abs=1e-9)


def test_nothing_measured_does_not_grow():
    assert memory.growth([]) is None and memory.growth([(0.0, 1.0)]) is None


def test_memory_counts_what_is_left_behind():
    closing = (125.0, 200.0)  # what is given back after training is no shrinking
    watch = memory.MemoryWatch(samples=[(0.0, 500.0), (60.0, 500.0), (120.0, 500.0), closing], threads=9)
    options = memory.parse(["--minutes", "2"])
    clean = {"processes": 0, "ports": [], "shared_memory": []}
    found = memory.summarise(options, NOW, "c", watch, clean, finished(120.0, env_steps=10), [])
    assert found.rows[0]["MB_per_minute"] == 0.0 and all(v.met for v in found.verdicts)
    dirty = clean | {"shared_memory": ["psm_1"]}
    found = memory.summarise(options, NOW, "c", watch, dirty, finished(120.0, env_steps=10), [])
    assert found.rows[0]["left_behind"] == 1 and not found.verdicts[-1].met


# ------------------------------------------------------------------------------------------------------- learning


def test_a_task_passes_when_its_worst_seed_does():
    task = learning.Task("t", "ppo --env X", at_least=475, metric="either")
    options = learning.parse(["--seeds", "2", "--out", "None"])
    assert options.out is None
    runs = [{"score": s, "seed": 0, "command": "c", "wall_seconds": 1.0, "env_steps": 5} for s in (480.0, 476.0)]
    good = learning.summarise(task, options, NOW, runs)
    assert good.verdicts[0].met and good.rows[0]["min"] == 476.0 and good.rows[0]["median"] == 478.0
    assert not learning.summarise(task, options, NOW, [runs[0], runs[1] | {"score": 474.0}]).verdicts[0].met
    failed = {"seed": 1, "command": "c", "wall_seconds": 1.0, "failure": "lost"}
    assert not learning.summarise(task, options, NOW, [runs[0], failed]).verdicts[0].met


def test_a_task_that_must_not_be_solved_is_judged_by_its_best_seed():
    task = learning.Task("t", "ppo --env X", at_most=0.65)
    options = learning.parse(["--seeds", "2"])
    runs = [{"score": s, "seed": 0, "command": "c", "wall_seconds": 1.0} for s in (0.5, 0.7)]
    assert not learning.summarise(task, options, NOW, runs).verdicts[0].met
    assert learning.summarise(task, options, NOW, [runs[0], runs[0]]).verdicts[0].met


def test_the_score_is_the_metric_that_the_task_names():
    answer = {"return_mean": 400.0, "eval_return_mean": 490.0}
    score = lambda metric: learning.Task("t", "", metric=metric).score(answer)
    assert (score("return_mean"), score("eval_return_mean"), score("either")) == (400.0, 490.0, 490.0)
    assert learning.Task("t", "", metric="either").score({"return_mean": None, "eval_return_mean": 3.0}) == 3.0
    assert learning.Task("t", "").score({"return_mean": 3.0, "eval_return_mean": None}) is None


def test_learning_runs_each_seed_and_keeps_the_exact_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        process, "rookery",
        lambda words, **_: finished(1.0, run="/some/place", env_steps=7, eval_return_mean=500.0, return_mean=1.0),
    )  # fmt: skip
    found = learning.measure(learning.parse(["--task", "cartpole-ppo", "--seeds", "2", "--jobs", "2"]))[0]
    commands = [run["command"] for run in found.runs]
    assert commands == [f"rookery train ppo --env CartPole-v1 --total-steps 300000 --seed {s} --json" for s in (0, 1)]
    assert found.verdicts[0].met and "/some/place" not in json.dumps(found.to_dict())


def test_the_names_of_the_tasks_are_unique_and_a_wrong_one_is_refused_with_the_nearest():
    assert len({task.name for task in learning.TASKS}) == len(learning.TASKS)
    with pytest.raises(SystemExit, match="Did you mean 'cartpole-ppo'"):
        learning.parse(["--task", "cartpole-poo"])


def test_a_curve_has_a_point_per_minute_and_the_last_one():
    made = [{"seconds": float(s), "env_steps": 10 * s, "return_mean": None if s < 60 else -21.0} for s in range(0, 150, 7)]
    points = metrics.curve(made)
    assert [p[0] for p in points] == [0.0, 1.05, 2.1, 2.45] and points[0][2] is None and points[-1] == (2.45, 1470, -21.0)


def test_a_cut_off_line_of_metrics_is_left_out(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"seconds": 1.0}\n{"seco')
    assert metrics.read_metrics(tmp_path) == [{"seconds": 1.0}]


# ------------------------------------------------------------------------------------------------------- roofline


class FakeConfig:
    system, env_name = "impala", "Pong"

    class run:
        seed = 0

    class topology:
        overlaps = True

    @staticmethod
    def to_dict() -> dict:
        return {"run": {"runs": "/some/place", "run": "x", "seed": 0}}


def test_the_limit_is_the_cores_over_the_cpu_time_of_a_frame():
    cost = lambda wall, cpu: roofline.Cost(wall, cpu, 1000)
    costs = {"environment": [cost(0.2, 0.4)], "inference": [cost(0.3, 0.3)], "learner": [cost(1.0, 1.3)]}
    wholes = [roofline.Whole(roofline.Cost(10.0, 19.0, 8000), 7900, 0.04)]
    options = roofline.Options(10.0, 1, None, False, FakeConfig, "impala --env Pong")
    found = roofline.summarise(options, NOW, costs, wholes)
    by_part = {row["part"]: row for row in found.rows}
    assert by_part["limit of the parts"]["frames/s"] == pytest.approx(2 / 0.002)  # 2 cores, 0.4 + 0.3 + 1.3 ms
    assert by_part["parts one after the other"]["frames/s"] == pytest.approx(1 / 0.0015)
    assert found.verdicts[0].value == pytest.approx(0.8) and [v.met for v in found.verdicts] == [True, True]
    assert "dearest part is the learner: 65%" in found.notes[0] and "/some/place" not in json.dumps(found.to_dict())


def test_the_bar_of_a_share_is_as_long_as_the_share():
    assert roofline.bar(0.5, 10) == "█████·····" and roofline.bar(1.7, 4) == "████" and roofline.bar(-1.0, 3) == "···"


def test_a_loop_is_timed_until_the_time_is_over():
    def loop() -> int:
        time.sleep(0.01)
        return 5

    cost = roofline.timed(loop, 0.1)
    assert 0.1 <= cost.wall < 1.0 and cost.frames >= 5 and cost.frames % 5 == 0 and cost.cpu < cost.wall
    assert roofline.timed(loop, 0.0).frames == 5, "at least once"


def test_a_bench_that_is_ended_ends_what_it_started(tmp_path: Path):
    """By SIGTERM, in the middle of a run that a thread waits for."""
    code = f"""
import subprocess
import sys
import time
from rookery_bench import learning, main, process
slow = [sys.executable, "-c", "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(60)"]
process.rookery = lambda *_, **__: process.run(slow, timeout=60)
main(["learning", "--task", "cartpole-ppo", "--seeds", "3", "--jobs", "2", "--out", "None"])
"""
    bench = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    bench.terminate()
    assert bench.wait(timeout=20) == 128 + 15
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


# ---------------------------------------------------------------------------------------------- environments


def test_every_way_to_run_an_environment_is_measured_with_the_choice():
    from rookery_bench import envs

    words = ["Pendulum-v1", "--num-envs", "4", "--seconds", "0.05", "--processes", "1"]
    (found,) = envs.measure(envs.parse([*words, "--rounds", "2"]))
    ways = [row["way"] for row in found.rows]
    assert ways[-2:] == ["SyncVectorEnv", "AsyncVectorEnv"] and "1 process, 2 groups" in ways and "in process, 1 group" in ways
    assert all(row["least"] <= row["steps_per_s"] <= row["greatest"] for row in found.rows)
    assert "`train` with 1 group would" in found.notes[0] and len(found.verdicts) == 2
    (worked,) = envs.measure(envs.parse([*words, "--rounds", "1", "--work-ms", "1"]))
    assert [v.what for v in worked.verdicts] == ["two groups : one, 1 process"]


def test_kills_are_survived_and_what_is_torn_would_be_seen(monkeypatch):
    import numpy as np

    from rookery.supervision import BackOff
    from rookery.types import TimeStep
    from rookery_bench import torn

    monkeypatch.setattr("rookery.envs.processes.supervisor.BACK_OFF", BackOff(0.05, 0.05))  # these die young
    found = torn.play(torn.parse(["--steps", "20000", "--num-envs", "8", "--kill-seconds", "0.2"]))
    assert found.steps >= 20000 and found.kills >= 1 and found.torn == found.wrong == found.odd == 0 and found.episodes > 50
    env, seen = torn.Numbered(), torn.Tallied()
    last = env.reset()[0]["head"][None].copy()
    rows = [env.step(0)[0] for _ in range(3)]
    rows[1]["body"] = np.r_[rows[1]["body"][:500], rows[0]["body"][500:]]  # half of it is the step before
    for row in (rows[0], rows[1], rows[1], rows[2]):
        flags = [np.zeros(1, bool)] * 3
        step = TimeStep(np.zeros(1), {name: value[None] for name, value in row.items()}, np.zeros(1), *flags)
        torn.judge(seen, step, last)
    assert seen.torn == 2 and seen.wrong == 1


# ------------------------------------------------------------------------------------------------------- runtimes


def test_runtimes_compares_returns_by_their_intervals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    local, ray = {"0": 480.0, "1": 490.0, "2": 500.0}, {"0": 400.0, "1": 401.0, "2": 402.0}
    asked = []

    def fake(command: list[str], *, runs: Path, timeout: float) -> process.Finished:
        seed, runtime = command[command.index("--seed") + 1], command[command.index("--runtime") + 1]
        asked.append((runtime, seed))
        (tmp_path / "metrics.jsonl").write_text("")
        return finished(3.0, eval_return_mean=(local if runtime == "local" else ray)[seed], run=str(tmp_path))

    monkeypatch.setattr(process, "rookery", fake)
    (found,) = runtimes.measure(runtimes.parse(["--part", "returns", "--seeds", "3"]))
    assert asked == [("local", "0"), ("ray", "0"), ("ray", "1"), ("local", "1"), ("local", "2"), ("ray", "2")], "in turns"
    low, high = 490 - 4.302653 * 10 / 3**0.5, 490 + 4.302653 * 10 / 3**0.5
    assert (found.rows[0]["low"], found.rows[0]["high"]) == (pytest.approx(low), pytest.approx(high))
    assert not found.verdicts[0].met, "480 to 500 is not 400 to 402"
    assert "seeds 0, 1, 2" in record.text(found)
    ray |= {"0": 470.0, "1": 495.0, "2": 500.0}
    assert runtimes.measure(runtimes.parse(["--part", "returns", "--seeds", "3"]))[0].verdicts[0].met


def test_two_systems_are_compared_at_equal_steps(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def fake(command: list[str], *, runs: Path, timeout: float) -> process.Finished:
        asked.append(command)
        seed = int(command[command.index("--seed") + 1])
        return finished(3.0, eval_return_mean=(400.0 if "seed" in command[1] else 300.0) + seed)

    monkeypatch.setattr(process, "rookery", fake)
    (found,) = returns.measure(returns.parse(["--systems", "impala", "seed", "--seeds", "2", "--total-steps", "700"]))
    assert [command[1] for command in asked] == ["impala", "seed", "seed", "impala"], "in turns"
    assert all(command[command.index("--total-steps") + 1] == "700" for command in asked)
    assert [row["eval_return_mean"] for row in found.rows] == [300.5, 400.5] and not found.verdicts[0].met


def test_runtimes_compares_rollouts_with_bare_ray(monkeypatch: pytest.MonkeyPatch):
    rounds = [
        {"bare": 1.0, "ours": 0.7, "ratio": 0.7},
        {"ours": 0.9, "bare": 1.0, "ratio": 0.9},
        {"bare": 0.5, "ours": 0.4, "ratio": 0.8},
    ]
    monkeypatch.setattr(process, "run", lambda command, **how: finished(9.0, nbytes=10**7, rounds=rounds))
    (found,) = runtimes.measure(runtimes.parse(["--part", "rollouts"]))
    assert [row["GB/s"] for row in found.rows] == [1.0, 0.7] and found.verdicts[0].value == 0.8 and found.verdicts[0].met
    monkeypatch.setattr(process, "run", lambda command, **how: process.Finished(9.0, {}, "left with status 1"))
    (failed,) = runtimes.measure(runtimes.parse(["--part", "rollouts"]))
    assert failed.failures and not failed.verdicts[0].met
