"""Which runs belong together, and what is said of those that do not count."""

import pytest
from run_files import write_run

from rookery.analysis import find
from rookery.run.directory import Run, RunError


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def labels(words, **options):
    return {group.label: [run.name for run in group.runs] for group in find(words, **options).groups}


def test_runs_that_differ_by_seed_alone_are_one_group(runs):
    for seed in range(3):
        write_run(runs / f"a{seed}", seed=seed)
        write_run(runs / f"b{seed}", system="a2c", seed=seed)
    assert labels(["a*", "b*"]) == {"ppo": ["runs/a0", "runs/a1", "runs/a2"], "a2c": ["runs/b0", "runs/b1", "runs/b2"]}
    assert labels(["runs/a0", "a1", "a0"]) == {"ppo": ["runs/a0", "runs/a1"]}, "one that is named twice is one run"


def test_options_that_differ_are_in_the_label_and_environments_are_not(runs):
    for i, rate in enumerate((0.001, 0.0001)):
        write_run(runs / f"cart{i}", learning_rate=rate, network={"hidden": [64 * (i + 1)]})
        write_run(runs / f"pend{i}", env="Pendulum-v1", learning_rate=rate, network={"hidden": [64 * (i + 1)]})
    assert labels(["*"]) == {
        "ppo learning_rate=0.001 hidden=[64]": ["runs/cart0", "runs/pend0"],
        "ppo learning_rate=0.0001 hidden=[128]": ["runs/cart1", "runs/pend1"],
    }
    write_run(runs / "other", env="Acrobot-v1", clip=0.9)
    assert len(labels(["cart0", "other"])) == 1, "a preset of another environment is no other recipe"


def test_a_directory_of_runs_is_a_group_by_its_name_unless_it_named_itself(runs):
    for name in ("wide", "narrow", "ppo-CartPole-v1-20261118-203000"):
        for seed in range(2):
            write_run(runs / name / f"seed-{seed}", seed=seed, hidden=name)
    assert set(labels(["wide", "narrow"])) == {"wide", "narrow"}
    assert set(labels(["ppo-CartPole-v1-20261118-203000"])) == {"ppo"}
    assert sum(map(len, labels(["runs"]).values())) == 6, "directories of directories are read too"
    assert set(labels(["wide", "narrow"], labels=["A", "B"])) == {"A", "B"}


def test_a_directory_of_different_systems_is_several_groups(runs):
    write_run(runs / "mixed" / "one")
    write_run(runs / "mixed" / "two", system="a2c")
    assert set(labels(["mixed"])) == {"ppo", "a2c"}


def test_groups_of_one_name_are_numbered(runs):
    write_run(runs / "x" / "seeds" / "seed-0")
    write_run(runs / "y" / "seeds" / "seed-0")
    assert set(labels([runs / "x" / "seeds", runs / "y" / "seeds"])) == {"seeds (1)", "seeds (2)"}


@pytest.mark.parametrize("by, wanted", [
    ("system", {"ppo": 3}), ("env", {"CartPole-v1": 2, "Pendulum-v1": 1}), ("seed", {"seed 0": 2, "seed 1": 1}),
    ("run", {"runs/a": 1, "runs/b": 1, "runs/c": 1}), ("learning-rate", {"learning_rate=0.001": 2, "learning_rate=1": 1}),
])  # fmt: skip
def test_what_makes_a_group_can_be_chosen(runs, by, wanted):
    write_run(runs / "a")
    write_run(runs / "b", seed=1, learning_rate=1.0)
    write_run(runs / "c", env="Pendulum-v1")
    assert {label: len(names) for label, names in labels(["*"], by=by).items()} == wanted


def test_what_cannot_be_grouped_so_is_said(runs):
    write_run(runs / "a")
    with pytest.raises(RunError, match="Did you mean 'learning_rate'"):
        find(["a"], by="learning-rat")
    with pytest.raises(RunError, match="2 for 1 groups, which are: ppo"):
        find(["a"], labels=["x", "y"])


def test_what_names_nothing_is_said(runs):
    write_run(runs / "first")
    (runs / "hollow").mkdir()
    for words, said in ((["nix*"], "no run matches 'nix\\*'"), (["frist"], "nearest: first"), ([], "no runs are named")):
        with pytest.raises(RunError, match=said):
            find(words)
    with pytest.raises(RunError, match="no run 'hollow'"):
        find(["hollow"])


def test_a_damaged_run_is_left_out_with_a_sentence_and_alone_it_is_an_error(runs):
    write_run(runs / "good")
    (write_run(runs / "bad", seed=1) / "config.json").write_text("{}")
    found = find(["good", "bad"])
    assert [run.name for group in found.groups for run in group.runs] == ["runs/good"]
    assert len(found.notes) == 1 and "runs/bad/config.json" in found.notes[0] and "left out" in found.notes[0]
    with pytest.raises(RunError, match="left out"):
        find(["bad"])


def test_a_run_that_is_being_written_counts_with_what_it_has(runs):
    with Run.open(write_run(runs / "a", status=None)) as run:
        run.lock()
        assert [group.runs[0].status for group in find(["a"]).groups] == ["running"]
        assert find(["a"]).notes == ("runs/a is still running: what it has so far is used.",)


def test_failed_and_repeated_runs_are_told_of(runs):
    write_run(runs / "a", status="failed", reason="EnvironmentFailed: it hung\nTraceback")
    write_run(runs / "b", status=None)
    (write_run(runs / "c", seed=4) / "metrics.jsonl").write_text("nonsense\n")
    notes = "\n".join(find(["a", "b", "c"]).notes)
    assert "runs/a failed: EnvironmentFailed: it hung\n" in notes and "Traceback" not in notes
    assert "runs/b failed: it was ended before it could say why" in notes
    assert "runs/c: 1 damaged line of its files left out" in notes
    assert "seed 0 counts more than once" in notes
