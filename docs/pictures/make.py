"""Make the pictures of README.md and the docs: learning curves over three seeds, and the live panel of a run.

    python docs/pictures/make.py              # trains for a minute or two on two cores, in a temporary directory
    python docs/pictures/make.py --runs DIR   # draws the runs of an earlier call, which were kept with --keep DIR
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SYSTEMS, ENV, STEPS, SEEDS = ("ppo", "a2c", "impala"), "CartPole-v1", 200_000, 3
DIM = "484f58 f06e64 2ebe6e e6b43c 58a6ff bc8cff 39c5cf e6edf3"  # the eight colours of a terminal
BRIGHT = "6e7681 ff7b72 56d364 e3b341 79c0ff d2a8ff 56d4dd ffffff"
PAPER, INK = "0d1117", "e6edf3"
AT = 0.6  # the panel is that of a run which has done so much of its steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, help="draw these instead of training")
    parser.add_argument("--keep", type=Path, help="train here, and leave the runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or options.keep or Path(temporary)
        if options.runs is None:
            train(runs)
        curves(runs)
        panel(runs / "ppo" / "seed-1")
    for path in sorted(HERE.glob("*.[ps][nv]g")):
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def train(runs: Path) -> None:
    """Train every system with every seed."""
    for system in SYSTEMS:
        for seed in range(SEEDS):
            words = [system, "--env", ENV, "--total-steps", str(STEPS), "--seed", str(seed), "--eval-episodes", "0"]
            words += ["--runs", str(runs / system), "--run", f"seed-{seed}", "--json"]
            subprocess.run([sys.executable, "-m", "rookery", "train", *words], check=True, stdout=subprocess.DEVNULL)


def curves(runs: Path) -> None:
    """Draw the learning curves, on white and on dark paper."""
    from rookery import analysis

    found = analysis.find([runs / system for system in SYSTEMS])
    title = f"{ENV}, {SEEDS} seeds each, default settings"
    for name, dark in (("curves.png", False), ("curves-dark.png", True)):
        analysis.plot(found, HERE / name, dark=dark, title=title)


def panel(run: Path) -> None:
    """Draw the live panel as it stood at one of the rows that the run wrote."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme

    from rookery.analysis import read
    from rookery.run import display

    history = read(run)
    rows = [as_row(values) for values in history.rows]
    until = next(i for i, row in enumerate(rows) if row.env_steps >= AT * STEPS)
    rows = rows[: until + 1]
    returns = [row.return_mean for row in rows if row.return_mean is not None]
    header = display.Header(name=run.name, system=history.system, env=history.env, path="runs/first",
                            num_params=history.result.get("parameters"))  # fmt: skip
    console = Console(record=True, width=84, file=open("/dev/null", "w"), force_terminal=True, color_system="truecolor")  # noqa: SIM115
    command = f"rookery train {history.system} --env {history.env} --total-steps {STEPS}"
    console.print(f"[bold]$[/] {command}", highlight=False)
    console.print(display.draw(header, rows[-1], returns, console))
    rgb = lambda colours: [(int(c[:2], 16), int(c[2:4], 16), int(c[4:], 16)) for c in colours.split()]
    theme = TerminalTheme(*rgb(PAPER), *rgb(INK), rgb(DIM), rgb(BRIGHT))
    text = console.export_svg(title="rookery", theme=theme, unique_id="rookery")
    text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.S)  # a page of the docs fetches nothing from elsewhere
    text = text.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    (HERE / "panel.svg").write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def as_row(values: dict[str, Any]) -> Any:
    """Rebuild what the panel was given from a row of metrics.jsonl."""
    from rookery.run.display import Row

    known = {field.name: values[field.name] for field in dataclasses.fields(Row) if values.get(field.name) is not None}
    phases = {name.removeprefix("time/"): share for name, share in values.items() if name.startswith("time/")}
    ours = {"env_failures", "collectors", "collectors_lost", "rollouts_lost"}
    report = {name: value for name, value in values.items()
              if name not in known and name not in ours and value is not None and isinstance(value, float)
              and not name.startswith(("time/", "rss_mb", "health/"))}  # fmt: skip
    return Row(**known, phases=phases, report=report)


if __name__ == "__main__":
    main()
