"""The three functions of the Python interface that are not the Trainer itself: train, load, and finding checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookery import envs
from rookery.run import checkpoint, config, startup
from rookery.run.directory import Run
from rookery.run.trainer import Result, Trainer, newest_checkpoint


def train(system: str | Any = "ppo", *, env: Any, **options: Any) -> Result:
    """Trains to the end and returns the metrics and the policy. Options as for `Trainer`.

    result = rookery.train("ppo", env="CartPole-v1", total_steps=100_000)
    """
    with Trainer(system, env=env, **options) as trainer:
        for _ in trainer:
            pass
        return trainer.finish()


def load(path: str | Path, *, root: str | Path = "runs", algorithm: Any = None, env: Any = None, torso: Any = None) -> Any:
    """The policy of a run (its newest valid checkpoint) or of a checkpoint: `action, memory = policy(observation, memory)`.

    An algorithm, environment or network of your own is not part of the file: pass it again.
    """
    startup.prepare()
    import jax
    import numpy as np

    from rookery.workers.learner import from_flat
    from rookery.workers.policy import Policy

    run = Run.open(path, root)
    cfg = config.from_dict(run.config["config"], algorithm=algorithm, env=env)
    directory = run.checkpoint or newest_checkpoint(run)
    tree, _ = checkpoint.load(directory)
    spec = envs.spec_of(cfg.env, **cfg.env_options)
    agent = cfg.algorithm.build(spec, num_updates=cfg.num_updates, torso=torso)
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    state = from_flat(shapes, tree["topology"]["learner"]["state"])
    return Policy(agent, spec, jax.tree.map(np.asarray, state.params))


def evaluate_run(path: str | Path, *, episodes: int, seed: int, root: str | Path = "runs") -> dict[str, Any]:
    """Greedy episodes of a run's policy, on environments made as in training."""
    from rookery.workers.evaluator import Evaluator

    policy = load(path, root=root)
    run = Run.open(path, root)
    cfg = config.from_dict(run.config["config"])
    evaluator = Evaluator(policy.agent, lambda: envs.make(cfg.env, episodes, **cfg.env_options), seed=seed)
    try:
        evaluation = evaluator.evaluate(policy.params)
    finally:
        evaluator.close()
    return {
        "run": str(run.path),
        "env": cfg.env_name,
        "episodes": episodes,
        "seed": seed,
        "eval_return_mean": evaluation.return_mean,
        "length_mean": sum(evaluation.lengths) / len(evaluation.lengths),
        "returns": evaluation.returns,
        "cut": evaluation.cut,
        "seconds": round(evaluation.seconds, 3),
    }
