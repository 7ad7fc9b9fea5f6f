"""docs/metrics.md names all that a run writes; tests/test_matrix.py holds it against every algorithm on every topology."""

import json

import pytest
from metrics_page import PAGE, names, undocumented

import rookery
from rookery.run import boards

FILES = ("metrics.jsonl", "episodes.jsonl", "evaluations.jsonl", "result.json")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The keys of each file of a tiny run: file -> of each row."""
    runs = tmp_path_factory.mktemp("runs")
    small = {"num_envs": 4, "rollout_length": 8, "network": {"hidden": (4,)}, "eval_episodes": 2}
    rookery.train("a2c", env="identity", **small, runs=str(runs), run="r", total_steps=200, log_every=40, eval_every=2)
    rows = {file: (runs / "r" / file).read_text() for file in FILES}
    return {file: [json.loads(line) for line in ([text] if file == "result.json" else text.splitlines())]
            for file, text in rows.items()}  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_every_key_of_a_file_is_on_the_page(written, file):
    assert len(written[file]) >= (1 if file == "result.json" else 3)
    assert not undocumented(file, {key for row in written[file] for key in row})


@pytest.mark.parametrize("file", FILES[1:])
def test_every_name_on_the_page_is_in_every_row(written, file):
    for row in written[file]:
        assert {*names(file)} - {*row} <= {"eval_return_mean/POLICY", "return_mean/seed_N"}


def test_a_name_that_is_not_there_is_found_and_a_process_has_any_number():
    found = ["rss_mb/4711", "seconds", "loss/nothing", "return_mean/seed_12", "return_mean/seed_x"]
    assert undocumented("metrics.jsonl", found) == ["loss/nothing", "return_mean/seed_x"]
    assert undocumented("result.json", ["eval_return_mean/exploiter", "secondsx"]) == ["secondsx"]


def test_no_name_is_twice_in_a_section_and_the_numbers_of_boards_have_groups():
    for file in FILES:
        assert len(names(file)) == len(set(names(file))), file
    plain = [name for name in names("metrics.jsonl") if "/" not in name]
    shown = boards.grouped(dict.fromkeys(plain, 1.0), {"collectors": 1})
    assert len(shown) == len(plain) - len(boards.LEFT_OUT) and all(name.count("/") == 1 for name in shown)
    assert "PID" in PAGE.read_text()
