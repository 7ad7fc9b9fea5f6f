"""The bench of scaling counts what it says it counts."""

from __future__ import annotations

from rookery_bench.reduction import Reducer
from rookery_bench.scaling import Options, bytes_per_step, counts, summarise


def test_powers_of_two_up_to_the_most_and_the_most_itself() -> None:
    assert [counts(n) for n in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_bytes_per_step_count_each_batch_once_and_parameters_for_every_collector() -> None:
    edges = [{"name": "rollouts", "nbytes": 500}, {"name": "batches", "nbytes": 1000}, {"name": "parameters", "nbytes": 60}]
    graph = {"facts": {"steps per update": "1,00"}, "nodes": {"collector": 3}, "edges": edges}
    moved = {"rollouts": 10.0, "batches": 10.0, "parameters": 1.8}
    assert bytes_per_step(graph) == moved | {"gradients": 0.0}
    assert bytes_per_step(graph, sharing=2) == moved | {"gradients": 1.2}


def test_efficiency_is_relative_to_one_collector_of_the_same_runtime() -> None:
    def run(runtime: str, collectors: int, devices: int, rate: float, learners: int | None = None) -> dict:
        rates = {"env_steps_per_s": rate, "trained_steps_per_s": rate, "learner_idle": 0.1}
        kind = {"runtime": runtime, "collectors": collectors, "devices": devices, "learners": learners, "command": "x"}
        return (
            kind | rates | {"bytes_per_step": {"rollouts": 7.0}, "sum": {"vector": 9.0, "tree": 40.0} if learners == 2 else {}}
        )

    runs = [run("local", 1, 1, 100.0), run("local", 2, 1, 150.0), run("ray", 1, 1, 50.0), run("ray", 2, 1, 100.0)]
    runs += [run("local", 1, 2, 80.0), {"runtime": "ray", "collectors": 4, "devices": 1, "command": "y", "failure": "lost"}]
    runs += [run("local", 1, 1, 40.0, learners=1), run("local", 1, 1, 48.0, learners=2)]
    record = summarise(Options(), {}, runs)
    assert [row["efficiency"] for row in record.rows] == [1.0, 0.75, 1.0, 1.0, 0.4, 1.0, 0.6]
    assert [row["sum, tree"] for row in record.rows][-2:] == [None, 40.0]
    assert record.failures == ["y: lost"] and record.rows[0]["rollouts B/step"] == 7.0


def test_what_is_summed_is_checked_and_timed_both_ways() -> None:
    found = Reducer().reduce(devices=1, megabytes=0.01, leaves=5, repeats=2)
    assert set(found) == {"vector", "tree"} and all(value > 0 for value in found.values())
