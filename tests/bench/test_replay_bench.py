"""The bench of tables measures a full table and tells what it was asked for."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from rookery import bench
from rookery.bench import replay, replay_ray


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_the_record_tells_inserts_and_samples_per_second(selector, capsys):
    words = ["replay", "--item-bytes", "24", "--selector", selector, "--capacity", "2000", "--seconds", "0.03", "--json"]
    assert bench.main([*words, "--rounds", "1", "--batch-size", "32"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["inserts_per_s"] > 100 and row["samples_per_s"] > 100
    assert row["item_bytes"] == 24 and row["capacity"] == 2000 and row["selector"] == selector


def test_a_full_table_is_measured_and_priorities_are_updated():
    subject = replay.Subject(replay.Options(item_bytes=8, selector="prioritized", capacity=1000, batch_size=16))
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


def test_a_table_in_an_actor_takes_rollouts_by_reference_and_priorities_with_the_next_request():
    host = replay_ray.Host(replay.Options(item_bytes=8, selector="prioritized", capacity=1000, batch_size=16))
    assert host.fill() == 1000
    rollout = replay_ray.Writer((32, 16, 8)).collect(None).rollout
    assert host.insert_rollout(rollout) == 512 and len(host.table) == 1000
    items, keys, weights = host.draw(None, None)
    assert items.shape == (16, 8) and weights is not None and weights.max() == 1.0
    host.draw(keys, np.full(16, 9.0))
    assert host.table.max_priority == 9.0


def test_shares_of_the_store_and_the_bar_are_told_of_a_table_in_an_actor():
    rates = {"inserts_per_s": [50.0], "samples_per_s": [90_000.0], "store_inserts_per_s": [100.0]}
    record = replay.summarise_ray(replay.Options(rounds=1), {}, rates | {"store_samples_per_s": [120_000.0]})
    assert record.rows[0]["share_of_store_samples"] == 0.75 and record.rows[0]["share_of_store_inserts"] == 0.5
    assert [verdict.met for verdict in record.verdicts] == [False]


def test_rates_and_memory_are_told_at_each_tenth_of_a_large_table():
    record = replay.sustained(replay.Options(item_bytes=1000, gigabytes=0.02, seconds=0.02, batch_size=16), {})
    assert len(record.rows) == 20 and record.rows[-1]["items"] == record.rows[10]["items"] == 20_000
    assert all(row["inserts_per_s"] > 0 and row["samples_per_s"] > 0 and row["rss_GB"] > 0.02 for row in record.rows)


def test_peers_are_driven_by_their_own_driver_and_a_missing_one_is_a_failure(tmp_path):
    answer = {"version": "1", "insert_per_s": 5.0, "chunk_insert_per_s": 7.0, "sample_per_s": 9.0}
    driver = f"import sys\nif 'cpprb' in sys.argv: print({json.dumps(json.dumps(answer))})\nelse: sys.exit('no torchrl')"
    (tmp_path / "inproc_replay.py").write_text(driver)
    options = replay.Options(peers=str(tmp_path), peer_python=sys.executable)
    [record] = replay.peer_records(options, {})
    assert record.rows[0]["samples_per_s"] == 9.0 and len(record.rows) == 1 and "no torchrl" in record.failures[0]
    assert replay.peer_records(replay.Options(), {}) == []
