"""The bench of scaling counts what it says it counts."""

from __future__ import annotations

from rookery.bench.scaling import Options, bytes_per_step, counts, summarise


def test_powers_of_two_up_to_the_most_and_the_most_itself() -> None:
    assert [counts(n) for n in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_bytes_per_step_count_each_batch_once_and_parameters_for_every_collector() -> None:
    edges = [{"name": "rollouts", "nbytes": 500}, {"name": "batches", "nbytes": 1000}, {"name": "parameters", "nbytes": 60}]
    graph = {"facts": {"steps per update": "1,00"}, "nodes": {"collector": 3}, "edges": edges}
    assert bytes_per_step(graph) == {"rollouts": 10.0, "batches": 10.0, "parameters": 1.8}


def test_efficiency_is_relative_to_one_collector_of_the_same_runtime() -> None:
    def run(runtime: str, collectors: int, devices: int, rate: float) -> dict:
        rates = {"env_steps_per_s": rate, "trained_steps_per_s": rate, "learner_idle": 0.1}
        kind = {"runtime": runtime, "collectors": collectors, "devices": devices, "command": "x"}
        return kind | rates | {"bytes_per_step": {"rollouts": 7.0}}

    runs = [run("local", 1, 1, 100.0), run("local", 2, 1, 150.0), run("ray", 1, 1, 50.0), run("ray", 2, 1, 100.0)]
    runs += [run("local", 1, 2, 80.0), {"runtime": "ray", "collectors": 4, "devices": 1, "command": "y", "failure": "lost"}]
    record = summarise(Options(), {}, runs)
    assert [row["efficiency"] for row in record.rows] == [1.0, 0.75, 1.0, 1.0, 0.4]
    assert record.failures == ["y: lost"] and record.rows[0]["rollouts B/step"] == 7.0
