"""`rookery doctor ENV`: have an environment examined in a process of its own, and say what to train on it.

An environment that hangs or ends its process is a finding like any other: the process is given so many seconds for an answer.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rookery import signals, systems
from rookery.envs.examination import Finding
from rookery.envs.jax.sources import is_jax_id
from rookery.run.config import ConfigError
from rookery.run.words import text

PATIENCE_SECONDS = 30.0
SLOW, QUICK = 5e-3, 2e-4  # seconds a step
COLOURS = {"ok": "32", "note": "33", "problem": "1;31"}


class Examined(NamedTuple):
    findings: list[Finding]
    facts: dict[str, Any]


class Advice(NamedTuple):
    system: str
    why: str
    command: str


def examine_env(
    env: str, options: dict[str, Any], *, seconds: float = PATIENCE_SECONDS, command: Sequence[str] | None = None
) -> Examined:
    """Examine an environment in a process of its own. ConfigError where there is none of that name.

    command: what is run instead, with the number of the file that it tells its findings to at the end.
    """
    words = command or [sys.executable, "-m", "rookery.envs.examination", env, json.dumps(options)]
    reader, writer = os.pipe()
    path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [*words, str(writer)], pass_fds=[writer], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        os.close(writer)
        signals.before_leaving(child.kill)
        try:
            found, doing, answered = _listen(reader, seconds)
            if not answered:
                child.kill()
                child.wait()
                found.findings.append(Finding("answers", "problem", f"no answer within {seconds:g} s, while {doing}", HANGS))
            elif (status := child.wait()) != 0:
                ended = f"signal {-status}" if status < 0 else f"status {status}"
                last = _last_line(said)
                found.findings.append(Finding(
                    "process", "problem", f"it ended its process with {ended}, while {doing}{': ' + last if last else ''}",
                    "An environment raises what is wrong, and leaves its process alone: no exit(), no crash of its simulator",
                ))  # fmt: skip
        finally:
            os.close(reader)
            child.kill()
            child.wait()
    return found


HANGS = "Mend what waits for ever; --seconds N is for one that is slow. A run replaces it after --env-step-seconds"


def _listen(reader: int, seconds: float) -> tuple[Examined, str, bool]:
    """Read findings until there are no more: with what was done last, and whether an answer came in time."""
    found, doing, rest = Examined([], {}), "starting", b""
    while True:
        if not select.select([reader], [], [], seconds)[0]:
            return found, doing, False
        if not (part := os.read(reader, 65_536)):
            return found, doing, True
        *lines, rest = (rest + part).split(b"\n")
        for kind, what in map(json.loads, lines):
            if kind == "refused":
                raise ConfigError(what)
            if kind == "doing":
                doing = what
            elif kind == "fact":
                found.facts.update(what)
            else:
                found.findings.append(Finding(**what))


def _last_line(said: Any) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


# ---------------------------------------------------------------------------------------------------------- advice


def advise(env: str, options: dict[str, Any], facts: dict[str, Any]) -> list[Advice]:
    """Recommend systems for what was found, the first choice first, each with the command to copy."""
    if "actions" not in facts:
        return []
    more = dict(options)
    if _single(facts, options) and not is_jax_id(env):
        more |= {"grayscale": True} if facts.get("colour") and facts.get("bytes") else {}
        more |= {"frame_stack": 4}
    given = f" --env-options {' '.join(f'{name}={text(value)}' for name, value in more.items())}" if more else ""
    return [Advice(name, why, f"rookery train {name} --env {env}{given}") for name, why in _systems(env, facts)]


def _single(facts: dict[str, Any], options: dict[str, Any]) -> bool:
    """Tell whether images are seen one at a time, and nobody said so. Those that `pixels` asks for are stacked."""
    return bool(facts.get("images")) and not facts.get("frames") and not {"frame_stack", "pixels"} & set(options)


def _systems(env: str, facts: dict[str, Any]) -> list[tuple[str, str]]:
    step, discrete = facts.get("step_seconds", 1e-3), facts["actions"] == "discrete"
    if is_jax_id(env):
        first = [("anakin-ppo", "it is written in JAX: environments and learning are one compiled program")]
        return [*first, ("ppo", "the same algorithm, with environments stepped from outside")]
    if systems.family_of(env) == "atari":
        return [("impala", "games are played while it learns; its preset is that of the papers"),
                ("dqn", "needs fewer steps, and has a preset, too")]  # fmt: skip
    if not discrete:
        kind = {"continuous": "continuous actions", "several": "several choices at once"}.get(facts["actions"], "mixed actions")
        more = [("impala", f"a step takes {1e3 * step:.1f} ms: it is played while it learns")] if step > SLOW else []
        return [("ppo", f"{kind}: those that estimate a value for each action cannot choose among them"), *more]
    if step > SLOW:
        return [("dqn", f"a step takes {1e3 * step:.1f} ms: what was played is learned from again and again"),
                ("impala", "it is played in several processes while it learns")]  # fmt: skip
    speed = "quick to step" if step < QUICK else "not slow to step"
    return [("ppo", f"choices, and {speed}: steps cost less than learning"),
            ("dqn", "where steps are few: it learns from each of them many times")]  # fmt: skip


def presets_of(env: str) -> list[str]:
    """List the systems that have a preset for an environment."""
    named = {name for preset in systems.PRESETS if preset.fits(env) for name in preset.systems}
    return [name for name in systems.SYSTEMS if name in named]


def notes_of(facts: dict[str, Any], env: str, options: dict[str, Any]) -> list[Finding]:
    """Say what follows from the spaces: frames, memory, presets."""
    found = []
    if _single(facts, options):
        found.append(Finding("frames", "note", "one frame is seen at a time: no speed can be told from it",
                             "--env-options frame_stack=4, or --network.core lstm"))  # fmt: skip
    elif facts.get("actions"):
        found.append(Finding("recall", "ok", "if one observation does not tell all: --network.core lstm"))
    if names := presets_of(env):
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} other systems" if len(names) > 5 else "")
        found.append(Finding("presets", "ok", f"there are settings for it in {some}"))
    return found


# ---------------------------------------------------------------------------------------------------------- in words


def told(findings: list[Finding], *, colour: bool, width: int | None = None) -> str:
    """Write findings as lines: how it is, of what, and below it what to do."""
    width = min(width or shutil.get_terminal_size().columns, 120)
    part = max((len(finding.part) for finding in findings), default=0)
    before = 2 + 9 + part + 2
    lines = []
    for level, finding in ((finding.level, finding) for finding in findings):
        mark = f"\x1b[{COLOURS[level]}m{level:<9}\x1b[0m" if colour else f"{level:<9}"
        body = textwrap.wrap(finding.text, max(24, width - before), break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {mark}{finding.part:<{part}}  {body[0]}")
        lines += [" " * before + line for line in body[1:]]
        if finding.remedy:
            wrapped = textwrap.wrap(finding.remedy, max(24, width - before - 2), break_long_words=False, break_on_hyphens=False)
            lines += [" " * before + ("→ " if i == 0 else "  ") + line for i, line in enumerate(wrapped)]
    return "\n".join(lines)


def summary(findings: list[Finding]) -> str:
    """Count what was found."""
    counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "note")}
    said = [f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items() if count]
    return " and ".join(said) or "nothing is wrong"


def where(path: str | Path) -> str:
    """Write a path as short as it can be typed."""
    home = str(Path.home())
    return str(path).replace(home, "~", 1) if str(path).startswith(home + os.sep) else str(path)
