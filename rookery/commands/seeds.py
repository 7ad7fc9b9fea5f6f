"""`rookery train --seeds` and `rookery resume GROUP`: several seeds, one display for all, and a table in the end."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

from rookery import signals
from rookery.run import seeds
from rookery.run.config import ConfigError
from rookery.run.directory import run_argument
from rookery.run.display import bar, clock, number

LINE_SECONDS = 10.0  # between lines, where the output is no terminal


def train(cfg: Any, flags: dict[str, Any]) -> int:
    if flags["seeds"] is None:
        raise ConfigError("--jobs is how many seeds are trained side by side: it needs --seeds")
    numbers, jobs = seeds.parse(flags["seeds"]), flags["jobs"]
    if jobs is not None and not 0 < jobs <= seeds.MOST:
        raise ConfigError(f"--jobs {jobs}: it must be at least 1 and at most {seeds.MOST:,}")
    from rookery.run.assemble import assemble, shown_to

    shown_to(cfg, assemble(cfg).spec)  # what cannot work is refused before anything is made
    group = seeds.Group.create(cfg, numbers, again=flags["resume"] == "auto")
    return run(group, jobs or group.jobs, as_json=flags["json"])


def resume(group: seeds.Group, args: list[str]) -> int:
    """Go on with the seeds of a group that are not done; options as for a run."""
    from rookery.run import options

    cfg, flags = options.parse(f"rookery resume {group.path}", args, group.config)
    if cfg.run.seed != group.config.run.seed:
        raise ConfigError(f"--seed {cfg.run.seed}: each run of a group keeps its own")
    group = dataclasses.replace(group, config=cfg)
    return run(group, group.jobs, as_json=flags["json"])


def run(group: seeds.Group, jobs: int, *, as_json: bool) -> int:
    """Train them all, show how they stand, and say how they ended."""
    begin, crew = time.monotonic(), seeds.Crew(group, jobs)
    try:
        with signals.Saving(crew):
            show = follow_quietly if as_json else follow_live if sys.stdout.isatty() else follow_in_lines
            show(crew)
    finally:
        crew.close()
    ended, seconds = crew.results(), time.monotonic() - begin
    if as_json:
        print(json.dumps([{"seed": one.seed, "status": one.state, **one.metrics, "error": one.error or None} for one in ended]))
    else:
        print(summary(group, ended, seconds, min(jobs, len(group.seeds))))
    stopped = signals.received()
    return 128 + stopped if stopped is not None else next((one.status for one in ended if one.status), 0)


# ----------------------------------------------------------------------------------------------------------- display


def follow_quietly(crew: seeds.Crew) -> None:
    while crew.wait(0.5):
        pass


def follow_in_lines(crew: seeds.Crew) -> None:
    """Print a line for all seeds now and then, and one for each that ends."""
    told: set[int] = set()
    following = time.monotonic() + LINE_SECONDS
    group = crew.group
    print(f"{len(group.seeds)} seeds of {group.config.system} on {group.config.env_name} in {group.path}", flush=True)
    working = True
    while working:
        working = crew.wait(0.5)
        for seed, one in [*crew.ended.items()]:
            if seed not in told:
                told.add(seed)
                print(f"seed {seed} {one.state}  {_returns(one.metrics)}{_first(one.error)}", flush=True)
        if working and time.monotonic() >= following:
            following = time.monotonic() + LINE_SECONDS
            print(_line(crew), flush=True)


def _line(crew: seeds.Crew) -> str:
    cells = [f"{len(crew.ended)}/{len(crew.group.seeds)} seeds"]
    for seed in [*crew.training]:
        row = crew.group.row(seed)
        cells.append(f"seed {seed} {_share(crew, row):4.0%} {_returns(row) or 'starting'}")
    return "  |  ".join(cells)[:110]


def follow_live(crew: seeds.Crew) -> None:
    """Draw a panel with a line for each seed, until all have ended."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        working = True
        while working:
            working = crew.wait(0.3)
            live.update(panel(crew, console), refresh=True)


def panel(crew: seeds.Crew, console: Any) -> Any:
    from rich.panel import Panel
    from rich.table import Table

    group, ascii_only, width = crew.group, console.options.ascii_only, min(console.width, 110)
    table = Table.grid(padding=(0, 2))
    narrow = width < 74  # without the rates
    room = max(8, width - (46 if narrow else 62))
    for is_number in (True, False, True, True, *([] if narrow else [True]), False):
        table.add_column(justify="right" if is_number else "left", no_wrap=True)
    shown = [*group.seeds]
    if len(shown) > (rows := max(4, console.height - 4)):  # those at work, and what comes next
        shown = [*crew.training, *(seed for seed in shown if seed not in crew.training and seed not in crew.ended)][:rows]
    for seed in shown:
        one, row = crew.ended.get(seed), group.row(seed)
        if one is not None:
            row, state, share = row | one.metrics, one.state, 1.0 if one.status == 0 else _share(crew, row)
        else:
            state, share = ("" if seed in crew.training else "waits", _share(crew, row) if seed in crew.training else 0.0)
        filled = bar(share, room, ascii_only)
        rate, left = row.get("env_steps_per_s"), row.get("eta_seconds")
        rates = [] if narrow else [f"{rate:,.0f} steps/s" if rate and one is None else ""]
        table.add_row(
            f"seed {seed}", f"[blue]{filled}[/][bright_black]{('.' if ascii_only else '░') * (room - len(filled))}[/]",
            f"{share:.0%}", f"[bold green]{_number(row.get('return_mean'))}[/]",
            *rates, state or (f"{clock(left)} left" if left is not None else "starting"),
        )  # fmt: skip
    dot = " - " if ascii_only else " · "
    title = dot.join((group.config.system, group.config.env_name, f"{len(crew.ended)} of {len(group.seeds)} seeds"))
    return Panel(table, title=title, title_align="left", subtitle=str(group.path), subtitle_align="left", width=width,
                 border_style="blue", padding=(0, 1))  # fmt: skip


def _share(crew: seeds.Crew, row: dict[str, Any]) -> float:
    return min(1.0, (row.get("env_steps") or 0) / (row.get("total_steps") or crew.group.config.run.total_steps))


def _returns(row: dict[str, Any]) -> str:
    named = (("return", row.get("return_mean")), ("evaluated", row.get("eval_return_mean")))
    return "  ".join(f"{name} {number(value)}" for name, value in named if value is not None)


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


def _first(error: str) -> str:
    lines = [line for line in error.strip().splitlines() if line.startswith("rookery: ")]
    return f"  {lines[-1].removeprefix('rookery: ')}" if lines else ""


# ----------------------------------------------------------------------------------------------------------- summary


def summary(group: seeds.Group, ended: list[seeds.Trained], seconds: float, jobs: int) -> str:
    """Write the table of a group that has ended, with what to type next."""
    cfg, name = group.config, run_argument(group.path.name, group.path)
    done = [one for one in ended if one.state == "done"]
    head = f"{len(done)} of {len(ended)} seeds of {cfg.system} on {cfg.env_name} done in {clock(seconds)}"
    lines = [f"{head}, {jobs} at a time" if jobs > 1 else head]
    lines.append(f"  {'seed':>6}  {'':8}{'return':>10}{'evaluated':>12}{'steps':>14}{'seconds':>10}")
    for one in ended:
        get = one.metrics.get
        steps, took = get("env_steps"), get("seconds")
        cells = (_number(get("return_mean")), _number(get("eval_return_mean")))
        lines.append(
            f"  {one.seed:>6}  {one.state:8}{cells[0]:>10}{cells[1]:>12}{'-' if steps is None else f'{steps:,}':>14}"
            f"{'-' if took is None else f'{took:.1f}':>10}{_first(one.error) if one.state == 'failed' else ''}"
        )
    for key, title in (("return_mean", "return"), ("eval_return_mean", "evaluated")):
        values = [one.metrics[key] for one in done if one.metrics.get(key) is not None]
        if values:
            told = "   ".join(f"{what} {number(value)}" for what, value in seeds.statistics(values).items())
            lines.append(f"  {title:10} {told.replace('iqm', 'IQM')}   of {len(values)}")
    first = group.path / f"seed-{ended[0].seed}"
    lines += [f"  {'runs':10} {group.path}/seed-*", f"  {'evaluate':10} rookery eval {run_argument('', first)}"]
    lines.append(f"  {'plot':10} rookery plot {name}" if len(done) == len(ended) else f"  {'go on':10} rookery resume {name}")
    return "\n".join(lines)

