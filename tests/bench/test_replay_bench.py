"""The bench of tables measures a full table and tells what it was asked for."""

from __future__ import annotations

import json

import pytest

from rookery import bench
from rookery.bench import replay


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_the_record_tells_inserts_and_samples_per_second(selector, capsys):
    words = ["replay", "--item-bytes", "24", "--selector", selector, "--capacity", "2000", "--seconds", "0.03", "--json"]
    assert bench.main([*words, "--rounds", "1", "--batch-size", "32"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["inserts_per_s"] > 100 and row["samples_per_s"] > 100
    assert row["item_bytes"] == 24 and row["capacity"] == 2000 and row["selector"] == selector


def test_a_full_table_is_measured_and_priorities_are_updated():
    subject = replay._Subject(replay.Options(item_bytes=8, selector="prioritized", capacity=1000, batch_size=16))
    for _ in range(10):
        subject.insert()
    assert len(subject.table) == 1000
    before = subject.table._priority.copy()
    assert subject.sample() == 16
    assert (subject.table._priority != before).sum() > 8


def test_the_peers_figures_are_the_bars():
    options = replay.Options(item_bytes=200, selector="uniform", rounds=1)
    rates = {"inserts_per_s": [400_000.0], "samples_per_s": [3e6], "memcpy_per_s": [6e6]}
    record = replay.summarise(options, {"cores": 2}, rates)
    assert [verdict.met for verdict in record.verdicts] == [True, False]
    assert record.rows[0]["share_of_memcpy"] == 0.5
