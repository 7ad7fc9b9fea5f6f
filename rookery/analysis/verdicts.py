"""A comparison in words: a table, and a sentence for each pair that says how sure it is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rookery.analysis.comparison import Comparison, GroupPair, GroupSummary
from rookery.analysis.curves import FEW
from rookery.analysis.statistics import Interval

PROSE = 110  # columns, at most
MOST_PAIRS = 6  # sentences; --json has all
FEWEST = 10  # seeds below which the bootstrap's intervals are known to be too narrow
METRICS = {"eval": "Return of the greedy policy", "return": "Return of the last 100 training episodes"}


def report(comparison: Comparison, width: int | None = None) -> str:
    """Write a comparison for a terminal: what was measured, the table, the sentences, the notes."""
    fold = lambda text, indent="": textwrap.fill(
        text, min(width or PROSE, PROSE), initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    parts = [fold(heading(comparison)), tables(comparison, width)]
    parts += ["\n".join(fold(sentence) for sentence in sentences(comparison))] if comparison.pairs else []
    if remarks := [*caveats(comparison), *comparison.notes]:
        parts.append("\n".join(fold(note, "- ") for note in remarks))
    return "\n\n".join(part for part in parts if part)


def heading(comparison: Comparison, interval: str = "Brackets") -> str:
    """Say what a score is, in which unit, and what stands for the interval."""
    question = comparison.question
    text = METRICS.get(comparison.metric, comparison.metric)
    text += f" at {question.at_steps:,} steps" if question.at_steps is not None else ""
    text += f", {', '.join(comparison.envs)}"
    if comparison.scale:
        given = all(env in question.scale for env in comparison.envs)
        ends = ", ".join(f"{env} {number(low)} to {number(high)}" for env, (low, high) in comparison.scale.items())
        how = "as --scale says" if given else "the least and the greatest of all runs compared: another group moves them"
        text += f". Scores are normalised in each environment to 0 and 1 ({ends}; {how})"
    strata = " within each environment" if len(comparison.envs) > 1 else ""
    return f"{text}. {interval}: {question.confidence:.0%} interval, bootstrap over seeds{strata}.".replace("%", " %", 1)


def tables(comparison: Comparison, width: int | None) -> str:
    """Tabulate what each group scored; with several environments also what it scored in each, as measured."""
    narrow = width is not None and width < 90
    parts = [_aligned([_group_row(group, comparison, narrow) for group in comparison.groups])]
    if len(comparison.envs) > 1:
        rows = []
        for env in comparison.envs:
            form = writer(value for group in comparison.groups for value in group.scores.get(env, []))
            for group in comparison.groups:
                if values := group.scores.get(env):
                    mean, ends = form(sum(values) / len(values)), f"{form(min(values))} to {form(max(values))}"
                    rows.append({"environment": env, "group": group.label, "n": str(len(values)), "mean": mean, "range": ends})
        parts.append(_aligned(rows))
    if comparison.question.score is not None:
        rows = []
        for group in comparison.groups:
            for reached in group.reached:
                rows.append({
                    "group": group.label, **({"environment": reached.env} if len(comparison.envs) > 1 else {}),
                    f"reached {number(comparison.question.score)}": f"{reached.reached} of {reached.runs}",
                    "steps": "-" if reached.steps is None else f"{reached.steps:,.0f}",
                    "seconds": "-" if reached.seconds is None else f"{reached.seconds:,.1f}",
                })  # fmt: skip
        parts.append(_aligned(rows))
    return "\n\n".join(parts)


def sentences(comparison: Comparison) -> list[str]:
    """Say of each pair which is above, how probably, and whether that is sure."""
    found = [sentence(pair, comparison.question.confidence) for pair in comparison.pairs[:MOST_PAIRS]]
    if (more := len(comparison.pairs) - MOST_PAIRS) > 0:
        found.append(f"And {more} more pair{'s' * (more > 1)}: --json has all.")
    return found


def sentence(pair: GroupPair, confidence: float) -> str:
    """Say of a pair which is above, how probably, and whether that is sure."""
    seeds = f"{pair.seeds[0]} seeds each" if pair.seeds[0] == pair.seeds[1] else f"{pair.seeds[0]} and {pair.seeds[1]} seeds"
    seeds = seeds.replace("1 seeds each", "one seed each")
    if not pair.probability.is_known:
        alike = pair.probability.value == 0.5
        above = f"{pair.better} and {pair.other} are alike" if alike else f"{pair.better} scored above {pair.other}"
        return f"{above}, but a single seed says nothing about another one: train more ({seeds})."
    if pair.by_chance is not None:
        sure = "take it as a hint" if pair.by_chance > (1 - confidence) / 2 else "this is clear"
        return (f"Every run of {pair.better} is above every run of {pair.other}; {seeds}. If both were alike, chance alone "
                f"would order them so once in {round(1 / pair.by_chance):,}: {sure}.")  # fmt: skip
    told = f"{pair.better} is above {pair.other} with probability {interval(pair.probability, '{:.2f}'.format)}; {seeds}: "
    if pair.probability.low > 0.5 and pair.difference.low > 0:
        return f"{told}the interval is above a half, so {pair.better} is better here."
    if pair.probability.low > 0.5:
        gap = interval(pair.difference, writer(pair.difference))
        return f"{told}more often above, but the interquartile means may be alike (difference {gap})."
    return f"{told}the interval holds a half, so these runs do not tell which is better."


def caveats(comparison: Comparison) -> list[str]:
    """Say where seeds are few."""
    fewest = min(count for group in comparison.groups for count in group.seeds.values())
    if fewest == 1:
        return ["One seed has no interval: rookery train … --seeds 5 trains several."]
    if fewest < FEWEST:
        word = "very few" if fewest < FEW else "few"
        return [f"{fewest} seeds are {word}: a bootstrap's intervals are too narrow with so few, and a seed more moves them."]
    return []


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Convert a comparison to plain values; what is not known is None."""
    groups = [
        {
            "label": group.label, "seeds": group.seeds, "scores": group.scores, "steps": group.steps, "seconds": group.seconds,
            **{name: _plain(getattr(group, name)) for name in ("mean", "median", "iqm")},
            "profile": {name: [_known(value) for value in part.tolist()] for name, part in group.profile._asdict().items()},
            **({"reached": [vars(reached) for reached in group.reached]} if group.reached else {}),
        }
        for group in comparison.groups
    ]  # fmt: skip
    pairs = [
        {"better": pair.better, "other": pair.other, "seeds": list(pair.seeds), "by_chance": pair.by_chance,
         "probability": _plain(pair.probability), "difference": _plain(pair.difference)}
        for pair in comparison.pairs
    ]  # fmt: skip
    question = comparison.question
    return {
        "metric": comparison.metric, "at_steps": question.at_steps, "confidence": question.confidence, "score": question.score,
        "envs": list(comparison.envs), "scale": {env: list(ends) for env, ends in comparison.scale.items()},
        "groups": groups, "pairs": pairs, "sentences": sentences(comparison),
        "notes": [*caveats(comparison), *comparison.notes],
    }  # fmt: skip


def number(value: float) -> str:
    """Write a number as it would be said: 475, -1,600, 0.125."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def writer(values: Iterable[float]) -> Callable[[float], str]:
    """Choose how to write scores: with as many decimals as their greatest needs to be told apart, in all of them alike."""
    greatest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = 0 if greatest >= 1000 else 1 if greatest >= 20 else 2
    return lambda value: f"{value:,.{decimals}f}"


def interval(found: Interval, form: Callable[[float], str] = number) -> str:
    """Write `435 [366, 504]`, without brackets where there is no interval."""
    return f"{form(found.value)} [{form(found.low)}, {form(found.high)}]" if found.is_known else form(found.value)


def _group_row(group: GroupSummary, comparison: Comparison, narrow: bool) -> dict[str, str]:
    counts = sorted(set(group.seeds.values()))
    row = {"group": group.label, "n": f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"}
    if len(comparison.envs) > 1:
        row["envs"] = str(len(group.seeds))
    form = writer(abs(value) for other in comparison.groups for value in (*other.iqm, *other.mean, *other.median))
    row |= {"IQM": interval(group.iqm, form)}
    row |= {"mean": form(group.mean.value) if narrow else interval(group.mean, form)}
    row |= {"median": form(group.median.value) if narrow else interval(group.median, form)}
    row |= {"steps": "-" if group.steps is None else f"{group.steps:,.0f}"}
    return row | {"time": "-" if group.seconds is None else _clock(group.seconds)}


def _aligned(rows: Sequence[dict[str, str]]) -> str:
    """Align rows in columns, the first to the left."""
    names = list(rows[0])
    lines = [names, *([row[name] for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    left = ("group", "environment")
    return "\n".join(
        "  ".join(cell.ljust(w) if name in left else cell.rjust(w) for name, cell, w in zip(names, line, widths)).rstrip()
        for line in lines
    )


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} h" if hours else f"{rest // 60}:{rest % 60:02} min"


def _plain(found: Interval) -> dict[str, float | None]:
    return {name: _known(value) for name, value in found._asdict().items()}


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
