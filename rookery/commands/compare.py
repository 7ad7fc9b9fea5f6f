"""`rookery compare`: which of several groups of runs is better, and how sure that is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rookery.commands.parsing import fail, runs_and_options
from rookery.commands.plot import Flag, Name, Names
from rookery.ranges import Finite, Long, Range, Seed


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Which of several groups of runs is better, and how sure that is.

    IQM, mean and median with intervals, probability of improvement, profiles (Agarwal et al. 2021).

      rookery compare ppo-seeds a2c-seeds
      rookery compare 'runs/*' --at-steps 1e5 --score 475 --out compared.png
    """

    run: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="GROUP...", help_behavior_hint="")]] = ()
    """Directories of runs (--seeds makes one), patterns in quotes, or single runs, grouped by system and options."""
    metric: Name = None
    """eval (the greedy policy), return (of training) or a number in metrics.jsonl; None: eval if all have one, else return."""
    at_steps: Annotated[Long | None, tyro.conf.arg(metavar="STEPS", help_behavior_hint="")] = None
    """Compare where the curves stand after so many environment steps; None: at the end of each run."""
    score: Annotated[Finite | None, tyro.conf.arg(metavar="RETURN", help_behavior_hint="")] = None
    """Also tell the steps and seconds until training returns reach this."""
    scale: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[ENV=LOW:HIGH ...]", help_behavior_hint="")] = ()
    """What becomes 0 and 1 in an environment, e.g. CartPole-v1=0:500; by default least and greatest of all runs."""
    confidence: Annotated[float, Range(0.5, below=1)] = 0.95
    """Of the intervals."""
    resamples: Annotated[int, Range(100, 1_000_000)] = 10_000
    """Bootstrap samples."""
    seed: Seed = 0
    """Of the bootstrap: the same seed gives the same intervals."""
    group_by: Name = None
    """What makes a group: system, env, run, seed or an option's name; None: system and options."""
    labels: Names = ()
    """Names of the groups, in their order."""
    out: Name = None
    """A .png, .svg or .pdf to write: aggregates, profiles and probabilities."""
    title: Annotated[str, tyro.conf.arg(help_behavior_hint="")] = ""
    """Above the picture."""
    dark: Flag = False
    """The picture on dark paper."""
    runs: str = "runs"
    """The directory that holds the runs."""
    json: Flag = False
    """One line of JSON instead of the table."""


def compare(args: list[str]) -> int:
    options = runs_and_options(args, CompareOptions, "rookery compare")
    from rookery.analysis import comparison, figure, find, verdicts

    if options.out is not None:
        figure.check_name(options.out)
        figure.require_matplotlib("rookery compare --out", ", or leave --out away")
    scale = dict(map(_scale, options.scale))
    found = find(options.run, root=options.runs, by=options.group_by, labels=options.labels)
    question = comparison.Question(
        metric=options.metric, at_steps=options.at_steps, score=options.score, scale=scale, confidence=options.confidence,
        resamples=options.resamples, seed=options.seed,
    )  # fmt: skip
    compared = comparison.compare(found.groups, question, found.notes)
    if options.out is not None:
        from rookery.analysis import summary_figure

        figure.save(summary_figure.draw(compared, dark=options.dark, title=options.title), options.out)
    if options.json:
        print(json.dumps(verdicts.as_json(compared) | {"out": options.out}))
        return 0
    from rookery.run.listing import terminal_width

    print(verdicts.report(compared, terminal_width()))
    if options.out is not None:
        print(f"\n{options.out}")
    return 0


def _scale(word: str) -> tuple[str, tuple[float, float]]:
    """Split ENV=LOW:HIGH."""
    env, equals, ends = word.rpartition("=")
    low, colon, high = ends.partition(":")
    try:
        pair: Any = float(low), float(high)
        right = bool(equals and colon) and pair[0] < pair[1] < float("inf") and pair[0] > -float("inf")
    except ValueError:
        right = False
    if not right:
        fail(f"--scale {word}: it is ENV=LOW:HIGH, with a lower number first, as CartPole-v1=0:500")
    return env, pair
