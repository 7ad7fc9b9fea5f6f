"""What a run says when it has ended: how it went, what held it back, and what to type next."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rookery.run import startup
from rookery.run.directory import BEST, LAST, run_argument
from rookery.run.display import Row, clock, number
from rookery.run.returns import of_seeds

BUSY = 0.10  # a learner that is idle less than this share of the time is the limit
COLLECTING = ("env", "inference", "transfer")
DOMINANT = 0.30  # the largest part of the time below this share does not stand out
SHORT_SECONDS = 120.0
LABEL = 10


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended; `dataclasses.asdict` of it is what result.json holds."""

    status: str  # done, failed or stopped
    name: str
    path: Path | str
    seconds: float
    env_steps: int
    updates: int
    episodes: int
    env_steps_per_s: float
    return_mean: float | None = None
    eval_return_mean: float | None = None
    target: float | None = None
    seconds_to_target: float | None = None
    checkpoint: Path | str | None = None  # where the policy is
    kept: str = LAST  # which policy that is
    best_return: float | None = None  # of the best evaluation
    best_steps: int | None = None  # environment steps before it
    reason: str | None = None  # why it failed or stopped
    bottleneck: str | None = None
    total_steps: int | None = None  # the budget
    total_updates: int | None = None
    seeds: tuple[float, ...] = ()  # return_mean of each, where there are several
    warnings: tuple[str, ...] = ()  # of rookery/run/health.py


def outcome(trainer: Any, result: Any) -> Outcome:
    """Summarise a Trainer's run: its Result, what held it back and what to change."""
    topology, options, m = trainer.config.topology, trainer.config.run, result.metrics
    total, seconds = trainer.meter.total, m["seconds"] - trainer.resumed_at
    start = (trainer.meter.started_at or m["seconds"]) - trainer.resumed_at
    phases = total.phases | {"start": start / seconds}
    whole = replace(trainer.row(), seconds=seconds, learner_idle=total.learner_idle, phases=phases)
    best = trainer.best.meta or {}
    kept = trainer.run.checkpoints / BEST if result.kept == BEST else trainer.last_checkpoint
    names = ("seconds", "env_steps", "updates", "episodes", "env_steps_per_s", "return_mean", "eval_return_mean")
    return Outcome(
        status=result.status, name=trainer.run.name, path=trainer.run.shown, reason=result.reason,
        target=options.stop_return if options.stop_return is not None else options.stop_eval_return,
        seconds_to_target=trainer.seconds_to_target, total_steps=options.total_steps,
        total_updates=options.total_updates, kept=result.kept,
        checkpoint=trainer.run.shown_as(kept) if kept else None,
        best_return=best.get("eval_return_mean"), best_steps=best.get("env_steps"),
        bottleneck=bottleneck(
            whole, cores=startup.available_cores(), num_envs=topology.num_envs, overlaps=topology.overlaps,
            collectors=max((most for _, most in trainer.plan.fleets.values()), default=1),
            groups=getattr(topology, "groups", 1),
            waiting=trainer.progress.waiting,
        ),
        seeds=tuple(of_seeds(m).values()), warnings=tuple(trainer.warnings),
        **{name: m[name] for name in names},
    )  # fmt: skip


def bottleneck(
    row: Row, *, cores: int, collectors: int, num_envs: int, groups: int = 1, overlaps: bool, waiting: str | None = None
) -> str:
    """Name what held the run back, with its figure, and say what to change: a sentence each.

    overlaps: collectors work while the learner learns. Then `row.phases` are shares of all workers' time, and a learner
    that is idle waits for the collectors; where they take turns, shares are of the clock's time and idle means nothing.
    waiting: what the table said in the end of whom it held back.
    """
    if row.starting and waiting:
        return f"Nothing was learned. {waiting[0].upper()}{waiting[1:]}. Train for longer, or lower --replay.min-size."
    start = _start_share(row)
    if start > 0.5 and row.seconds < SHORT_SECONDS:
        return (
            f"Start-up and compilation took {start:.0%} of these {row.seconds:.0f} s. "
            "A longer run shows the real speed; the next one starts faster, as compiled programs are kept."
        )
    if overlaps and row.learner_idle <= BUSY:
        return _learner(f"it was busy {1 - row.learner_idle:.0%} of the time")
    whole = collectors / (collectors + 1) if overlaps else 1.0  # the collectors' part of the time that is shared out
    names = COLLECTING if overlaps else (*COLLECTING, "learn")
    shares = {name: row.phases.get(name, 0.0) / whole for name in names}
    largest = max(shares, key=shares.__getitem__)
    if shares[largest] < DOMINANT:
        if overlaps:
            why = f" In the end it was {waiting}." if waiting and "before the next sample" in waiting else ""
            return f"The learner waited for data {row.learner_idle:.0%} of the time.{why} {_more(cores, collectors, num_envs)}"
        parts = ", ".join(f"{name} {share:.0%}" for name, share in sorted(row.phases.items(), key=lambda item: -item[1])[:3])
        return f"Nothing stands out: the time went to {parts or 'nothing that was measured'}. More cores would help most."
    if largest == "learn":
        return _learner(f"learning took {shares[largest]:.0%} of the time")
    figure = f"{shares[largest]:.0%} of the {'collectors’ ' if overlaps else ''}time"
    if largest == "env":
        return _stepping(figure, cores=cores, spare=overlaps and collectors < cores, collectors=collectors)
    if largest == "inference":
        at_once = max(1, num_envs // (collectors * groups))
        return (
            f"Choosing actions is the limit: {figure}, for {at_once} environments at once. "
            f"Try --num-envs {2 * num_envs}: a call for twice as many costs little more."
        )
    return (
        f"Moving data is the limit: {figure}. Larger batches, longer rollouts or smaller observations "
        "(uint8 instead of float32) would help."
    )


def _start_share(row: Row) -> float:
    """Return the share of the run before it had its speed: measured, or what the recent rate cannot explain."""
    if "start" in row.phases:
        return row.phases["start"]
    if row.seconds <= 0 or row.env_steps_per_s <= 0:
        return 0.0
    return max(0.0, 1.0 - row.env_steps / row.env_steps_per_s / row.seconds)


def _learner(figure: str) -> str:
    return (
        f"The learner is the limit: {figure}. A smaller network, fewer epochs or a faster device would help; "
        "more collectors would not."
    )


def _stepping(figure: str, *, cores: int, spare: bool, collectors: int) -> str:
    what = f"Stepping the environments is the limit: {figure}."
    if spare:
        return f"{what} Try --collectors {cores}: {collectors} of {cores} cores step environments."
    return f"{what} A vectorised or C++ version of the environment, or more than {cores} cores, would help."


def _more(cores: int, collectors: int, num_envs: int) -> str:
    if collectors < cores:
        return f"Try --collectors {cores}: there are {cores} cores."
    return f"Try --num-envs {2 * num_envs}, so that each collector brings more at a time."


def summary(outcome: Outcome, width: int = 80) -> str:
    """Write the last block of text of a run. Sentences are folded to `width`; commands and paths never are."""
    head = {"done": "Done in", "stopped": "Stopped after", "failed": "Failed after"}.get(outcome.status, "Ended after")
    first = (
        f"{head} {_duration(outcome.seconds)}: {outcome.env_steps:,} steps ({outcome.env_steps_per_s:,.0f}/s), "
        f"{_count(outcome.updates, 'update')}, {_count(outcome.episodes, 'episode')}."
    )
    rows: list[tuple[str, str]] = []
    if outcome.reason:
        rows.append(("reason", _fold(outcome.reason, width)))
    if outcome.return_mean is not None:
        last = min(outcome.episodes, 100)
        of = f"the last {last} training episodes" if not outcome.seeds else f"{len(outcome.seeds)} seeds"
        rows.append(("return", f"{number(outcome.return_mean)}   mean of {of}"))
    if outcome.seeds:
        each = "  ".join(f"{n}: {number(mean)}" for n, mean in enumerate(outcome.seeds))
        rows.append(("seeds", _fold(f"{each}   (of each, the last 100 training episodes)", width)))
    if outcome.eval_return_mean is not None:
        rows.append(("evaluated", f"{number(outcome.eval_return_mean)}   the greedy policy"))
    if outcome.target is not None:
        when = "not reached"
        if outcome.seconds_to_target is not None:
            when = f"reached after {_duration(outcome.seconds_to_target)}"
        rows.append(("target", f"{number(outcome.target)}   {when}"))
    if outcome.bottleneck:
        rows.append(("speed", _fold(outcome.bottleneck, width)))
    rows += [("warning", _fold(text, width)) for text in outcome.warnings]
    rows.append(("run", str(outcome.path)))
    if outcome.checkpoint is not None:
        run = run_argument(outcome.name, outcome.path)
        rows += _policy(outcome, outcome.checkpoint, run)
        budget = outcome.total_steps or 0
        more = f" --total-steps {2 * budget}" if budget and outcome.env_steps >= budget else ""
        if outcome.total_updates is not None and outcome.updates >= outcome.total_updates:
            more += f" --total-updates {2 * outcome.total_updates}"
        rows.append(("evaluate", f"rookery eval {run}"))
        rows.append(("go on", f"rookery resume {run}{more}"))
    else:
        rows.append(("policy", "no checkpoint was written"))
    return "\n".join([textwrap.fill(first, width), *(f"  {label:{LABEL}} {text}" for label, text in rows)])


def _policy(outcome: Outcome, checkpoint: Path | str, run: str) -> list[tuple[str, str]]:
    """Say where the kept policy is, and its evaluated return; where an earlier one did better, how to evaluate that."""
    path, home = Path(checkpoint).resolve(), Path(outcome.path).resolve()
    place = str(path.relative_to(home) if path.is_relative_to(home) else checkpoint)
    if outcome.best_return is None or outcome.best_steps is None:
        return [("policy", place)]
    how = f"evaluated {number(outcome.best_return)} after {outcome.best_steps:,} steps"
    if outcome.kept == BEST:
        return [("policy", f"{place} ({how})")]
    if outcome.eval_return_mean is not None and outcome.eval_return_mean >= outcome.best_return:
        return [("policy", place)]
    return [("policy", place), ("better", f"checkpoints/{BEST} ({how}): rookery eval {run} --which {BEST}")]


def _fold(text: str, width: int) -> str:
    folded = textwrap.wrap(text, max(width - LABEL - 3, 30), break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * (LABEL + 3)).join(folded)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{clock(seconds)} h" if seconds >= 3600 else f"{clock(seconds)} min"
