"""The command in a process of its own, as a user has it: `Rookery` starts one and tells how it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SMALL = ("--num-envs", "4", "--rollout-length", "8", "--network.hidden", "4", "--eval-episodes", "0", "--run", "x")


class Ended(NamedTuple):
    status: int
    out: str
    err: str
    seconds: float
    result: dict[str, Any]  # result.json, empty where there is none


def start(*words: str, cwd: Path, before: str = "", **environment: str) -> subprocess.Popen[str]:
    """Begins `rookery ...` in `cwd`, where the environments of this folder are registered; before: Python to run first."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "default"} | environment
    command = [sys.executable, "-c", f"import looping_envs; {before or None}; from rookery.cli import main; main()", *words]
    return subprocess.Popen(command, cwd=cwd, env=variables, stdout=-1, stderr=-1, text=True)


def rookery(*words: str, cwd: Path, timeout: float = 120.0, before: str = "", **environment: str) -> Ended:
    """Runs it to its end."""
    begin = time.monotonic()
    program = start(*words, cwd=cwd, before=before, **environment)
    try:
        out, err = program.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    file = cwd / "runs" / "x" / "result.json"
    return Ended(program.returncode, out, err, time.monotonic() - begin, json.loads(file.read_text()) if file.exists() else {})
