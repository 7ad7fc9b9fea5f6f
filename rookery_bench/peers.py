"""Other libraries, run by small drivers that print one JSON line. A driver lives in a directory of drivers, its library
in an environment of its own; a peer whose interpreter is not given is left out.

The line holds `peer`, `version`, `steps_per_s`, `import_s`, `time_to_target_s` (from the start of training, or of
compiling, to a mean return of the target) and whatever else the driver knows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery_bench.process import MARK, Finished, run


@dataclass(frozen=True)
class PeerLibrary:
    name: str
    python: str  # the interpreter that has the library
    words: tuple[str, ...]  # the driver's file and its options

    def measure(
        self, drivers: Path | str, *, timeout: float, seed: int | None = None, cap_seconds: float | None = None,
        words: tuple[str, ...] = (),
    ) -> Finished:  # fmt: skip
        """Run the driver. cap_seconds: after which it gives up on the target; words: more options of this one run."""
        ours = ("PYTHONPATH", "XLA_FLAGS", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")  # not their settings
        env = {key: value for key, value in os.environ.items() if key not in ours} | {MARK: "1"}
        if cap_seconds is not None:
            env["PEER_CAP_S"] = f"{cap_seconds:g}"
        python = str(Path(self.python).absolute())  # a link into a virtual environment: resolving it would leave it
        given = () if seed is None else ("--seed", str(seed))
        return run([python, *self.words, *given, *words], cwd=drivers, env=env, timeout=timeout)

    def command(self, seed: int) -> str:
        return " ".join(["python", *self.words, "--seed", str(seed)])


def chosen(drivers: str | None, peers: list[tuple[str, str | None, tuple[str, ...]]]) -> list[PeerLibrary]:
    """Choose the peers, (name, interpreter or None, words), whose interpreter was given."""
    found = [PeerLibrary(name, python, words) for name, python, words in peers if python]
    if found and not drivers:
        raise SystemExit("rookery: --peers DIR must say where the peers' drivers are")
    for peer in found:
        if not (Path(drivers or "") / peer.words[0]).is_file():
            raise SystemExit(f"rookery: {drivers} holds no {peer.words[0]}, the driver of {peer.name}")
    return found


def time_to_target(answer: dict[str, Any]) -> float | None:
    """Return seconds from typing the command, in the peer's favour: without starting Python and building the model."""
    if answer.get("time_to_target_s") is None:
        return None
    return float(answer["time_to_target_s"]) + float(answer.get("import_s") or 0.0)


def versions(answers: list[dict[str, Any]]) -> dict[str, str]:
    return {answer["peer"]: str(answer["version"]) for answer in answers if "peer" in answer and "version" in answer}
