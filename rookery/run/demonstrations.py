"""Demonstrations on disk: `rookery record` writes them, `rookery train r2d3 --demonstrations FILE` learns from them.

    from rookery import demonstrations
    episodes = demonstrations.play("deep-sea", expert, episodes=10)     # expert: TimeStep -> actions [B]
    demonstrations.write("demos", episodes, env="deep-sea")

They have the format of a checkpoint: raw arrays and a manifest with digests, in a directory. Nothing in them is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery import envs
from rookery.data.demonstrations import Demonstrations, Played, WrongDemonstrations, describe, gather
from rookery.run import checkpoint
from rookery.trees import tree_map
from rookery.types import PyTree, Spec, TimeStep

KIND = "demonstrations"


def write(
    path: str | Path, episodes: Sequence[Played], *, env: Any = None, env_options: dict[str, Any] | None = None,
    spec: Spec | None = None,
) -> Demonstrations:  # fmt: skip
    """Check episodes against the spaces of an environment (or of `spec`) and write them to a directory."""
    spec = spec or envs.spec_of(env, **env_options or {})
    found = gather(episodes, spec)
    lengths = np.array([len(episode.reward) for episode in found.episodes], np.int64)
    tree = {"lengths": lengths} | {name: _join([getattr(e, name) for e in found.episodes]) for name in Played._fields}
    meta = {"kind": KIND, "env": found.env, "spaces": found.spaces, "digest": found.digest, "return_mean": found.return_mean}
    checkpoint.save(Path(path), tree, meta=meta)
    return found


def read(path: str | Path) -> Demonstrations:
    """Read what `write` wrote; every byte is checked."""
    meta = checkpoint.read_meta(Path(path))
    if meta.get("kind") != KIND:
        raise WrongDemonstrations(
            f"{path} is a checkpoint and holds no demonstrations: `rookery record RUN --out FILE` makes some"
        )
    tree, _ = checkpoint.load(Path(path))
    ends = np.cumsum(tree["lengths"])
    episodes = []
    for number, (end, length) in enumerate(zip(ends.tolist(), tree["lengths"].tolist())):
        rows = slice(end - length, end)
        seen = slice(end - length + number, end + number + 1)  # one observation more in each episode before
        episodes.append(
            Played(_cut(tree["observation"], seen), *(_cut(tree[name], rows) for name in ("action", "reward", "discount")))
        )
    return Demonstrations(tuple(episodes), dict(meta["spaces"]), meta["env"], meta["digest"])


def play(
    env: Any, act: Callable[[TimeStep], PyTree], *, episodes: int, seed: int = 1, env_options: dict[str, Any] | None = None
) -> list[Played]:
    """Play one episode in each of `episodes` environments; act: their TimeStep -> their canonical actions [B, ...]."""
    from rookery.workers.acting import recorder

    pool = envs.make(env, episodes, **env_options or {})
    try:
        return recorder.play(pool, act, seed=seed)
    finally:
        pool.close()


def record(
    path: str | Path, *, episodes: int, out: str | Path, best: int | None = None, seed: int = 1,
    which: str | int | None = None, root: str | Path = "runs", trust: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Play the greedy policy of a run or a checkpoint and write the episodes.

    best: only so many of them, by their returns; which: of the run's policies, as for `rookery.load`.
    """
    from rookery.run import api, startup
    from rookery.run.assemble import pool_factory
    from rookery.run.directory import Run
    from rookery.run.kept import chosen
    from rookery.run.loading import check_same
    from rookery.run.resuming import known_config

    startup.prepare()
    from rookery.workers.acting import recorder

    run, place = Run.open(path, root), Path(out).absolute()
    cfg, directory, memory = known_config(run, trust=trust, how="record"), chosen(run, which), None
    policy, _ = api.loaded_policy(cfg, directory)

    def act(now: TimeStep) -> PyTree:
        nonlocal memory
        action, memory = policy.batch(now.observation, memory, first=now.first, reward=now.reward)
        return action

    pool = pool_factory(cfg)(episodes)
    try:
        check_same(policy.spec, pool.spec, cfg.env_name)
        played = recorder.play(pool, act, seed=seed, env_restarts=cfg.run.env_restarts)
        spec = pool.spec
    finally:
        pool.close()
    if best is not None:
        played = sorted(played, key=lambda episode: -float(episode.reward.sum()))[:best]
    found = write(place, played, spec=spec)
    returns = [float(episode.reward.sum()) for episode in found.episodes]
    return {
        "run": str(run.shown), "checkpoint": directory.name, "env": cfg.own_names.get("env", cfg.env_name), "out": str(out),
        "episodes": len(returns), "steps": found.steps, "return_mean": found.return_mean, "returns": returns,
        "digest": found.digest,
    }  # fmt: skip


def _join(trees: list[PyTree]) -> PyTree:
    return tree_map(lambda *xs: np.concatenate(xs), *trees)


def _cut(tree: PyTree, rows: slice) -> PyTree:
    return tree_map(lambda x: x[rows], tree)


__all__ = ["Demonstrations", "Played", "describe", "play", "read", "record", "write"]
