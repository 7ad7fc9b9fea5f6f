"""The bench of tables measures a full table and tells what it was asked for."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import rookery_bench
from rookery_bench import replay, replay_ray


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_the_record_tells_inserts_and_samples_per_second(selector, capsys):
    words = ["replay", "--item-bytes", "24", "--selector", selector, "--capacity", "2000", "--seconds", "0.03", "--json"]
    assert rookery_bench.main([*words, "--rounds", "1", "--batch-size", "32"]) == 0
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
    host = replay_ray.TableActor(replay.Options(item_bytes=8, selector="prioritized", capacity=1000, batch_size=16))
    assert host.fill() == 1000
    rollout = replay_ray.PrewrittenCollector((32, 16, 8)).collect(None).rollout
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


def test_rates_and_memory_of_a_large_table_are_told_by_windows():
    record = replay.sustained(replay.Options(item_bytes=1000, gigabytes=0.02, seconds=0.02, batch_size=16), {})
    assert len(record.rows) == 20 and record.rows[-1]["items"] == record.rows[9]["items"] == 20_000
    assert [row["phase"] for row in record.rows] == ["filling"] * 10 + ["full"] * 10
    assert all(row["inserts_per_s"] > 0 and row["samples_per_s"] > 0 and row["rss_GB"] > 0.02 for row in record.rows)


def test_a_large_table_counts_as_full_when_it_touches_no_new_memory_any_more():
    subject = replay.Subject(replay.Options(item_bytes=100, gigabytes=0.001, batch_size=16))
    store, touched = subject.store, []
    for _ in range(20):
        replay._window(subject, -(-store.num_chunks * store.chunk_rows // 10), least_seconds=0.0)
        touched.append(int((store.columns["item"].reshape(store.num_chunks, -1) != 0).any(axis=1).sum()))
    assert touched[4] < touched[9] == touched[-1]


def test_the_verdict_of_a_large_table_is_about_its_worst_window_and_the_growth_of_its_memory(monkeypatch):
    rates = iter([1.0] * 10 + [100.0] * 9 + [80.0])
    window = lambda *args, **options: {"inserts_per_s": next(rates), "samples_per_s": 7.0, "rss_GB": 1.0}
    monkeypatch.setattr(replay, "_window", window)
    verdicts = replay.sustained(replay.Options(item_bytes=1000, gigabytes=0.001), {}).verdicts
    assert [verdict.met for verdict in verdicts] == [False, True, True] and verdicts[0].value == pytest.approx(0.2)


DRIVER = """
import json, sys
lib = sys.argv[sys.argv.index("--lib") + 1]
if lib == {missing!r}: sys.exit("no such library")
rate = {{"cpprb": 9.0, "torchrl": 3.0}}[lib]
print(json.dumps({{"version": "1", "insert_per_s": 5.0, "chunk_insert_per_s": 7.0, "sample_per_s": rate}}))
"""
RATES = {"inserts_per_s": [30.0], "samples_per_s": [18.0], "memcpy_per_s": [20.0]}


def driven(directory, *, missing=None):
    (directory / "inproc_replay.py").write_text(DRIVER.format(missing=missing))
    options = replay.Options(peers=str(directory), peer_python=sys.executable, rounds=1)
    peers = replay.Peers(options)
    peers.measure(0.1)
    return replay.beside(options, replay.summarise(options, {"versions": {}}, RATES), peers)


def test_peers_are_driven_by_their_own_driver_and_stand_beside_ours_with_quotients(tmp_path):
    record = driven(tmp_path)
    ours, cpprb, torchrl = record.rows
    assert (ours["library"], cpprb["library"], torchrl["library"]) == ("rookery", "cpprb", "torchrl")
    assert cpprb["samples_ours_over_theirs"] == 2.0 and torchrl["samples_ours_over_theirs"] == 6.0
    assert cpprb["inserts_ours_over_theirs"] == 6.0 and cpprb["bulk_inserts_ours_over_theirs"] == 30 / 7
    assert [(verdict.value, verdict.met) for verdict in record.verdicts] == [(2.0, True), (6.0, True)]
    assert record.conditions["versions"] == {"cpprb": "1", "torchrl": "1"}


def test_a_peer_that_fails_is_told_and_nothing_is_claimed_of_it(tmp_path):
    record = driven(tmp_path, missing="torchrl")
    assert "torchrl" in record.failures[0] and "no such library" in record.failures[0]
    assert record.rows[2]["samples_per_s"] is None
    assert record.verdicts[0].value == 2.0 and "cpprb's, the best of the peers that answered" in record.verdicts[0].what


def test_peers_are_not_asked_for_what_their_driver_does_not_know(tmp_path):
    with pytest.raises(SystemExit, match="200 and 28224"):
        replay.Peers(replay.Options(item_bytes=77, peers=str(tmp_path), peer_python=sys.executable))
    assert replay.Peers(replay.Options(item_bytes=77)).names == []
