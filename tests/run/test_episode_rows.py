"""episodes.jsonl: every episode, in a file that does not grow for ever, once each however often the run is resumed."""

import json

import pytest

from rookery.run import episodes
from rookery.run.episodes import EpisodeFile, stride_at
from rookery.types import Episode


def rows(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def numbers(path):
    return [row["episode"] for row in rows(path)]


def tell(file, before, count, updates=1):
    file.add(before, [Episode(0, float(n), n) for n in range(before + 1, before + count + 1)],
             env_steps=10 * updates, updates=updates, seconds=0.12345)  # fmt: skip


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(episodes, "MOST_ROWS", 8)


def test_a_row_says_which_episode_and_where_the_run_stood(tmp_path):
    file = EpisodeFile(tmp_path / "e.jsonl")
    file.add(4, [Episode(3, 21.5, 21), Episode(0, float("nan"), 2)], env_steps=2048, updates=1, seconds=3.25)
    assert not file.path.exists(), "it is held back"
    file.close()
    where = {"env_steps": 2048, "updates": 1, "seconds": 3.25}
    assert rows(file.path) == [
        {"episode": 5, **where, "return": 21.5, "length": 21}, {"episode": 6, **where, "return": None, "length": 2}
    ]  # fmt: skip


def test_no_more_than_so_many_rows_are_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "HELD_ROWS", 3)
    file = EpisodeFile(tmp_path / "e.jsonl")
    tell(file, 0, 2)
    assert not file.path.exists()
    tell(file, 2, 2)
    assert numbers(file.path) == [1, 2, 3, 4]


def test_of_many_episodes_every_second_is_kept_then_every_fourth(tmp_path, few):
    file = EpisodeFile(tmp_path / "e.jsonl")
    for before in range(100):
        tell(file, before, 1)
        file.flush()
        stride = stride_at(before + 1)
        assert numbers(file.path) == list(range(stride, before + 2, stride)), before
        assert len(numbers(file.path)) <= 8
    assert stride_at(100) == 16


@pytest.mark.parametrize("batch", [1, 3, 7, 64])
def test_the_rows_do_not_depend_on_how_many_are_told_at_a_time(tmp_path, few, batch):
    file = EpisodeFile(tmp_path / "e.jsonl")
    for before in range(0, 64, batch):
        tell(file, before, min(batch, 64 - before))
    file.close()
    assert numbers(file.path) == [8, 16, 24, 32, 40, 48, 56, 64]


def test_a_file_that_is_rewound_has_no_row_twice_and_none_is_missing(tmp_path, few):
    path = tmp_path / "e.jsonl"
    file = EpisodeFile(path)
    tell(file, 0, 5)
    file.flush()
    tell(file, 5, 1)  # in memory when it is rewound
    file.rewind(4)
    tell(file, 4, 2, updates=2)
    file.close()
    assert numbers(path) == [1, 2, 3, 4, 5, 6] and [row["updates"] for row in rows(path)] == [1, 1, 1, 1, 2, 2]
    again = EpisodeFile(path)  # by a process that knows nothing of the file
    again.rewind(6)
    tell(again, 6, 7, updates=3)
    again.close()
    assert numbers(path) == [2, 4, 6, 8, 10, 12]


def test_half_a_line_of_a_killed_writer_is_cut_off(tmp_path):
    path = tmp_path / "e.jsonl"
    file = EpisodeFile(path)
    tell(file, 0, 2)
    file.close()
    with open(path, "a") as end:
        end.write('{"episode": 3, "env_st')
    again = EpisodeFile(path)
    again.rewind(2)
    tell(again, 2, 1)
    again.close()
    assert numbers(path) == [1, 2, 3]


def test_a_disk_that_refuses_costs_rows_and_one_warning(tmp_path, monkeypatch, caplog):
    file = EpisodeFile(tmp_path / "gone" / "e.jsonl")
    for before in range(0, 20, 5):
        tell(file, before, 5)
        file.flush()
    assert file.rows.lost_rows == 20 and len(caplog.records) == 1
    (tmp_path / "gone").mkdir()
    tell(file, 20, 1)
    file.close()
    assert numbers(file.path) == [21]
