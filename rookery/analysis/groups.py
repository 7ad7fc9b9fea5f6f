"""Which runs belong together: those of one system with the same options, whatever their seed and environment.

What may be named: a run; a directory whose children are runs (`--seeds 5` makes one), or hold runs; a pattern like
'runs/ppo-*'. Runs whose options differ on the same environment are told apart by those options, in the group's label.
"""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.analysis import history
from rookery.analysis.history import RunHistory
from rookery.run.directory import CONFIG, Run, RunError

STAMPED = re.compile(r"-\d{8}-\d{6}(-\d+)?$")  # of a directory that named itself: system, environment, time
NAMED_IN_LABEL = 3  # options; the others are counted


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ by seed and environment alone."""

    label: str
    runs: tuple[RunHistory, ...]

    @property
    def envs(self) -> list[str]:
        return list(dict.fromkeys(run.env for run in self.runs))

    def on(self, env: str) -> tuple[RunHistory, ...]:
        """Return its runs on an environment."""
        return tuple(run for run in self.runs if run.env == env)


@dataclass(frozen=True)
class NamedRuns:
    """What was named: groups, and sentences on what was left out or looks wrong."""

    groups: tuple[RunGroup, ...]
    notes: tuple[str, ...]


def find(
    words: Sequence[str | Path], *, root: Path | str = "runs", by: str | None = None, labels: Sequence[str] = ()
) -> NamedRuns:
    """Read the runs that `words` name and group them. Raises RunError where a word names nothing, or nothing is left.

    by: what makes a group instead: `system`, `env`, `run`, `seed` or the name of an option. labels: the groups', in order."""
    singles: list[RunHistory] = []
    families: list[tuple[str, list[RunHistory]]] = []
    notes: list[str] = []
    for word in dict.fromkeys(map(str, words)):
        for path in expand(word, Path(root)):
            inside = runs_inside(path)
            told = _read([path] if inside is None else inside, root, notes)
            if inside is None:
                singles += told
            elif told:
                families.append((path.name, told))
    seen: set[Path] = set()
    once = lambda runs: [run for run in runs if not (run.path in seen or seen.add(run.path))]  # type: ignore[func-returns-value]
    families = [(name, once(runs)) for name, runs in families]
    pooled = once(singles)
    if not pooled and not any(runs for _, runs in families):
        raise RunError(" ".join(notes) or "no runs are named: give their names, directories, or a pattern in quotes.")
    groups = _named_by(by, [*(run for _, runs in families for run in runs), *pooled]) if by else _grouped(families, pooled)
    if labels and len(labels) != len(groups):
        shown = ", ".join(group.label for group in groups)
        raise RunError(f"--labels has {len(labels)} for {len(groups)} groups, which are: {shown}")
    groups = [RunGroup(label, group.runs) for label, group in zip(labels or _unique(groups), groups)]
    return NamedRuns(tuple(groups), (*notes, *_doubts(groups)))


def expand(word: str, root: Path) -> list[Path]:
    """List the runs and the directories of runs that a word means: a path, a name below `root`, or a pattern of either."""
    if glob.has_magic(word) and not Path(word).exists():
        places = sorted(glob.glob(str(root / word))) or sorted(glob.glob(word))
        holding = [Path(place) for place in places if (Path(place) / CONFIG).is_file() or runs_inside(Path(place))]
        if not holding:
            raise RunError(f"no run matches {word!r}, neither in {root}/ nor from here. `rookery list runs` shows all.")
        return holding
    for place in (root / word, Path(word)):
        if (place / CONFIG).is_file():
            return [place]
        if runs_inside(place):
            return [place]
    try:
        return [Run.open(word, root).shown]  # the beginning of a name, or a sentence on what is near
    except RunError:
        families = [child.name for child in root.iterdir() if runs_inside(child)] if root.is_dir() else []
        if near := difflib.get_close_matches(word, families, n=1):
            raise RunError(f"no run {word!r} in {root}/. Did you mean {near[0]!r}, which holds several?") from None
        raise


def runs_inside(path: Path) -> list[Path] | None:
    """List the runs in a directory of runs, or of directories of runs; None where the path is no such directory."""
    if (path / CONFIG).is_file() or not path.is_dir():
        return None
    children = sorted(child for child in path.iterdir() if child.is_dir())
    found = [child for child in children if (child / CONFIG).is_file()]
    found += [run.parent for child in children if child not in found for run in sorted(child.glob(f"*/{CONFIG}"))]
    return found or None


def _read(paths: Iterable[Path], root: Path | str, notes: list[str]) -> list[RunHistory]:
    """Read those that can be; `notes` is told of the others."""
    found = []
    for path in paths:
        try:
            found.append(history.read(path, root))
        except RunError as error:
            notes.append(f"{str(error).rstrip('.')}: left out.")
    return found


def _grouped(families: list[tuple[str, list[RunHistory]]], singles: list[RunHistory]) -> list[RunGroup]:
    """Group by system and options: each named directory for itself, and all runs that were named one by one together.

    A directory whose runs are alike is one group, and its name the label, unless it named itself."""
    kept, loose = [], list(singles)
    for name, runs in families:
        alike = _alike(runs)
        if len(alike) == 1 and not STAMPED.search(name):
            kept.append(RunGroup(name, tuple(runs)))
        else:
            loose += runs
    return kept + _alike(loose)


def _alike(runs: Sequence[RunHistory]) -> list[RunGroup]:
    """Group runs by their system and by the options that differ within a system on one environment."""
    differing: dict[str, list[str]] = {}
    for system in dict.fromkeys(run.system for run in runs):
        mine = [run for run in runs if run.system == system]
        found: dict[str, None] = {}
        for env in dict.fromkeys(run.env for run in mine):
            here = [run.options for run in mine if run.env == env]
            names = dict.fromkeys(name for options in here for name in options)
            found |= {name: None for name in names if len({_text(options.get(name)) for options in here}) > 1}
        differing[system] = [*found]
    groups: dict[tuple[str, ...], list[RunHistory]] = {}
    for run in runs:
        values = [f"{name.rpartition('.')[2]}={_text(run.options.get(name))}" for name in differing[run.system]]
        groups.setdefault((run.system, *values), []).append(run)
    return [RunGroup(_label(*key), tuple(members)) for key, members in groups.items()]


def _label(system: str, *values: str) -> str:
    more = [f"+{len(values) - NAMED_IN_LABEL}"] if len(values) > NAMED_IN_LABEL else []
    return " ".join([system, *values[:NAMED_IN_LABEL], *more])


def _named_by(by: str, runs: list[RunHistory]) -> list[RunGroup]:
    fixed = {"system": lambda run: run.system, "env": lambda run: run.env, "run": lambda run: run.name,
             "seed": lambda run: f"seed {run.seed}"}  # fmt: skip
    name = by.replace("-", "_")
    known = dict.fromkeys(option for run in runs for option in run.options)
    if name not in fixed and name not in known:
        near = difflib.get_close_matches(name, [*fixed, *known], n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise RunError(f"--group-by {by}: it is {', '.join(fixed)} or an option of the runs.{meant}")
    groups: dict[str, list[RunHistory]] = {}
    for run in runs:
        groups.setdefault(fixed[name](run) if name in fixed else f"{name}={_text(run.options.get(name))}", []).append(run)
    return [RunGroup(label, tuple(members)) for label, members in groups.items()]


def _unique(groups: Sequence[RunGroup]) -> list[str]:
    """Number the labels that occur again."""
    found: dict[str, int] = {}
    for group in groups:
        found[group.label] = found.get(group.label, 0) + 1
    again = {label for label, count in found.items() if count > 1}
    counts = dict.fromkeys(again, 0)
    labels = []
    for group in groups:
        if group.label in again:
            counts[group.label] += 1
        labels.append(f"{group.label} ({counts[group.label]})" if group.label in again else group.label)
    return labels


def _doubts(groups: Sequence[RunGroup]) -> list[str]:
    """Write sentences on runs that did not end well, and on seeds that were counted twice."""
    notes = []
    for group in groups:
        for run in group.runs:
            if run.status == "running":
                notes.append(f"{run.name} is still running: what it has so far is used.")
            elif run.status == "failed":
                why = str(run.result.get("reason") or "it was ended before it could say why").split("\n")[0]
                notes.append(f"{run.name} failed: {why[:160]}")
            if run.damaged:
                notes.append(f"{run.name}: {run.damaged} damaged line{'s' * (run.damaged > 1)} of its files left out.")
        for env in group.envs:
            seeds = [run.seed for run in group.on(env) if run.seed is not None]
            if again := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
                shown = ", ".join(map(str, again))
                notes.append(f"{group.label} on {env}: seed {shown} counts more than once, and a repeat is no other seed.")
    return notes


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
