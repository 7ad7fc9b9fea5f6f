"""What a run's files tell, whatever is in them."""

import json

import numpy as np
import pytest
from run_files import row, write_lines, write_run

from rookery.analysis.history import read, trailing
from rookery.run.directory import ConfigDamaged


def test_the_training_return_is_read_over_every_axis(tmp_path):
    run = read(write_run(tmp_path / "a", points=[(100, 1.0), (300, 3.0)], steps_per_s=50.0))
    assert [part.tolist() for part in run.series("return", "steps")] == [[100, 300], [1, 3]]
    assert run.series("return", "seconds").x.tolist() == [2, 6]
    assert run.series("return_mean", "updates").x.tolist() == run.series("return", "episodes").x.tolist() == [1, 3]
    assert run.series("loss/value").y.tolist() == pytest.approx([1 / 101, 1 / 301])
    assert len(run.series("nothing").x) == 0 and "loss/value" in run.metrics
    assert (run.system, run.env, run.seed, run.status, run.damaged) == ("ppo", "CartPole-v1", 0, "done", 0)


def test_episodes_on_file_are_averaged_as_every_run_averages_them(tmp_path):
    episodes = [{"env_steps": 10 * (i + 1), "updates": i, "seconds": i / 10, "return": float(i), "episode": i + 1}
                for i in range(150)]  # fmt: skip
    run = read(write_run(tmp_path / "a", episodes=episodes))
    points = run.series("return")
    assert points.y[0] == 0.0 and points.y[9] == pytest.approx(4.5), "of those there are"
    assert points.y[-1] == pytest.approx(np.mean(range(50, 150))), "of the last 100"
    assert run.series("return", "episodes").x.tolist() == list(range(1, 151))
    thinned = read(write_run(tmp_path / "b", points=[(100, 7.0)], episodes=episodes[1::2]))
    assert thinned.series("return").y.tolist() == [7.0], "every second one is no last 100: the rows of the run are"


def test_evaluations_on_file_are_read_and_without_the_file_where_the_number_changed(tmp_path):
    told = [{"env_steps": 100 * i, "updates": i, "seconds": i / 10, "mean": mean} for i, mean in ((1, 5.0), (2, 9.0))]
    with_file = read(write_run(tmp_path / "a", evaluations=told))
    assert with_file.series("eval").y.tolist() == [5, 9] and with_file.series("eval", "seconds").x.tolist() == [0.1, 0.2]
    assert with_file.series("eval", "episodes").x.tolist() == [1, 2]
    without = write_run(tmp_path / "b", points=[(400, 0.0)], eval_return_mean=9.0)
    values = (None, 5.0, 5.0, 7.0)
    write_lines(without / "metrics.jsonl", [row(100 * i, 0.0) | {"eval_return_mean": value} for i, value in enumerate(values)])
    assert [part.tolist() for part in read(without).series("eval")] == [[100, 300, 400], [5, 7, 9]]
    assert read(without).final_evaluation == 9.0


def test_damaged_lines_and_words_for_numbers_are_left_out_and_counted(tmp_path):
    path = write_run(tmp_path / "a", points=[])
    good = [json.dumps(row(steps, steps / 100)) for steps in (100, 200, 300)]
    wrong = ["", "[1]", '{"env_steps": ', "\x00\xff", '{"env_steps": "many", "return_mean": 3}', json.dumps(row(400, None))]
    huge = json.dumps(row(500, 1.0) | {"return_mean": 10**400})
    text = "\n".join([good[0], *wrong, good[1], huge, '{"env_steps": 250, "return_mean": NaN}', good[2]]) + '\n{"env_steps": 9'
    (path / "metrics.jsonl").write_bytes(text.encode("latin-1"))
    run = read(path)
    assert [part.tolist() for part in run.series()] == [[100, 200, 300], [1, 2, 3]]
    assert run.damaged == 4, "the half line at the end is one that is being written"


def test_points_are_in_order_and_the_last_of_those_at_one_place_counts(tmp_path):
    run = read(write_run(tmp_path / "a", points=[(200, 1.0), (100, 5.0), (200, 2.0)]))
    assert [part.tolist() for part in run.series()] == [[100, 200], [5, 2]]


def test_a_run_without_rows_or_result_has_no_points(tmp_path):
    path = write_run(tmp_path / "a", points=[], status=None)
    (path / "metrics.jsonl").unlink()
    run = read(path)
    assert run.status == "failed" and not len(run.series().x) and not len(run.series("eval").x) and not run.metrics
    assert np.isnan(run.final_evaluation) and np.isnan(run.last_step)


def test_a_damaged_config_is_an_error_with_a_sentence(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "config.json").write_bytes((path / "config.json").read_bytes().replace(b'"ppo"', b'"a2c"'))
    with pytest.raises(ConfigDamaged, match="digest"):
        read(path)


def test_a_trailing_mean_skips_what_is_missing():
    assert trailing(np.array([1.0, np.nan, 3.0, 5.0]), 3).tolist() == [1.0, 1.0, 2.0, 4.0]
