"""Examine an environment before it is trained on: what `rookery doctor ENV` runs in a process of its own.

    python -m rookery.envs.examination ID OPTIONS FD      findings go to the file FD, a line of JSON each

One that Python steps is asked by Gymnasium's own calls, so that what it breaks is seen where it breaks; all others are asked
as a pool. Whoever reads kills this process where an answer takes too long: an environment may hang, or end it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gs

from rookery import envs, references, spaces
from rookery.envs import legal
from rookery.envs.processes.mailbox import CannotTravel, pack
from rookery.envs.processes.memory import resident_mb
from rookery.envs.trials import Trial, in_short, legal_action, same, try_env, try_pool
from rookery.types import EnvPool

PLAY_SECONDS, PLAY_STEPS = 1.0, 4000
QUICK_SECONDS, QUICK_STEPS = 0.6, 20_000  # of the loop that is timed
SEED_STEPS = 24
IMAGE = 24  # pixels on two sides at least: smaller ones are boards
TOGETHER = 32  # environments of a pool that is timed
FEW = 2e-4  # seconds of a step of few, from which on many are not quicker
ENDLESS, SPARSE = 2000, 500  # steps without an end, and without a reward, that are told
LEAK_MB, LEAK_BYTES = 8.0, 200.0  # in all, and per step: less is noise


class Finding(NamedTuple):
    part: str
    level: str  # ok, note or problem
    text: str
    remedy: str = ""


Tell = Callable[[str, Any], None]  # ("doing" | "finding" | "fact" | "refused", what)


def ok(part: str, text: str) -> Finding:
    return Finding(part, "ok", text)


def examine(id: Any, options: dict[str, Any], tell: Tell) -> None:
    """Tell finding after finding; raises nothing that an environment can cause."""
    try:
        tell("doing", "being made")
        id = envs.resolved(id)
        maker = envs.env_maker(id, **options)
        steps = _as_gymnasium(id, maker, options, tell) if maker is not None else _as_pool(id, options, tell)
        for finding in steps:
            tell("finding", finding._asdict())
    except (envs.UnknownEnvironment, references.BadReference) as error:
        tell("refused", str(error))
    except _Enough:
        pass
    except (Exception, SystemExit) as error:
        tell("finding", Finding("examination", "problem", f"it raised {in_short(error)}", CONTRACT)._asdict())


class _Enough(Exception):
    """What was found leaves nothing more to be asked."""


MAKE = "Mend what makes it; its options are --env-options NAME=VALUE"
LARGE = "--normalise-rewards where a system has it, else --env-options reward_scale=0.001"
CONTRACT = "docs/environments.md says what an environment answers; rookery.testing.check_env asserts it in a test of yours"


# ------------------------------------------------------------------------------------------------ one of Gymnasium's


def _as_gymnasium(id: Any, maker: Callable[[], Any], options: dict[str, Any], tell: Tell) -> Iterator[Finding]:
    begin = time.perf_counter()
    try:
        env = maker()
    except envs.UnknownEnvironment:
        raise
    except (Exception, SystemExit) as error:
        yield Finding("made", "problem", f"it cannot be made: {in_short(error)}", MAKE)
        raise _Enough from error
    yield ok("made", f"in {1e3 * (time.perf_counter() - begin):.0f} ms: {type(getattr(env, 'unwrapped', env)).__name__}")
    tell("doing", "telling its spaces")
    yield from _spaces(env.observation_space, env.action_space, tell)
    tell("doing", "reset() or step() of random play")
    played = try_env(env, seconds=PLAY_SECONDS, steps=PLAY_STEPS)
    yield from _calls(played)
    if played.broken:
        raise _Enough
    yield from _answers(played, env)
    yield from _episodes(played, tell)
    tell("doing", "reset(seed) and the steps after it")
    yield from _seeds(env, maker)
    tell("doing", "reset() or step() while it was timed")
    yield from _speed(env, tell)
    yield from _closing(env)
    tell("doing", "being sent to another process")
    yield from _placing(id, maker, options)


def _spaces(observation: Any, action: Any, tell: Tell) -> Iterator[Finding]:
    try:
        spec = spaces.spec_of(observation, action, "")
    except spaces.UnsupportedSpace as error:
        yield Finding("spaces", "problem", str(error), "Wrap the environment so that the space has a fixed shape")
        raise _Enough from error
    except Exception as error:
        yield Finding("spaces", "problem", f"its spaces cannot be read: {in_short(error)}",
                      "observation_space and action_space are spaces of gymnasium.spaces")  # fmt: skip
        raise _Enough from error
    for name, own, canonical in (("observation", observation, spec.observation), ("action", action, spec.action)):
        as_seen = "" if _short(canonical) == _short(own) else f", {'seen' if name == 'observation' else 'acted in'} as"
        yield ok("spaces", f"{name} {_short(own)}{as_seen}{' ' + _short(canonical) if as_seen else ''}")
    if isinstance(action, gs.Box) and not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        yield Finding("spaces", "note", "actions have no bound, so nothing is clipped",
                      "Give the Box of the actions finite ends, of about -1 and 1")  # fmt: skip
    leaves = [leaf for _, keys, leaf in spaces.leaves(spec.observation) if "action_mask" not in keys]
    images = [leaf.shape for leaf in leaves if isinstance(leaf, gs.Box) and sum(side >= IMAGE for side in leaf.shape) >= 2]
    kinds = {type(leaf).__name__ for _, _, leaf in spaces.leaves(spec.action)}
    tell("fact", {
        "actions": "continuous" if kinds == {"Box"} else "discrete" if isinstance(spec.action, gs.Discrete) else
                   "mixed" if "Box" in kinds else "several",
        "images": bool(images), "frames": any(len(shape) == 3 and shape[0] in (3, 4) and shape[1] > 8 for shape in images),
        "bytes": any(isinstance(leaf, gs.Box) and leaf.dtype == np.uint8 and len(leaf.shape) >= 2 for leaf in leaves),
        "colour": any(len(shape) == 3 and shape[-1] == 3 for shape in images),
        "mask": legal.is_masked(spec.observation),
    })  # fmt: skip


def _short(space: Any, most: int = 90) -> str:
    text = " ".join(str(space).split()).replace(", dtype=int32", "")
    if len(text) > most and isinstance(space, gs.Box):
        return f"Box({space.low.min():.4g}, {space.high.max():.4g}, {space.shape}, {space.dtype})"
    return text if len(text) <= most else text[: most - 1] + "…"


def _calls(played: Trial) -> Iterator[Finding]:
    for text, remedy in played.broken:
        yield Finding("calls", "problem", text, remedy)
    if not played.broken:
        yield ok("calls", f"reset() and step() answer as Gymnasium promises, in {played.steps:,} steps")


def _answers(played: Trial, env: Any) -> Iterator[Finding]:
    for text, remedy in played.wrong:
        yield Finding("observations", "problem", text, remedy)
    for text, remedy in played.notes:
        yield Finding("observations", "note", text, remedy)
    if not played.wrong and not played.notes:
        yield ok("observations", "are inside of their space, finite and arrays of their own")
    if played.masked:
        if played.masked == "ok":
            yield ok("mask", "action_mask is there and leaves an action at every step; illegal actions are never chosen")
        else:
            yield Finding("mask", "problem", played.masked, "action_mask has an entry for each action, and one is not 0")


def _episodes(played: Trial, tell: Tell) -> Iterator[Finding]:
    rewards, lengths = np.array(played.rewards), played.lengths
    tell("fact", {"reward_most": float(np.abs(rewards).max()) if rewards.size else 0.0})
    if rewards.size and not rewards.any() and played.longest < SPARSE:
        yield ok("rewards", f"there was none in the {played.longest:,} steps that there was time for")
    elif rewards.size and not rewards.any():
        yield Finding("rewards", "note", f"there was none in {rewards.size:,} steps of random play: sparse, or never given",
                      "Reward steps on the way, or show it how: rookery train r2d3 --demonstrations")  # fmt: skip
    elif rewards.size:
        text = f"from {rewards.min() + 0.0:.4g} to {rewards.max() + 0.0:.4g}, mean {rewards.mean() + 0.0:.3g}"
        if np.abs(rewards).max() > 1000:
            yield Finding("rewards", "note", f"{text}: large", LARGE)
        else:
            yield ok("rewards", text)
    if not lengths and played.longest < ENDLESS:
        yield ok("episodes", f"none ended in the {played.longest:,} steps that there was time for")
        return
    if not lengths:
        yield Finding("episodes", "note", f"none ended in {played.steps:,} steps of random play: a return needs an end",
                      "Register it with max_episode_steps=1000, or wrap it in gymnasium.wrappers.TimeLimit")  # fmt: skip
        return
    text = f"{len(lengths)} ended after {min(lengths)} to {max(lengths)} steps (mean {np.mean(lengths):.0f}): "
    yield ok("episodes", text + f"{played.terminated} terminated, {played.truncated} truncated")
    tell("fact", {"length": float(np.mean(lengths))})
    if played.both:
        yield Finding("episodes", "note", f"{played.both} were terminated and truncated at once: they count as terminated",
                      "truncated is for ends that are not the task's own: the value after them is not 0")  # fmt: skip


def _seeds(env: Any, maker: Callable[[], Any]) -> Iterator[Finding]:
    """Compare episodes from one seed: of this environment, and of another one."""
    first = _episode(env, 7)
    again = _episode(env, 7)
    if not same(first[0], again[0]):
        yield Finding("seeds", "problem", "reset(seed) is ignored: the same seed shows another first observation",
                      "Call super().reset(seed=seed) in reset(), and draw from self.np_random")  # fmt: skip
        return
    if not same(first, again):
        step = next(i for i, (a, b) in enumerate(zip(first, again)) if not same(a, b))
        yield Finding("seeds", "problem", f"the same seed and actions part at step {step}: something is drawn from elsewhere",
                      "Draw from self.np_random alone, and set back in reset() all that an episode changes")  # fmt: skip
        return
    other = maker()
    try:
        if not same(first, _episode(other, 7)):
            yield Finding("seeds", "problem", "two environments with one seed differ: they hold something that reset() leaves",
                          "Make all of an episode in reset(): what __init__ draws is not seeded")  # fmt: skip
            return
    finally:
        other.close()
    fixed = all(same(first[0], _episode(env, seed, steps=0)[0]) for seed in (8, 9, 10))
    yield ok("seeds", "the same seed gives the same episode, in another environment too"
             + ("; every episode starts alike" if fixed else ""))  # fmt: skip


def _episode(env: Any, seed: int, steps: int = SEED_STEPS) -> list[Any]:
    """Return copies of what a seeded episode shows: the first observation, then (observation, reward, flags) of each step."""
    observation = env.reset(seed=seed)[0]
    seen, rng = [_copied(observation)], np.random.default_rng(seed)
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(legal_action(env.action_space, observation, rng))
        seen.append((_copied(observation), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return seen


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return tuple(map(_copied, value)) if isinstance(value, tuple) else np.array(value)


def _speed(env: Any, tell: Tell) -> Iterator[Finding]:
    rng, resets = np.random.default_rng(0), []
    observation, begin = env.reset(seed=1)[0], time.perf_counter()
    actions = [legal_action(env.action_space, None, rng) for _ in range(64)]
    masked, count, inside, before = legal.is_masked(env.observation_space), 0, 0.0, resident_mb(os.getpid())
    while count < 3 or (count < QUICK_STEPS and time.perf_counter() - begin < QUICK_SECONDS):
        action = legal_action(env.action_space, observation, rng) if masked else actions[count % 64]
        start = time.perf_counter()
        observation, _, terminated, truncated, _ = env.step(action)
        inside, count = inside + time.perf_counter() - start, count + 1
        if terminated or truncated:
            start = time.perf_counter()
            observation = env.reset()[0]
            resets.append(time.perf_counter() - start)
    step, grown = inside / count, resident_mb(os.getpid()) - before
    to_reset = f", {_time(float(np.mean(resets)))} a reset" if resets else ""
    yield ok("speed", f"{1 / step:,.0f} steps/s in one process: {_time(step)} a step{to_reset}")
    tell("fact", {"step_seconds": step})
    if grown > LEAK_MB and 1e6 * grown / count > LEAK_BYTES:
        yield Finding("memory", "note", f"grew by {grown:.0f} MB in {count:,} steps: {1e3 * grown / count:.2g} GB in a million",
                      "Look for a list that only grows; --env-processes 1 --env-max-mb 2000 replaces its process")  # fmt: skip
    else:
        yield ok("memory", f"does not grow in {count:,} steps")


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _closing(env: Any) -> Iterator[Finding]:
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or []
    if modes:
        yield ok("pictures", f"render modes {', '.join(modes)}: rookery watch and rookery video show it")
    else:
        yield Finding("pictures", "note", "it has no render mode, so it cannot be shown as itself",
                      "rookery watch RUN --view agent draws what the agent sees")  # fmt: skip
    try:
        env.close()
    except (Exception, SystemExit) as error:
        yield Finding("close", "note", f"close() raised {in_short(error)}", "It is called when a run ends, or rebuilds it")


def _placing(id: Any, maker: Callable[[], Any], options: dict[str, Any]) -> Iterator[Finding]:
    try:
        pack(maker, str(id))
        yield ok("processes", "it can be sent to worker processes")
    except CannotTravel as error:
        yield Finding("processes", "note", f"{error}: it is stepped in the process that trains",
                      "Open files, locks and sockets in __init__ or reset(), not outside of the class")  # fmt: skip
        return
    found = envs.chosen(id, 32, 1, **options)
    where = f"{found.processes} worker processes{' and this one' if found.here else ''}" if found.processes else "this process"
    yield ok("pool", f"32 of them are stepped one by one in {where}: {found.why}; resets come on the step after an end")


# -------------------------------------------------------------------------------------------------- any other pool


def _as_pool(id: Any, options: dict[str, Any], tell: Tell) -> Iterator[Finding]:
    begin = time.perf_counter()
    try:
        pool = envs.make(id, 4, **options)
    except envs.UnknownEnvironment:
        raise
    except (Exception, SystemExit) as error:
        yield Finding("made", "problem", f"it cannot be made: {in_short(error)}", MAKE)
        raise _Enough from error
    name = type(getattr(pool, "pool", pool)).__name__
    yield ok("made", f"in {1e3 * (time.perf_counter() - begin):.0f} ms: {name}")
    raw = pool.spec.raw or (pool.spec.observation, pool.spec.action)
    yield from _spaces(*raw, tell)
    tell("fact", {"pool": name})
    tell("doing", "random play")
    played = try_pool(pool, seconds=PLAY_SECONDS, steps=PLAY_STEPS)
    yield from _calls(played)
    if played.broken:
        raise _Enough
    yield from _answers(played, pool)
    yield from _episodes(played, tell)
    again = try_pool(pool, seconds=PLAY_SECONDS, steps=min(played.steps // 4, 64))
    if played.shown[: len(again.shown)] == again.shown:
        yield ok("seeds", "the same seed gives the same episodes")
    else:
        yield Finding("seeds", "problem", "reset(seed) and the same actions show something else the second time",
                      "A run on it cannot be repeated")  # fmt: skip
    tell("doing", "being timed")
    if again.seconds / max(1, again.steps) < FEW:  # else those that are there are enough to know
        pool.close()
        pool = envs.make(id, TOGETHER, **options)
        try_pool(pool, seconds=1.0, steps=2 * TOGETHER, judge=False)  # where it is compiled, that is over then
    yield from _pool_speed(pool, name, tell)
    pool.close()


def _pool_speed(pool: EnvPool, name: str, tell: Tell) -> Iterator[Finding]:
    timed = try_pool(pool, seconds=QUICK_SECONDS, steps=QUICK_STEPS, judge=False)
    step = timed.seconds / max(1, timed.steps)
    yield ok("speed", f"{1 / step:,.0f} steps/s of {pool.num_envs} together: {_time(step)} a step")
    tell("fact", {"step_seconds": step})
    ways = {"ToyPool": "as numpy arrays", "JaxPool": "by compiled programs", "AtariPool": "by ALE's own threads",
            "EnvpoolPool": "by EnvPool's own threads", "VectorisedPool": "as numpy arrays, by its own VectorEnv"}  # fmt: skip
    way = ways.get(name, "by a pool of its own")
    yield ok("pool", f"{name}: all are stepped at once, {way}; resets come on the step after an end")


def serve(id: Any, options: dict[str, Any], handle: int) -> None:
    """Examine, and write what is told to the file of that number."""
    with os.fdopen(handle, "w", buffering=1) as file:
        examine(id, options, lambda kind, what: print(json.dumps([kind, what]), file=file, flush=True))


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
