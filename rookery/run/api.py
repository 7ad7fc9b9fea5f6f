"""The Python interface beside the Trainer: train, resume, load, and what `rookery resume` and `rookery eval` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookery import signals
from rookery.run import checkpoint, config, ending, startup
from rookery.run.assemble import pool_factory, spec_of
from rookery.run.callbacks import Callbacks, OnCheckpoint, OnEnd, OnEvaluation, OnStep
from rookery.run.directory import Run
from rookery.run.kept import chosen, resumable
from rookery.run.loading import acting, check_same, loaded_policy
from rookery.run.resuming import UNFIT, config_of, known_config, misfit
from rookery.run.trainer import Result, Trainer


def train(
    system: str | Any = "ppo", *, env: Any, progress: bool | None = None, on_step: OnStep = None,
    on_evaluation: OnEvaluation = None, on_checkpoint: OnCheckpoint = None, on_end: OnEnd = None, **options: Any,
) -> Result:  # fmt: skip
    """Train to the end and return the metrics and the policy. Options as for `Trainer`.

    result = rookery.train("ppo", env="CartPole-v1", total_steps=100_000)

    progress: True: draw how it stands, in place or as lines; False: draw nothing; None: in a terminal and in a notebook alone.
    on_...: functions of yours that are called (rookery/run/callbacks.py). Ctrl-C saves and raises KeyboardInterrupt.
    """
    called: dict[str, Any] = {"on_step": on_step, "on_evaluation": on_evaluation, "on_checkpoint": on_checkpoint}
    with Trainer(system, env=env, progress=progress, on_end=on_end, **called, **options) as trainer:
        return to_the_end(trainer)


def to_the_end(trainer: Trainer) -> Result:
    """Drive a trainer to its end and, where it was drawn, print how it went. The first Ctrl-C saves what there is and raises
    KeyboardInterrupt, which says how to go on; a second one does not wait for that."""
    with signals.Interruptible(trainer) as signal:
        for _ in trainer:
            pass
        result = trainer.finish("stopped" if signal.came else "done", evaluate=not signal.came)
    if trainer.draws:
        print(ending.summary(ending.outcome(trainer, result)))
    if signal.came:
        raise KeyboardInterrupt(trainer.last_good(go_on=True))
    return result


def resume(
    path: str | Path, *, env: Any = None, algorithm: Any = None, torso: Any = None, topology: Any = None, trust: bool = False,
    root: str | Path = "runs", progress: bool | None = None, on_step: OnStep = None, on_evaluation: OnEvaluation = None,
    on_checkpoint: OnCheckpoint = None, on_end: OnEnd = None, **options: Any,
) -> Result:  # fmt: skip
    """Go on with a run, in its directory, from its newest checkpoint (or the one at `path`), to the end.

    result = rookery.resume("runs/first", total_steps=600_000)

    Parts of your own that have names (classes and functions of modules and files) are found again by them where you have
    trained the run; others are passed again. trust: import what the run's config names, whoever wrote it. options: what shall
    be other than it was, by name. progress and on_...: as for `train`.
    """
    startup.prepare()
    run = Run.open(path, root)
    cfg = known_config(run, trust=trust, env=env, algorithm=algorithm, torso=torso, topology=topology)
    called = Callbacks(on_step=on_step, on_evaluation=on_evaluation, on_checkpoint=on_checkpoint, on_end=on_end)
    with continued(run, config.changed(cfg, options), progress=progress, callbacks=called) as trainer:
        return to_the_end(trainer)


def continued(
    run: Run, cfg: config.Config, *, began: float | None = None, callbacks: Callbacks | None = None,
    progress: bool | None = False,
) -> Trainer:  # fmt: skip
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
    trainer = Trainer.from_config(cfg, began=began, callbacks=callbacks, progress=progress)
    try:
        trainer.continue_run(run, directory)
    except BaseException:
        trainer.close()
        raise
    return trainer


def load(
    path: str | Path, *, which: str | int | None = None, root: str | Path = "runs", seed: int = 0, algorithm: Any = None,
    env: Any = None, topology: Any = None, torso: Any = None,
) -> Any:  # fmt: skip
    """Load the policy of a run or of a checkpoint: `action, memory = policy(observation, memory)`, `policy.act(observation)`.

    which: of a run, "best" by evaluation, "last", or the number of updates of a checkpoint; by default the best where an
    evaluation ended the run (`stop_eval_return`), else the last. A damaged one is passed over, with a warning, unless it was
    asked for. seed: of what `policy.act` draws.

    The environment need not be there: its spaces are in the checkpoint. An algorithm, topology or network (torso) of your own
    is part of no file: pass it again.
    """
    startup.prepare()
    run = Run.open(path, root)
    saved, directory = config_of(run), chosen(run, which)
    passed = {"algorithm": algorithm, "env": env, "topology": topology, "torso": torso}
    cfg = acting(saved, checkpoint.read_meta(directory), **passed)
    return loaded_policy(cfg, directory, seed=seed)[0]


def evaluate_run(
    path: str | Path, *, episodes: int, seed: int, which: str | int | None = None, root: str | Path = "runs",
    stochastic: bool = False, trust: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Play episodes with a run's policy, on environments made as in training; which: as for `load`. stochastic: actions are
    sampled as they were at the end of the training, else they are the best ones."""
    startup.prepare()
    from rookery.run.playing import check_samples, exploring, report_of
    from rookery.workers.acting.evaluator import Evaluator

    run = Run.open(path, root)
    cfg, directory = known_config(run, trust=trust, how="eval"), chosen(run, which)
    policy, meta = loaded_policy(cfg, directory)
    check_same(policy.spec, spec_of(cfg), cfg.env_name)
    agent = exploring(policy.agent, meta["env_steps"]) if stochastic else policy.agent
    if stochastic:
        check_samples(agent, policy.params, cfg.system)
    evaluator = Evaluator(agent, lambda: pool_factory(cfg)(episodes), seed=seed, explore=float(stochastic))
    try:
        evaluation = evaluator.evaluate(policy.params)
    finally:
        evaluator.close()
    told = {
        "run": str(run.shown), "checkpoint": directory.name, "system": cfg.system, "env": cfg.env_name,
        "env_steps": meta["env_steps"], "episodes": episodes, "seed": seed,
    }  # fmt: skip
    return report_of(
        told, evaluation.returns, evaluation.lengths, evaluation.seconds, cut=evaluation.cut, stochastic=stochastic
    )
