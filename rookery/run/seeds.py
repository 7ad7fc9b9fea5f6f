"""Several seeds of one config: a directory for the group, in which each seed is a run like any other.

    runs/NAME/group.json        the seeds
    runs/NAME/seed-0/           a run: config.json, metrics.jsonl, checkpoints, result.json
    runs/NAME/seed-1/

They are trained by worker processes, each of which takes one seed after the other (`Crew`): it has imported everything and
compiled the program when it comes to its second (A2C on a toy, on two busy cores: 76 s for the first, 7 s for the next). Where
a run keeps one core busy (run/threads.py), as many train side by side as there are cores; one whose collectors and learner
work at once counts as two. Every seed is trained as by `--resume auto`, so a group is gone on with by doing the same again:
what is done stays, what was ended goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rookery import ranges, signals
from rookery.run import again, api, config, startup, threads
from rookery.run.config import Config, ConfigError
from rookery.run.directory import CONFIG, GROUP, METRICS, RESULT, Run, RunError, claim, run_argument
from rookery.run.records import RowFile, read_json, write_json
from rookery.run.resuming import known_config
from rookery.run.returns import iqm
from rookery.run.trainer import Result, Trainer

MOST = 1_000  # seeds in a group
LEAVING_SECONDS = 20.0  # for a worker to save what it is at, and to end
WORKER = (sys.executable, "-m", "rookery.commands.seed_worker")


def parse(text: str) -> tuple[int, ...]:
    """Read `5` (seeds 0 to 4) or `0,3,7`. Raises ConfigError."""
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    seeds = numbers if "," in text else list(range(numbers[0])) if numbers and 0 < numbers[0] <= MOST else []
    allowed = ranges.range_of(ranges.Seed)
    assert allowed is not None
    if not 0 < len(seeds) <= MOST or len(set(seeds)) < len(seeds) or any(seed not in allowed for seed in seeds):
        raise ConfigError(
            f"--seeds {text}: a number of seeds (5: seeds 0 to 4), or some of them, each once (0,3,7); at most {MOST:,}, "
            f"and each {allowed}"
        )
    return tuple(seeds)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The directory of several seeds; `config` is that of each, but for the seed and the name of the run."""

    path: Path
    seeds: tuple[int, ...]
    config: Config

    @classmethod
    def create(cls, cfg: Config, seeds: Sequence[int], *, again: bool) -> Group:
        """Make the directory, `--run` or one with a name of its own; again: or go on with the one that is there."""
        root = Path(cfg.run.runs)
        if cfg.run.run is None and again:
            raise ConfigError("--seeds with --resume auto needs --run NAME: the name of the group that is gone on with")
        try:
            root.mkdir(parents=True, exist_ok=True)
            path = root / (cfg.run.run or claim(root, {"system": cfg.system, "env": cfg.env_name}))
            if (path / CONFIG).is_file():
                raise RunError(f"{path} is a run, and no group of seeds: choose another --run")
            known = _seeds_of(path)
            if known and not again:
                raise RunError(
                    f"{path} already holds {len(known)} seeds. Go on with `rookery resume {run_argument(path.name, path)}`, "
                    "choose another --run, or remove the directory."
                )
            path.mkdir(exist_ok=True)
            write_json(path / GROUP, {"seeds": sorted({*known, *seeds})})
        except OSError as error:
            raise RunError(f"cannot make a group of seeds in {root}: {error.strerror}. Choose a place with --runs.") from error
        return cls(path=path, seeds=tuple(seeds), config=cfg)

    @classmethod
    def open(cls, name: str, root: str = "runs") -> Group | None:
        """Open the group of that name or path; None where there is none. RunError where none of its runs was begun."""
        for path in (Path(root) / name, Path(name)):
            if name and (seeds := _seeds_of(path)):
                begun = [seed for seed in seeds if (path / f"seed-{seed}" / CONFIG).is_file()]
                if not begun:
                    raise RunError(f"{path}: none of its {len(seeds)} seeds was begun. Type the command that made it again.")
                saved = known_config(Run.open(path / f"seed-{begun[0]}"))
                return cls(path=path, seeds=seeds, config=saved)
        return None

    def of_seed(self, seed: int) -> Config:
        run = dataclasses.replace(self.config.run, seed=seed, run=f"seed-{seed}", runs=str(self.path))
        return dataclasses.replace(self.config, run=run)

    def words(self, seed: int) -> list[str]:
        """Return what follows `rookery train` for a seed."""
        return shlex.split(config.command(self.of_seed(seed)))[2:]

    def row(self, seed: int) -> dict[str, Any]:
        """Read the newest row of a seed's metrics; {} before the first."""
        return RowFile(self.path / f"seed-{seed}" / METRICS).last()

    def result(self, seed: int) -> dict[str, Any] | None:
        """Return the result of a seed that is done; None where there is something left to do."""
        cfg = self.of_seed(seed)
        run = again.find(cfg)
        return None if run is None else again.result_of(run, cfg)

    @property
    def jobs(self) -> int:
        """Seeds to train side by side where nobody says how many."""
        cfg = self.config
        busy = 1 if threads.one_is_enough(cfg) and not cfg.topology.overlaps else 2  # cores
        return 1 if cfg.run.runtime == "ray" else max(1, min(len(self.seeds), startup.available_cores() // busy))


def _seeds_of(path: Path) -> tuple[int, ...]:
    found = read_json(path / GROUP).get("seeds")
    return tuple(found) if isinstance(found, list) and all(type(seed) is int for seed in found) else ()


# ----------------------------------------------------------------------------------------------------------- workers


class Trained(NamedTuple):
    """How a seed ended."""

    seed: int
    status: int  # as that of `rookery train`
    metrics: dict[str, Any]  # as of `rookery train --json`; {} where it failed
    error: str = ""

    @property
    def state(self) -> str:
        return "done" if self.status == 0 else "stopped" if self.status > 128 else "failed"


class Crew:
    """Worker processes that train the seeds of a group. Made in the main thread, whose end is theirs, too."""

    def __init__(self, group: Group, jobs: int) -> None:
        self.group, self.ended = group, dict[int, Trained]()
        self.training: dict[int, float] = {}  # seed -> when it began
        self._left, self._lock, self._stopped = list(group.seeds), threading.Lock(), False
        for seed in group.seeds:
            if (result := group.result(seed)) is not None:
                self.ended[seed] = Trained(seed, 0, result)
                self._left.remove(seed)
        with signals.Shielded():
            self._workers = [
                subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
                for _ in range(min(jobs, len(self._left)))
            ]
        self._threads = [threading.Thread(target=self._lead, args=(worker,), daemon=True) for worker in self._workers]
        for thread in self._threads:
            thread.start()

    def _lead(self, worker: subprocess.Popen[str]) -> None:
        """Hand one seed after the other to a worker, and note how each ended."""
        assert worker.stdin is not None and worker.stdout is not None
        while (seed := self._next()) is not None:
            try:
                worker.stdin.write(json.dumps(self.group.words(seed)) + "\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
            except OSError:
                answer = ""
            if answer:
                told = json.loads(answer)
            else:
                status = worker.wait() or 1  # without a word it has not done it
                told = {"status": status if status > 0 else 128 - status, "error": "rookery: its process was ended"}
            with self._lock:
                self.training.pop(seed, None)
                self.ended[seed] = Trained(seed, told["status"], told.get("metrics", {}), told.get("error", ""))
            if not answer:
                return
        worker.stdin.close()

    def _next(self) -> int | None:
        with self._lock:
            if self._stopped or not self._left:
                return None
            seed = self._left.pop(0)
            self.training[seed] = time.monotonic()
            return seed

    def wait(self, seconds: float) -> bool:
        """Wait for a while; return whether there is still somebody at work."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return any(thread.is_alive() for thread in self._threads)

    def interrupt(self, name: str) -> bool:
        """Pass a signal on: every worker saves what it is at, and no seed is begun any more."""
        self._stopped = True
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.Signals[name])
        return True

    def leave(self, name: str) -> str:
        path = self.group.path
        return f"the seeds were not waited for. Go on with: rookery resume {run_argument(path.name, path)}"

    def close(self) -> None:
        """End what is still there; who has nothing more to do leaves by itself."""
        idle = not self.training
        for worker in self._workers:
            try:
                worker.wait(LEAVING_SECONDS if idle or self._stopped else 0)
            except subprocess.TimeoutExpired:
                worker.terminate()
                worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None and not pipe.closed:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def results(self) -> list[Trained]:
        """List how the seeds ended, in their order; one that was not begun is stopped."""
        unbegun = lambda seed: Trained(seed, 128 + signal.SIGINT, {}, "rookery: it was not begun")
        return [self.ended.get(seed) or unbegun(seed) for seed in self.group.seeds]


def train_seeds(
    system: str | Any = "ppo", *, env: Any, seeds: int | Sequence[int] = 5, jobs: int | None = None, **options: Any
) -> list[Result]:
    """Train several seeds to the end, in a directory for the group; return how each ended, in their order.

    seeds: 5 means 0 to 4; jobs: how many side by side, None: as many as there are cores for. Other options as for `train`;
    `run` names the group. Parts that are Python objects of your own are trained here, one seed after the other.

    results = rookery.train_seeds("ppo", env="CartPole-v1", seeds=5)
    """
    startup.prepare()
    numbers = parse(f"{seeds}" if isinstance(seeds, int) else ",".join(map(str, seeds)) + ",")
    group = Group.create(config.resolve(system, env=env, **options), numbers, again=False)
    if group.config.custom:
        return [_trained_here(group.of_seed(seed)) for seed in numbers]
    crew = Crew(group, jobs or group.jobs)
    try:
        while crew.wait(1.0):
            pass
    except BaseException:
        crew.interrupt("SIGINT")
        raise
    finally:
        crew.close()
    return [_result(group, one) for one in crew.results()]


def _trained_here(cfg: Config) -> Result:
    with Trainer.from_config(cfg) as trainer:
        for _ in trainer:
            pass
        return trainer.finish()


def _result(group: Group, one: Trained) -> Result:
    path = group.path / f"seed-{one.seed}"
    if one.status:
        return Result(str(path), one.state, one.error.strip(), one.metrics, None)
    run = Run.open(path.absolute())
    reason = read_json(run.path / RESULT).get("reason")
    return Result(str(path), one.state, str(reason), one.metrics, api.load(run.path), run.kept)


# -------------------------------------------------------------------------------------------------------- statistics


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Summarise returns of several seeds; iqm: the mean of the middle half, as `rookery compare` has it."""
    return {"mean": sum(values) / len(values), "iqm": iqm(list(values)), "min": min(values), "max": max(values)}
