"""`rookery plot` and `rookery compare` as they are typed, on a run that was trained and on runs that were written."""

import json
import shutil

import pytest
from run_files import learning, write_run


@pytest.fixture
def runs(rookery):
    """Two systems with three seeds each, in directories of their own, as --seeds leaves them."""
    place = rookery.directory / "runs"
    for system, high in (("ppo", 480.0), ("a2c", 300.0)):
        for seed in range(3):
            write_run(place / f"{system}-seeds" / f"seed-{seed}", system=system, seed=seed, points=learning(seed, high=high))
    return place


def test_a_trained_run_is_drawn_beside_its_files_and_in_the_terminal(rookery, trained):
    shutil.copytree(trained.run, rookery.directory / "runs" / "first")
    answer = rookery("plot", "first")
    assert (answer.status, answer.out, answer.err) == (0, "runs/first/plot.png\n", "")
    assert (rookery.directory / "runs" / "first" / "plot.png").read_bytes()[:4] == b"\x89PNG"
    text = rookery("plot", "first", "--text", "--x", "updates")
    assert text.status == 0 and text.out.startswith("identity: return\n") and "┤" in text.out and "One run" in text.out
    loss = rookery("plot", "first", "--y", "loss/value", "--out", "loss.svg", "--title", "Loss", "--dark")
    assert loss.out == "loss.svg\n" and "<svg" in (rookery.directory / "loss.svg").read_text()


def test_groups_are_drawn_beside_the_runs_and_told_as_json(rookery, runs):
    answer = rookery("plot", "ppo-seeds", "a2c-seeds", "--x", "seconds")
    assert (answer.status, answer.out, answer.err) == (0, "runs/ppo-seeds-a2c-seeds-plot-seconds.png\n", "")
    told = json.loads(rookery("plot", "*-seeds", "--json", "--text").out)
    assert told["out"] is None and [curve["group"] for curve in told["curves"]] == ["a2c-seeds", "ppo-seeds"]
    curve = told["curves"][0]
    assert curve["env"] == "CartPole-v1" and len(curve["runs"]) == 3 and set(curve["there"]) == {3}
    assert all(low <= middle <= high for low, middle, high in zip(curve["low"], curve["middle"], curve["high"]))


def test_a_window_that_cannot_open_is_no_reason_not_to_write(rookery, runs, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    answer = rookery("plot", "ppo-seeds", "--show", "--out", "a.png")
    assert answer.status == 0 and "no display" in answer.err and (rookery.directory / "a.png").exists()


def test_groups_are_compared_in_a_table_a_sentence_and_json(rookery, runs):
    answer = rookery("compare", "ppo-seeds", "a2c-seeds", "--score", "250", "--at-steps", "3e5")
    assert answer.status == 0 and answer.err == ""
    for part in ("at 300,000 steps", "IQM", "Every run of ppo-seeds is above every run of a2c-seeds", "3 of 3", "hint"):
        assert part in answer.out, part
    told = json.loads(rookery("compare", "ppo-seeds", "a2c-seeds", "--json", "--out", "c.png", "--resamples", "200").out)
    assert told["out"] == "c.png" and (rookery.directory / "c.png").exists()
    assert told["pairs"][0]["better"] == "ppo-seeds" and told["groups"][0]["seeds"] == {"CartPole-v1": 3}


def test_runs_that_cannot_be_used_are_said_and_the_others_drawn(rookery, runs):
    write_run(runs / "ppo-seeds" / "seed-3", seed=3, points=[], status="failed", reason="it hung")
    (write_run(runs / "ppo-seeds" / "seed-4", seed=4) / "config.json").write_text("{")
    answer = rookery("plot", "ppo-seeds", "--text")
    assert answer.status == 0 and "Line: mean of 3 seeds" in answer.out
    for said in ("seed-4/config.json", "left out", "seed-3 failed: it hung", "seed-3: no return"):
        assert said in answer.err, said
    assert "Traceback" not in answer.err


REFUSED = {
    "nothing": (["plot"], ["which runs?", "rookery list runs"]),
    "no run": (["plot", "nix"], ["no run 'nix'"]),
    "a near group": (["plot", "ppo-sed"], ["no run 'ppo-sed'", "Did you mean 'ppo-seeds'"]),
    "a pattern of nothing": (["compare", "nix*"], ["no run matches 'nix*'"]),
    "a metric": (["plot", "ppo-seeds", "--y", "loss/valu"], ["no run has 'loss/valu'", "'loss/value'"]),
    "a metric to compare": (["compare", "ppo-seeds", "--metric", "eval"], ["no run has 'eval'"]),
    "an axis": (["plot", "ppo-seeds", "--x", "hours"], ["--x", "hours"]),
    "a format": (["plot", "ppo-seeds", "--out", "a.jpg"], ["--out a.jpg", ".png"]),
    "a format to compare": (["compare", "ppo-seeds", "--out", "a"], ["--out a", ".svg"]),
    "a number": (["plot", "ppo-seeds", "--smooth", "0"], ["--smooth 0", "at least 1"]),
    "a confidence": (["compare", "ppo-seeds", "--confidence", "95"], ["--confidence 95", "less than 1"]),
    "a scale": (["compare", "ppo-seeds", "--scale", "CartPole-v1=500:0"], ["ENV=LOW:HIGH", "lower number first"]),
    "a grouping": (["plot", "ppo-seeds", "--group-by", "sytem"], ["--group-by sytem", "'system'"]),
    "labels": (["plot", "ppo-seeds", "--labels", "a", "b"], ["--labels has 2 for 1 groups"]),
}  # fmt: skip


@pytest.mark.parametrize("words, said", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_request_says_why_and_writes_nothing(rookery, runs, words, said):
    before = rookery.files
    answer = rookery(*words)
    assert answer.status == 2 and "Traceback" not in answer.err and answer.out == ""
    assert all(part in answer.err for part in said), answer.err
    assert rookery.files == before


def test_without_matplotlib_the_remedy_is_said_and_the_terminal_still_draws(rookery, runs, monkeypatch):
    from rookery.analysis import figure

    monkeypatch.setattr(figure, "find_spec", lambda name: None)
    for words in (["plot", "ppo-seeds"], ["compare", "ppo-seeds", "--out", "a.png"]):
        answer = rookery(*words)
        assert answer.status == 2 and "needs matplotlib: pip install 'rookery[plot]'" in answer.err
    assert rookery("plot", "ppo-seeds", "--text").status == rookery("compare", "ppo-seeds").status == 0
