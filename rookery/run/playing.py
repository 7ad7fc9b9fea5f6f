"""Play a policy step by step in one environment, to be looked at: what `watch`, `video` and `eval --render` share.

    for moment in play(policy, stage, pool, seed=1):
        show(stage.frame(), describe(moment))

A moment is what an agent saw, did and was given. Its return counts rewards as they were played, whatever the pool options.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rookery.envs import Restarts
from rookery.envs.stage import Stage, View, open_stage
from rookery.run import startup
from rookery.run.config import ConfigError
from rookery.run.directory import Run
from rookery.run.kept import chosen
from rookery.run.resuming import known_config
from rookery.types import Agent, EnvPool, PyTree

MAX_STEPS = 27_000  # of an episode: Atari's 108,000 frames, as in evaluations
LEVEL = 0.95  # of intervals


class Moment(NamedTuple):
    """Where an episode stands after a step."""

    episode: int  # from 1
    step: int  # 0: the first observation, before anything was done
    observation: PyTree  # of the environment, one
    action: PyTree  # that led here; None at step 0
    reward: float
    total: float  # return so far
    ended: str = ""  # terminated, truncated, or cut at the limit of steps; "": it goes on


def play(
    policy: Any, stage: Stage, pool: EnvPool, *, seed: int, explore: float = 0.0, max_steps: int = MAX_STEPS, restarts: int = 10
) -> Iterator[Moment]:
    """Yield moment after moment, episode after episode, without end: whoever looks stops when it has seen enough.

    pool: `stage`, or what lies around it. explore: 0 takes the best action, 1 explores as in training. An episode whose
    environment failed begins anew.
    """
    guard, memory = Restarts(pool, allowed=restarts), None
    now, episode, step, total = guard.reset(seed), 1, 0, 0.0
    pool.take_episodes()
    moment = Moment(episode, 0, _shown(stage), None, 0.0, 0.0)
    yield moment
    while True:
        action, memory = policy.batch(now.observation, memory, first=now.first, reward=now.reward, explore=explore)
        pool.send(action)
        now = guard.recv()
        guard.take()
        done, begins = pool.take_episodes(), bool(now.first[0])
        if begins:
            if done:  # a pool that shows lives tells the end of a game only with the first step of the next
                yield moment._replace(total=done[0].total_reward, ended="terminated")
            episode, step, total = episode + (bool(done) or moment.ended != ""), 0, 0.0
            moment = Moment(episode, 0, _shown(stage), None, 0.0, 0.0)
            yield moment
            continue
        assert stage.last is not None
        step, reward = step + 1, float(stage.last.reward[0])
        total += reward
        ended = ("truncated" if now.truncated[0] else "terminated") if done else "cut" if step >= max_steps else ""
        moment = Moment(episode, step, _shown(stage), _only(action), reward, done[0].total_reward if done else total, ended)
        yield moment
        if ended == "cut":
            pool.rebuild(0)
            pool.take_episodes()


def _shown(stage: Stage) -> PyTree:
    assert stage.last is not None
    return _only(stage.last.observation)


def _only(tree: PyTree) -> PyTree:
    if isinstance(tree, dict):
        return {key: _only(part) for key, part in tree.items()}
    return tuple(map(_only, tree)) if isinstance(tree, tuple) else np.array(tree[0])


def exploring(agent: Agent, env_steps: int) -> Agent:
    """Let an agent explore as it did after so many steps of training: at step 0 all actions of Q-learning would be random."""
    at_start = agent.explore
    return agent._replace(explore=lambda params, index, num_envs, _: at_start(params, index, num_envs, env_steps))


def check_samples(agent: Agent, params: PyTree, system: str) -> None:
    """Refuse `--stochastic` for an agent that never explores by its actions; the greedy policy is all there is."""
    import jax

    if not any(np.any(leaf) for leaf in jax.tree.leaves(agent.explore(params, np.arange(2), 2, 0))):
        raise ConfigError(f"{system} explores by its parameters and not by its actions: there is nothing to sample")


# ----------------------------------------------------------------------------------------------------------- in words


def describe(moment: Moment, episodes: int | None = None) -> str:
    """Write where an episode stands, in one line."""
    of, ended = f"/{episodes}" if episodes else "", f" {moment.ended}" if moment.ended else ""
    said = f"episode {moment.episode}{of}  step {moment.step}{ended}  reward {moment.reward:.3g}  return {moment.total:.5g}"
    return said if moment.action is None else f"{said}  action {brief(moment.action)}"


def brief(value: PyTree, most: int = 8) -> str:
    """Write an observation or an action in short: the numbers of a vector, the shape of an image."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {brief(part, most)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(brief(part, most) for part in value) + ")"
    array = np.asarray(value)
    if array.ndim > 1:
        return f"{array.dtype}{list(array.shape)} mean {array.mean():.3g}"
    if array.ndim == 0:
        return f"{array.item():.3g}" if array.dtype.kind == "f" else str(array.item())
    numbers = [f"{x:.3g}" if array.dtype.kind == "f" else str(x) for x in array[:most].tolist()]
    return "[" + " ".join(numbers) + (f" … {array.size} in all]" if array.size > most else "]")


class Spread(NamedTuple):
    """How returns vary: their standard deviation, and an interval for the mean of all that could have been played."""

    std: float | None  # None: of one episode there is none
    low: float | None
    high: float | None


def spread(returns: list[float], level: float = LEVEL) -> Spread:
    """Compute the standard deviation of some returns (n - 1) and Student's interval of their mean."""
    n = len(returns)
    if n < 2:
        return Spread(None, None, None)
    from scipy.special import stdtrit

    mean, std = float(np.mean(returns)), float(np.std(returns, ddof=1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
    return Spread(std, mean - half, mean + half)


def report_of(
    told: dict[str, Any], returns: list[float], lengths: list[int], seconds: float, *, cut: int, stochastic: bool
) -> dict[str, Any]:
    """Make the report of `rookery eval --json` from what was played."""
    std, low, high = spread(returns)
    return {
        **told,
        "eval_return_mean": float(np.mean(returns)),
        "length_mean": sum(lengths) / len(lengths),
        "returns": returns,
        "lengths": lengths,
        "cut": cut,
        "seconds": round(seconds, 3),
        "actions": "sampled" if stochastic else "greedy",
        "return_std": std,
        "return_interval": None if low is None else [low, high],
    }


def in_words(report: dict[str, Any]) -> str:
    """Write such a report as `rookery eval` prints it."""
    low, high = min(report["returns"]), max(report["returns"])
    lines = [
        f"{report['run']}  {report['system']} on {report['env']}, checkpoint {report['checkpoint']}: "
        f"{report['env_steps']:,} steps trained",
        f"eval_return_mean {report['eval_return_mean']:.1f} over {report['episodes']} {report['actions']} episodes "
        f"(from {low:.1f} to {high:.1f}, mean length {report['length_mean']:.0f}, {report['seconds']:.1f} s)",
    ]
    if report["return_interval"] is not None:
        low, high = report["return_interval"]
        lines.append(f"return_std {report['return_std']:.1f}, {LEVEL:.0%} interval of the mean: {low:.1f} to {high:.1f}")
    if report["actions"] == "sampled":
        lines.append("actions were sampled, as at the end of the training; without --stochastic they are the best ones")
    if report["cut"]:
        lines.append(f"{report['cut']} episodes were cut after {MAX_STEPS:,} steps")
    return "\n".join(lines)


class PolicyOfRun(NamedTuple):
    """A policy that was loaded to be played, and what it comes from."""

    run: Any
    config: Any
    checkpoint: Any  # a directory
    policy: Any
    env_steps: int  # trained

    def title(self) -> str:
        """Name it in a line."""
        return f"{self.run.shown}  {self.config.system} on {self.config.env_name}, checkpoint {self.checkpoint.name}"

    def on_stage(self, *, view: View, text: bool) -> tuple[Stage, EnvPool]:
        """Make its environment, to be looked at."""
        return open_stage(self.config.env, view=view, text=text, **self.config.env_options)


def opened(
    path: str, *, which: str | None, root: str, stochastic: bool, trust: bool = False, how: str = "watch"
) -> PolicyOfRun:
    """Load the policy of a run, or of a checkpoint, to be played; stochastic: it explores as at the end of its training."""
    from rookery.run.api import loaded_policy
    from rookery.workers.acting.policy import Policy

    startup.prepare()
    run = Run.open(path, root)
    cfg, directory = known_config(run, trust=trust, how=how), chosen(run, which)
    policy, meta = loaded_policy(cfg, directory)
    if stochastic:
        agent = exploring(policy.agent, meta["env_steps"])
        check_samples(agent, policy.params, cfg.system)
        policy = Policy(agent, policy.spec, policy.params)
    return PolicyOfRun(run, cfg, directory, policy, meta["env_steps"])
