"""Anakin PPO on CartPole written in JAX: steps per second of the compiled loop, beside rejax at the same settings.

rookery bench anakin --peers DIR --rejax-python PATH
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import tyro

from rookery_bench import peers, process
from rookery_bench.record import Record, Verdict, conditions
from rookery_bench.statistics import median, ratio, rotated, spread

Run = dict[str, Any]  # one measurement, as it is kept in the record
FEW, MANY, REJAX = "rookery, same settings", "rookery, many environments", "rejax"
# those of the peer's driver: two networks of (64, 64) with tanh, no entropy term, a value loss that is not clipped
SAME: dict[str, Any] = {
    "num_envs": 8, "rollout_length": 128, "epochs": 10, "minibatches": 4, "learning_rate": 1e-3, "anneal": False,
    "discount": 0.98, "gae_lambda": 0.8, "clip": 0.2, "value_clip": None, "entropy_cost": 0.0, "value_cost": 0.5,
    "max_gradient_norm": 0.5, "network": {"hidden": (64, 64), "activation": "tanh", "heads": "separate"},
}  # fmt: skip
NOTES = [
    "The arms take turns, round by round, and the order rotates; figures are medians over the rounds, with ranges.",
    "Steps/s after compilation, on both sides: rookery's from the end of its first call to the program to the end of the run, "
    "with all that a run does on the host but checkpoints and evaluation; rejax's over its one call, without evaluations.",
    "rookery counts transitions (a row that resets an environment is none), rejax every step.",
    "'same settings': 8 environments, 128 steps, 10 epochs of 4 minibatches, two networks of (64, 64). 'many environments': "
    "32 steps, one epoch of 16 minibatches, the same networks.",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Anakin PPO on jax:CartPole-v1: steps/s beside rejax, and with many environments."""

    rounds: int = 5
    """Rounds, with seeds 0, 1, ..."""
    peers: str | None = None
    """Directory of the peers' drivers (rejax_peer.py)."""
    rejax_python: str | None = None
    """Interpreter that has rejax."""
    total_steps: int = 512_000
    """Environment steps of the runs at the same settings."""
    many_envs: int = 2048
    """Environments of the runs with many."""
    many_total_steps: int = 8_000_000
    """Environment steps of the runs with many."""
    timeout_seconds: float = 600.0
    """Time limit of one run."""
    json: bool = False
    """One JSON line instead of the text."""
    out: str | None = None
    """Append the record to this file, e.g. benchmarks/anakin.jsonl."""


def parse(args: list[str]) -> Options:
    return tyro.cli(Options, args=args, prog="rookery bench anakin")


def measure(options: Options) -> list[Record]:
    now = conditions()
    words = ("rejax_peer.py", "cartpole_ppo", "--no-eval", "--total", str(options.total_steps))
    others = peers.chosen(options.peers, [(REJAX, options.rejax_python, words)])
    runs: list[Run] = []
    for seed in range(options.rounds):
        arms = [FEW, MANY, *(peer.name for peer in others)]
        for arm in rotated(arms, seed):
            run = _theirs(options, others[0], seed) if arm == REJAX else _ours(options, arm, seed)
            runs.append(run)
            said = run.get("failure") or f"{run['steps_per_s']:,.0f} steps/s ({run['wall_seconds']:.1f} s in all)"
            print(f"round {seed}: {arm}: {said}", file=sys.stderr, flush=True)
    return [summarise(options, now, runs)]


def many(options: Options) -> dict[str, Any]:
    """Return options with many environments and long batches: they measure what a step costs, not how soon it is solved."""
    return {"num_envs": options.many_envs, "rollout_length": 32, "epochs": 1, "minibatches": 16}


def _ours(options: Options, arm: str, seed: int) -> Run:
    chosen = SAME | {"total_steps": options.total_steps} if arm == FEW else many(options)
    asked = {"total_steps": options.many_total_steps} | chosen | {"seed": seed}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "rookery_bench.anakin", json.dumps(asked | {"runs": place})]
        done = process.run(command, timeout=options.timeout_seconds, env=process.environment())
    return {"arm": arm, "seed": seed, "options": asked, "wall_seconds": round(done.seconds, 3)} | (
        {"failure": done.failure} if done.failure else done.answer
    )


def _theirs(options: Options, peer: peers.PeerLibrary, seed: int) -> Run:
    done = peer.measure(options.peers or "", seed=seed, timeout=options.timeout_seconds)
    found: Run = {"arm": REJAX, "seed": seed, "command": peer.command(seed), "wall_seconds": round(done.seconds, 3)}
    if done.failure:
        return found | {"failure": done.failure}
    return found | {"steps_per_s": done.answer["steps_per_s"], "answer": done.answer}


def summarise(options: Options, now: dict[str, Any], runs: list[Run]) -> Record:
    arms = [arm for arm in (FEW, REJAX, MANY) if any(run["arm"] == arm for run in runs)]
    rates = {arm: [run["steps_per_s"] for run in runs if run["arm"] == arm and "steps_per_s" in run] for arm in arms}
    rows = [{"arm": arm, "steps/s": median(rates[arm]), "range": spread(rates[arm]), "rounds": len(rates[arm])} for arm in arms]
    verdicts = [Verdict.of(f"steps/s, {MANY} ({options.many_envs:,})", median(rates.get(MANY, [])), at_least=500_000.0)]
    if REJAX in rates:
        pairs = [_pair(runs, seed) for seed in range(options.rounds)]
        rows.append({"arm": f"{FEW} / {REJAX}", "steps/s": median(pairs), "range": spread(pairs), "rounds": len(pairs)})
        verdicts.insert(0, Verdict.of(f"steps/s, {FEW} / {REJAX}", median(pairs), at_least=1.5))
    now = now | {"versions": now["versions"] | peers.versions([run["answer"] for run in runs if "answer" in run])}
    return Record(
        bench="anakin",
        subject="jax:CartPole-v1, PPO",
        command=_command(options),
        conditions=now,
        settings={"seeds": list(range(options.rounds)), "same": SAME, "many": many(options)},
        rows=rows,
        verdicts=verdicts,
        notes=NOTES,
        runs=runs,
        failures=[f"{run['arm']}, seed {run['seed']}: {run['failure']}" for run in runs if "failure" in run],
    )


def _pair(runs: list[Run], seed: int) -> float | None:
    """Divide the rates within a round: what slows the machine down slows both."""
    rate = {run["arm"]: run.get("steps_per_s") for run in runs if run["seed"] == seed}
    return ratio(rate.get(FEW), rate.get(REJAX))


def _command(options: Options) -> str:
    words = [f"rookery bench anakin --rounds {options.rounds}"]
    changed = lambda name: getattr(options, name) != getattr(Options, name)
    names = [name for name in ("total_steps", "many_envs", "many_total_steps") if changed(name)]
    words += [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in names]
    places = {"peers": options.peers, "rejax-python": options.rejax_python}
    return " ".join(words + [f"--{flag} PATH" for flag, place in places.items() if place])


def train(options: dict[str, Any]) -> Run:
    """Train in a process of its own, timed from the end of the first call on."""
    from rookery.run import config, startup, threads
    from rookery.run.trainer import Trainer

    startup.prepare()
    cfg = config.resolve("anakin-ppo", env="jax:CartPole-v1", eval_episodes=0, checkpoint_every=10**9, **options)
    threads.limit(cfg)  # as `rookery train` does
    with Trainer.from_config(cfg) as trainer:
        while trainer.progress is None or not trainer.progress.updates:
            trainer.advance()
        began, before, busy = time.perf_counter(), trainer.progress.env_steps, time.process_time()
        for _ in trainer:
            pass
        seconds, steps = time.perf_counter() - began, trainer.progress.env_steps - before
        return {
            "steps_per_s": steps / seconds,
            "env_steps": steps,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(time.process_time() - busy, 3),
            "compile_seconds": round(trainer.meter.started_at or 0.0, 3),
            "return_mean": trainer.return_mean,
        }


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
