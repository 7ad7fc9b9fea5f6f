"""`--seeds`: a directory for the group, a run in it for each seed, one display, a table, and a way to go on."""

import json
import shutil
import signal
import sys
import threading
import time

import gymnasium
import pytest
from command_line import Command

import rookery as package
from rookery.commands import seeds as several
from rookery.run import seeds
from rookery.run.config import ConfigError, resolve
from rookery.run.directory import Run, RunError

TINY = ("--env", "identity", "--num-envs", "4", "--rollout-length", "8", "--network.hidden", "4", "--eval-episodes", "2")


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Two seeds, trained by one worker, one after the other: (directory, answer)."""
    rookery = Command(tmp_path_factory.mktemp("group"))
    answer = rookery("train", "a2c", *TINY, "--total-steps", "320", "--run", "g", "--seeds", "2,7", "--jobs", "1")
    assert answer.status == 0, answer
    return rookery, answer


def test_each_seed_is_an_ordinary_run_in_the_directory_of_the_group(group):
    directory = group[0].directory / "runs" / "g"
    assert sorted(path.name for path in directory.iterdir()) == ["group.json", "seed-2", "seed-7"]
    for seed in (2, 7):
        run = Run.open(directory / f"seed-{seed}")
        assert run.config["config"]["run"]["seed"] == seed
        assert json.loads((run.path / "result.json").read_text())["status"] == "done"
        assert f"--seed {seed} --run seed-{seed} --runs runs/g" in run.config["command"]
    assert (directory / "seed-2" / "metrics.jsonl").read_text() != (directory / "seed-7" / "metrics.jsonl").read_text()


def test_the_table_in_the_end_has_every_seed_and_what_they_have_in_common(group):
    out = group[1].out
    for said in ("2 seeds of a2c on identity in runs/g", "seed 2 done", "2 of 2 seeds", "IQM", "of 2", "rookery plot g"):
        assert said in out, out
    assert max(map(len, out.splitlines())) <= 110


def test_the_seeds_are_listed_and_evaluated_by_their_path(group):
    rookery, _ = group
    assert {row["run"] for row in json.loads(rookery("list", "runs", "--json").out)} == {"g/seed-2", "g/seed-7"}
    assert json.loads(rookery("eval", "g/seed-2", "--episodes", "1", "--json").out)["episodes"] == 1
    answer = rookery("eval", "g")
    assert answer.status == 2 and "is a group of runs, one for each seed: give one of them" in answer.err


def test_a_group_is_not_trained_twice_and_one_that_is_done_says_its_results_without_a_worker(group, monkeypatch):
    rookery, _ = group
    words = ("train", "a2c", *TINY, "--total-steps", "320", "--run", "g", "--seeds", "2,7")
    answer = rookery(*words)
    assert answer.status == 2 and "already holds 2 seeds. Go on with `rookery resume g`" in answer.err
    monkeypatch.setattr(seeds, "WORKER", ("/bin/false",))
    for again in (("resume", "g", "--json"), (*words, "--resume", "auto", "--json")):
        answer = rookery(*again)
        assert answer.status == 0, answer
        assert [(row["seed"], row["status"]) for row in json.loads(answer.out)] == [(2, "done"), (7, "done")]


def test_what_was_not_done_is_gone_on_with_and_the_rest_stays(group, tmp_path):
    shutil.copytree(group[0].directory / "runs", tmp_path / "runs")
    kept = (tmp_path / "runs" / "g" / "seed-2" / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "runs" / "g" / "seed-7")
    answer = Command(tmp_path)("resume", "g", "--json")
    assert answer.status == 0 and [row["status"] for row in json.loads(answer.out)] == ["done", "done"]
    assert (tmp_path / "runs" / "g" / "seed-2" / "metrics.jsonl").read_bytes() == kept
    again, first = (json.loads((root / "runs/g/seed-7/result.json").read_text()) for root in (tmp_path, group[0].directory))
    assert again["return_mean"] == first["return_mean"] and again["env_steps"] == first["env_steps"]


UNBLOCK = "import json, signal, sys, time; signal.pthread_sigmask(signal.SIG_UNBLOCK, [2]); "
ENDLESS = UNBLOCK + """
def stop(*_):
    print(json.dumps({'status': 130}), flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
sys.stdin.readline(); time.sleep(60)"""
FAILING = UNBLOCK + """
for line in sys.stdin:
    bad = '0' == json.loads(line)[json.loads(line).index('--run') + 1][-1]
    print(json.dumps({'status': 4, 'error': 'rookery: NaN'} if bad else {'status': 0, 'metrics': {'return_mean': 7.0}}))
    sys.stdout.flush()"""


def made(monkeypatch, tmp_path, code, numbers):
    """A group whose workers run that code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seeds, "WORKER", (sys.executable, "-c", code))
    return seeds.Group.create(resolve("a2c", env="identity", seed=1, run="g"), numbers, again=False)


def test_a_seed_that_fails_is_named_and_the_others_are_trained(tmp_path, monkeypatch, capsys):
    group = made(monkeypatch, tmp_path, FAILING, (0, 1, 3))
    assert several.run(group, 1, as_json=False) == 4
    out = capsys.readouterr().out
    assert "seed 0 failed" in out and "NaN" in out and "2 of 3 seeds" in out and "rookery resume g" in out
    assert "mean 7" in out and "of 2" in out


def test_ctrl_c_stops_every_worker_and_begins_no_seed(tmp_path, monkeypatch):
    crew = seeds.Crew(made(monkeypatch, tmp_path, ENDLESS, (0, 1, 2)), 2)
    threading.Timer(1.0, lambda: crew.interrupt("SIGINT")).start()
    begin = time.monotonic()
    while crew.wait(0.2):
        pass
    crew.close()
    assert [one.state for one in crew.results()] == ["stopped"] * 3 and time.monotonic() - begin < 30
    assert "not begun" in crew.results()[2].error and {one.status for one in crew.results()} == {128 + signal.SIGINT}


def test_a_worker_that_dies_costs_its_seed_and_no_more(tmp_path, monkeypatch):
    crew = seeds.Crew(made(monkeypatch, tmp_path, "pass", (0, 1)), 2)
    while crew.wait(0.2):
        pass
    crew.close()
    assert [(one.state, one.error) for one in crew.results()] == [("failed", "rookery: its process was ended")] * 2


def test_python_trains_seeds_of_its_own_parts_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"num_envs": 4, "rollout_length": 8, "network": {"hidden": (4,)}, "eval_episodes": 1, "total_steps": 64}
    results = package.train_seeds("a2c", env=lambda: gymnasium.make("CartPole-v1"), seeds=[3], run="mine", **options)
    assert [result.status for result in results] == ["done"] and results[0].run.endswith("runs/mine/seed-3")
    assert results[0].metrics["run"] == "runs/mine/seed-3" and callable(results[0].policy)


@pytest.mark.parametrize("text, numbers", [("3", (0, 1, 2)), ("0,3,7", (0, 3, 7)), ("4,", (4,)), (" 2 , 1 ", (2, 1))])
def test_seeds_are_a_number_of_them_or_a_list(text, numbers):
    assert seeds.parse(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1,1", "1,-2", "1.5", "99999", "3000000000,"])
def test_what_are_no_seeds_is_refused(text):
    with pytest.raises(ConfigError, match="--seeds"):
        seeds.parse(text)


def test_jobs_are_as_many_as_the_cores_carry(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rookery.run.startup.available_cores", lambda: 4)
    jobs = lambda system, n: seeds.Group(path=tmp_path, seeds=tuple(range(n)), config=resolve(system, env="CartPole-v1")).jobs
    assert (jobs("ppo", 8), jobs("ppo", 3), jobs("impala", 8)) == (4, 3, 2)


def test_the_mean_of_the_middle_is_scipys_trimmed_mean_and_edge_values_count_by_their_share():
    stats = pytest.importorskip("scipy.stats")
    for values in ([1.0], [1.0, 5.0], [3.0, 1.0, 2.0, 10.0], list(map(float, range(16)))):
        told = seeds.statistics(values)
        assert told["iqm"] == pytest.approx(stats.trim_mean(values, 0.25)) and told["min"] == min(values)
    by_hand = (0.75 * 2 + 5 + 0.75 * 7) / 2.5  # of five, the second and the fourth lie three quarters within
    assert seeds.statistics([5.0, 1.0, 9.0, 2.0, 7.0])["iqm"] == pytest.approx(by_hand)


def test_a_run_is_no_group_and_a_group_needs_a_name_to_be_gone_on_with(group, monkeypatch):
    rookery, _ = group
    monkeypatch.chdir(rookery.directory)
    cfg = resolve("a2c", env="identity")
    with pytest.raises(ConfigError, match="needs --run NAME"):
        seeds.Group.create(cfg, (0,), again=True)
    with pytest.raises(RunError, match="is a run, and no group"):
        seeds.Group.create(resolve("a2c", env="identity", run="seed-2", runs="runs/g"), (0,), again=False)
