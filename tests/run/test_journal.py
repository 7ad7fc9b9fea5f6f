"""The journal: what is told where and when, without a run that trains."""

import json

import pytest

import rookery
from rookery.run import config, journal
from rookery.run.directory import Run
from rookery.run.display import PlainDisplay, QuietDisplay, Row
from rookery.run.journal import Journal, run_id
from rookery.types import Episode

ROW = Row(seconds=1.0, env_steps=64, updates=2, return_mean=float("nan"), phases={"env": 1.0}, report={"loss/policy": 0.5})


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path, "r", {"system": "a2c", "env": "identity"}, "") as run:
        yield run


def asked(**options):
    return Journal(config.resolve("a2c", env="identity", **options))


def test_rows_come_every_second_or_every_so_many_steps(run):
    by_time = asked()
    assert by_time.row_is_due(1.5, 10)
    by_time.show(ROW)  # at 1.0
    assert [by_time.row_is_due(now, 10) for now in (1.5, 1.99, 2.01)] == [False, False, True]
    by_steps = asked(log_every=100)
    due = [by_steps.row_is_due(99.0, steps) for steps in (64, 128, 192, 256, 512, 513)]
    assert due == [False, True, False, True, True, False]
    by_steps.begin_at(192)  # resumed there
    assert by_steps.row_is_due(0.0, 256) and not by_steps.row_is_due(0.0, 256)


def test_a_row_holds_what_is_known_and_the_users_numbers(run):
    told = asked()
    told.log({"my/thing": 3})
    told.row(ROW, {"env_failures": 0}, {"collectors": 1})
    assert not (run.path / "metrics.jsonl").exists(), "not open yet"
    told.open(run)
    told.row(ROW, {"env_failures": 0}, {"collectors": 1})
    told.close()
    (row,) = run.metrics.read()
    assert row["return_mean"] is None and row["my/thing"] == 3.0 and row["collectors"] == 1 and row["time/env"] == 1.0
    assert "phases" not in row and "starting" not in row and row["rss_mb"] > 0


def test_episodes_that_were_told_before_the_run_may_be_written_are_kept_for_it(run):
    told = asked()
    where = {"env_steps": 10, "updates": 1, "seconds": 1.0}
    told.episodes(4, [Episode(0, 1.0, 3)], **where)
    told.open(run)
    told.episodes(5, [Episode(0, 2.0, 3)], **where)
    told.flush()
    rows = [json.loads(line) for line in (run.path / "episodes.jsonl").read_text().splitlines()]
    assert [(row["episode"], row["return"]) for row in rows] == [(5, 1.0), (6, 2.0)]


def test_lines_said_before_anything_is_drawn_are_shown_when_it_is(run, capsys):
    told = asked()
    for number in range(12):
        told.say(f"line {number}.")
    assert isinstance(told.display, QuietDisplay)
    told.draw(run, 5, wanted=True)
    out = capsys.readouterr().out
    assert isinstance(told.display, PlainDisplay) and "line 11." in out and "line 1.\n" not in out, "the last ten"


@pytest.mark.parametrize("wanted, terminal, draws", [
    (None, False, False), (None, True, True), (True, False, True), (False, True, False)
])  # fmt: skip
def test_it_is_drawn_where_somebody_looks_or_who_asks_for_it(run, monkeypatch, wanted, terminal, draws):
    monkeypatch.setattr(journal, "in_terminal", lambda: terminal)
    told = asked()
    told.draw(run, 5, wanted=wanted)
    assert told.draws == draws


def test_in_a_notebook_it_is_drawn_there(run, monkeypatch):
    drawn = []
    monkeypatch.setattr(journal, "in_notebook", lambda: True)
    monkeypatch.setattr(journal, "NotebookDisplay", lambda header: drawn.append(header.name) or QuietDisplay())
    asked().draw(run, 5, wanted=None)
    asked().draw(run, 5, wanted=False)
    assert drawn == ["r"]


def test_a_board_knows_a_run_by_its_name_and_birth(run, tmp_path):
    assert run_id(run) == run_id(Run.open(str(run.path))) != ""
    with Run.create(tmp_path, "s", {"system": "a2c", "env": "identity"}, "") as other:
        assert run_id(other) != run_id(run)


def test_a_trainer_can_say_how_it_stands_before_its_first_step(tmp_path):
    with rookery.Trainer("a2c", env="identity", num_envs=4, runs=str(tmp_path / "runs")) as trainer:
        row = trainer.row()
    assert row.starting and row.env_steps == 0 and not (tmp_path / "runs").exists()
