"""The Python interface beside the Trainer: train, resume, load, and what `rookery resume` and `rookery eval` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookery.run import checkpoint, config, startup
from rookery.run.assemble import pool_factory, spec_of
from rookery.run.directory import Run
from rookery.run.kept import chosen, loaded_params, resumable
from rookery.run.resuming import UNFIT, config_of, known_config, misfit
from rookery.run.trainer import Result, Trainer


def train(system: str | Any = "ppo", *, env: Any, **options: Any) -> Result:
    """Train to the end and return the metrics and the policy. Options as for `Trainer`.

    result = rookery.train("ppo", env="CartPole-v1", total_steps=100_000)
    """
    with Trainer(system, env=env, **options) as trainer:
        for _ in trainer:
            pass
        return trainer.finish()


def resume(
    path: str | Path, *, env: Any = None, algorithm: Any = None, torso: Any = None, topology: Any = None, trust: bool = False,
    root: str | Path = "runs", **options: Any,
) -> Result:  # fmt: skip
    """Go on with a run, in its directory, from its newest checkpoint (or the one at `path`), to the end.

    result = rookery.resume("runs/first", total_steps=600_000)

    Parts of your own that have names (classes and functions of modules and files) are found again by them where you have
    trained the run; others are passed again. trust: import what the run's config names, whoever wrote it. options: what shall
    be other than it was, by name.
    """
    startup.prepare()
    run = Run.open(path, root)
    cfg = known_config(run, trust=trust, env=env, algorithm=algorithm, torso=torso, topology=topology)
    with continued(run, config.changed(cfg, options)) as trainer:
        for _ in trainer:
            pass
        return trainer.finish()


def continued(run: Run, cfg: config.Config, *, began: float | None = None) -> Trainer:
    """Make a trainer that goes on in that run's directory with `cfg`, which may differ from the run's own in its options."""
    directory = resumable(run)
    meta, options = checkpoint.read_meta(directory), cfg.run
    try:
        env_steps, seconds = int(meta["env_steps"]), float(meta["seconds"])
        updates = int(meta.get("updates", 0))  # checkpoints of older versions do not say
    except UNFIT as error:
        raise misfit(directory, error) from error
    budgets = (
        (env_steps, options.total_steps, "trained for all of its {:,} steps", "--total-steps {}"),
        (updates, options.total_updates, "made all of its {:,} updates", "--total-updates {}"),
        (seconds, options.seconds, "run for all of its {:g} seconds", "--seconds {:g}"),
    )
    for spent, budget, used_up, more in budgets:
        if budget is not None and spent >= budget:
            raise config.ConfigError(
                f"{run.name} has {used_up.format(budget)}. Give it more: rookery resume {run.name} {more.format(2 * budget)}"
            )
    if options.run not in (None, run.name):
        raise config.ConfigError(f"--run {options.run}: a run goes on in its own directory, which is {run.name}")
    trainer = Trainer.from_config(cfg, began=began)
    try:
        trainer.continue_run(run, directory)
    except BaseException:
        trainer.close()
        raise
    return trainer


def load(
    path: str | Path, *, which: str | int | None = None, root: str | Path = "runs", algorithm: Any = None, env: Any = None,
    topology: Any = None, torso: Any = None,
) -> Any:  # fmt: skip
    """Load the policy of a run or of a checkpoint: `action, memory = policy(observation, memory)`.

    which: of a run, "best" by evaluation, "last", or the number of updates of a checkpoint; by default the best where an
    evaluation ended the run (`stop_eval_return`), else the last. A damaged one is passed over, with a warning, unless it was
    asked for. An algorithm, environment, topology or network (torso) of your own is not part of any file: pass it again.
    """
    startup.prepare()
    run = Run.open(path, root)
    cfg = config.from_dict(config_of(run), algorithm=algorithm, env=env, topology=topology, torso=torso)
    return loaded_policy(cfg, chosen(run, which))[0]


def loaded_policy(cfg: config.Config, directory: Path) -> tuple[Any, dict[str, Any]]:
    """Load the policy in a checkpoint, and the meta that was written with it."""
    import jax
    import numpy as np

    from rookery.workers.acting.policy import Policy

    tree, meta = checkpoint.load(directory)
    spec = spec_of(cfg)
    agent = cfg.build(spec)
    try:
        params, meta["env_steps"] = loaded_params(agent, tree), int(meta["env_steps"])
    except UNFIT as error:
        raise misfit(directory, error) from error
    return Policy(agent, spec, jax.tree.map(np.asarray, params)), meta


def evaluate_run(
    path: str | Path, *, episodes: int, seed: int, which: str | int | None = None, root: str | Path = "runs",
    trust: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Play greedy episodes with a run's policy, on environments made as in training; which: as for `load`."""
    startup.prepare()
    from rookery.workers.acting.evaluator import Evaluator

    run = Run.open(path, root)
    cfg, directory = known_config(run, trust=trust, how="eval"), chosen(run, which)
    policy, meta = loaded_policy(cfg, directory)
    evaluator = Evaluator(policy.agent, lambda: pool_factory(cfg)(episodes), seed=seed)
    try:
        evaluation = evaluator.evaluate(policy.params)
    finally:
        evaluator.close()
    return {
        "run": str(run.shown),
        "checkpoint": directory.name,
        "system": cfg.system,
        "env": cfg.env_name,
        "env_steps": meta["env_steps"],
        "episodes": episodes,
        "seed": seed,
        "eval_return_mean": evaluation.return_mean,
        "length_mean": sum(evaluation.lengths) / len(evaluation.lengths),
        "returns": evaluation.returns,
        "cut": evaluation.cut,
        "seconds": round(evaluation.seconds, 3),
    }
