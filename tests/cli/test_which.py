"""`--which best|last|N` of eval and record, and what they take where nothing is said."""

import json
import shutil

import pytest
from command_line import SMALL, Command, Trained

from rookery.run.display import number

GOAL = ("--stop-eval-return", "0", "--eval-every", "2", "--checkpoint-every", "1", "--learning-rate", "0.3")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that its evaluation ended, and that learned from what was in flight after it. None may change it."""
    rookery = Command(tmp_path_factory.mktemp("stopped"))
    answer = rookery("train", "impala", "--env", "identity", *SMALL, *GOAL, "--run", "goal")
    return Trained(rookery, rookery.directory / "runs" / "goal", answer)


@pytest.fixture
def copied(stopped, tmp_path):
    shutil.copytree(stopped.run, tmp_path / "runs" / "goal")
    return tmp_path / "runs" / "goal"


def evaluated(rookery, *words):
    answer = rookery("eval", *words, "--episodes", "2", "--seed", "1000003", "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


def updates_in(run):
    return sorted(int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("update-*"))


def test_a_run_that_its_evaluation_ended_is_evaluated_to_what_it_told(stopped):
    result = json.loads((stopped.run / "result.json").read_text())
    found = evaluated(stopped.rookery, "goal")
    assert result["policy"] == "best" == found["checkpoint"]
    assert found["eval_return_mean"] == result["eval_return_mean"] and found["env_steps"] < result["env_steps"]
    steps = f"{found['env_steps']:,} steps"
    assert f"policy     checkpoints/best (evaluated {number(result['eval_return_mean'])} after {steps})" in stopped.answer.out
    assert f"impala on identity, checkpoint best: {steps} trained" in stopped.rookery("eval", "goal").out


def test_which_chooses_for_eval_and_an_unknown_one_names_those_there_are(stopped):
    *_, newest = there = updates_in(stopped.run)
    assert evaluated(stopped.rookery, "goal", "--which", "best")["checkpoint"] == "best"
    for word in ("last", str(newest)):
        assert evaluated(stopped.rookery, "goal", "--which", word)["checkpoint"] == f"update-{newest:010d}"
    unknown = stopped.rookery("eval", "goal", "--which", "987")
    assert unknown.status == 2 and "no checkpoint '987': use best, last, or the number" in unknown.err
    assert unknown.err.endswith(f"there: {', '.join(map(str, there))}\n")
    assert evaluated(stopped.rookery, "runs/goal/checkpoints/best")["checkpoint"] == "best"
    both = stopped.rookery("eval", "runs/goal/checkpoints/best", "--which", "last")
    assert both.status == 2 and "leave out --which" in both.err


def test_which_chooses_for_record(stopped, tmp_path):
    for words, used in (((), "best"), (("--which", "last"), f"update-{updates_in(stopped.run)[-1]:010d}")):
        answer = stopped.rookery("record", "goal", *words, "--episodes", "2", "--out", str(tmp_path / "demos"))
        assert answer.status == 0 and f"by runs/goal, checkpoint {used}\n" in answer.out, answer
    answer = stopped.rookery("record", "goal", "--which", "nest", "--out", str(tmp_path / "none"))
    assert answer.status == 2 and "'nest'" in answer.err and not (tmp_path / "none").exists()


def test_a_finished_run_that_no_evaluation_ended_has_a_best_too_and_stands_for_its_last(trained):
    result = json.loads((trained.run / "result.json").read_text())
    assert result["policy"] == "last" and result["eval_return_best"] == result["eval_return_mean"]
    best, last = (evaluated(trained.rookery, "first", *words) for words in (("--which", "best"), ()))
    assert best["checkpoint"] == "best" and last["checkpoint"] == f"update-{result['updates']:010d}"
    assert best["returns"] == last["returns"] and best["env_steps"] == last["env_steps"]


def test_the_best_is_not_resumed_and_the_run_is(rookery, copied):
    answer = rookery("resume", "runs/goal/checkpoints/best")
    newest = updates_in(copied)[-1]
    assert answer.status == 2 and "policy alone" in answer.err and f"resumed: update-{newest:010d}" in answer.err
    answer = rookery("resume", "goal", "--json")
    assert answer.status == 0 and json.loads(answer.out)["updates"] > newest, answer.err


def test_a_damaged_best_gives_way_to_the_last_and_is_an_error_where_it_was_asked_for(rookery, copied):
    (data,) = (copied / "checkpoints/best").glob("arrays-*")
    changed = bytearray(data.read_bytes())
    changed[7] ^= 4
    data.write_bytes(changed)
    asked = rookery("eval", "goal", "--which", "best")
    assert asked.status == 5 and "digest" in asked.err and "--which last" in asked.err and "Traceback" not in asked.err
    answer = rookery("eval", "goal")
    assert answer.status == 0 and f"checkpoint update-{updates_in(copied)[-1]:010d}" in answer.out
    assert "is used instead" in answer.err and "best/arrays-000.bin" in answer.err
