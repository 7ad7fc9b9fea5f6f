"""Make, reset, step and check the Gymnasium environments of one process, into arrays that are given.

Who owns the arrays, and whether another process reads them, GymEnvs does not know: `pools/serial.SerialPool` gives it arrays
of its own, `processes/step_server.StepServer` those in shared memory.

An environment that raises, or answers what its spaces do not allow, does not stop the others: `advance` steps all that
it was asked to and returns the failures.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces as gs

from rookery import spaces
from rookery.envs.pools.pool import Kind, clipped, not_finite
from rookery.types import PyTree

MakeEnv = Callable[[], gymnasium.Env]
BOUND_CHECKS = 256  # calls of `advance` that look at the bounds of boxes: a wrong bound shows at once or hardly matters


class Failure(NamedTuple):
    env_id: int
    message: str
    error: BaseException | None = None
    kind: Kind = "failed"

    def report(self) -> str:
        """Return the message, and the traceback of what the environment raised."""
        if self.error is None:
            return self.message
        return f"{self.message}\n{''.join(traceback.format_exception(self.error)).rstrip()}"


class Broken(Exception):
    """An environment broke the contract of Gymnasium; the cause is what the environment raised, if it did."""


class GymEnvs:
    """The environments `ids` of a pool of `num_envs`, by their number in the pool."""

    def __init__(self, make_env: MakeEnv, ids: Iterable[int], num_envs: int, *, name: str, clip: bool = False) -> None:
        """clip: numbers that are not finite are replaced, and counted, instead of being failures."""
        self.name, self.ids, self._make, self._clip = name, list(ids), make_env, clip
        self.clipped = 0  # answers
        self.envs: list[Any] = [None] * num_envs
        self.incarnation = [0] * num_envs
        self.steps: Any = [0] * num_envs  # within the episode
        self._ended = [True] * num_envs  # the next answer is a first one
        self._reseed: list[int | None] = [None] * num_envs
        self._checked: list[tuple[Any, Any]] = [(None, None)] * num_envs  # spaces known to be right
        self.notes: list[str] = []  # what the user should be told, once each
        self._noted: set[str] = set()
        self._bound_checks = BOUND_CHECKS
        self.now: Any = [-1]  # in its first place, which one is being stepped: whoever watches knows which one hangs
        self.busy, self.calls = False, 0  # in a call of `advance`, and the how-manieth: see stalls
        for env in self.ids:
            self.envs[env] = make_env()
        first = self.envs[self.ids[0]]
        if not hasattr(first, "observation_space") or not hasattr(first, "action_space"):
            raise ValueError(
                f"{name!r} makes a {type(first).__name__}: a gymnasium.Env is expected, with its two spaces"
            )
        self.observation, self.action = first.observation_space, first.action_space
        spaces.check(self.observation, "observation")
        spaces.check(self.action, "action")
        for env in self.ids:
            self._check_spaces(env)

    def reseed(self, env: int, incarnation: int, seed: int) -> None:
        """Let the next answer of an environment be the first of an episode, from this seed."""
        self.incarnation[env], self._reseed[env], self._ended[env] = incarnation, seed, True

    def rebuild(self, env: int, incarnation: int, seed: int) -> None:
        """Make a fresh environment in place of a broken one."""
        with suppress(Exception, SystemExit):  # it may be broken: that is why it is replaced
            self.envs[env].close()
        self.reseed(env, incarnation, seed)
        self.steps[env] = 0
        self.envs[env] = self._make()
        self._check_spaces(env)

    def advance(self, ids: Sequence[int], actions: Iterable[Any], answer: AnswerRows) -> list[Failure]:
        """Step each environment, or reset it where that is due; `actions`: one per id, ignored where a reset is due."""
        self.calls, self.busy = self.calls + 1, True
        try:
            return self._advance(ids, actions, answer)
        finally:
            self.busy = False

    def doing(self, env: int) -> str:
        """Return what an environment is being asked to do."""
        return "reset()" if self._ended[env] else "step()"

    # ------------------------------------------------------------------------------------------ one environment

    def _advance(self, ids: Sequence[int], actions: Iterable[Any], answer: AnswerRows) -> list[Failure]:
        failures, start, ended, now = [], answer.start, self._ended, self.now
        rows = slice(ids[0] - start, ids[-1] + 1 - start)
        if len(ids) != rows.stop - rows.start:
            rows = np.asarray(ids) - start  # type: ignore[assignment]
        answer.terminated[rows] = answer.truncated[rows] = answer.first[rows] = False
        plain, rewards, steps, envs = answer.plain, answer.reward, self.steps, self.envs
        for env, action in zip(ids, actions):
            now[0] = env
            try:
                if ended[env]:
                    self._start(env, answer)
                    continue
                steps[env] += 1
                try:
                    answered = envs[env].step(action)
                except (Exception, SystemExit) as error:
                    raise Broken(f"step({action}) raised {error!r}") from error
                if plain is not None and type(answered) is tuple and len(answered) == 5:
                    observation, reward, terminated, truncated, _ = answered  # what nearly every step answers, done quickly
                    if (type(observation) is np.ndarray and observation.dtype == plain.declared and isinstance(reward, float)
                            and observation.shape == plain.shape and terminated is False and truncated is False):  # fmt: skip
                        plain.buffer[env - start], rewards[env - start] = observation, reward
                        continue
                self._take(env, action, answered, answer)
            except Broken as broken:
                failures.append(Failure(env, f"{self.place(env)}: {broken}", broken.__cause__))
        self._judge(ids, rows, actions, answer, failures)
        return failures

    def _start(self, env: int, answer: AnswerRows) -> None:
        try:
            answered = self.envs[env].reset(seed=self._reseed[env])
        except (Exception, SystemExit) as error:
            raise Broken(f"reset() raised {error!r}") from error
        if not isinstance(answered, tuple) or len(answered) != 2:
            raise Broken(f"reset() returned {_short(answered)}, but (observation, info) is expected")
        observation = answered[0]
        self._check_spaces(env)
        self._reseed[env], self._ended[env], self.steps[env] = None, False, 0
        row = env - answer.start
        self._write(row, observation, answer)
        answer.reward[row], answer.first[row] = 0.0, True

    def _take(self, env: int, action: Any, answered: Any, answer: AnswerRows) -> None:
        """Write any answer to a step, or raise Broken where it is not what the spaces allow."""
        try:
            observation, reward, terminated, truncated, _ = answered
        except (TypeError, ValueError):
            expected = "(observation, reward, terminated, truncated, info) is expected"
            raise Broken(f"step({action}) returned {_short(answered)}, but {expected}") from None
        row = env - answer.start
        self._write(row, observation, answer)
        number: Any = None if isinstance(reward, (str, bytes, bytearray)) else reward  # float() takes "7"
        try:
            answer.reward[row] = float(number)
        except (TypeError, ValueError):
            raise Broken(f"reward {_short(reward)} after action {action}: a number is expected") from None
        if terminated is False and truncated is False:
            return
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if flag is None or np.ndim(flag) != 0 or flag not in (0, 1):
                raise Broken(f"{name} {_short(flag)} after action {action}: True or False is expected")
        if terminated or truncated:
            answer.terminated[row], answer.truncated[row] = terminated, truncated
            self._ended[env] = True

    def _write(self, row: int, observation: PyTree, answer: AnswerRows) -> None:
        for leaf in answer.leaves:
            value = observation
            if leaf.keys:
                try:
                    for key in leaf.keys:
                        value = value[key]
                except (KeyError, IndexError, TypeError):
                    raise Broken(f"observation has no leaf {leaf.name!r}") from None
            if leaf.plain and type(value) is np.ndarray and value.dtype == leaf.declared and value.shape == leaf.shape:
                leaf.buffer[row] = value
            else:
                leaf.buffer[row] = self._converted(leaf, value)

    def _converted(self, leaf: LeafBuffer, value: Any) -> Any:
        """Check and convert a value that is not plain: not an array of the declared type, or one with a range of its own."""
        array = np.asarray(value)
        if array.shape != leaf.shape or not np.can_cast(array.dtype, leaf.buffer.dtype, "same_kind"):
            got = f"shape {array.shape} of {array.dtype}"
            raise Broken(f"{leaf.name} has {got}, but its space promises {leaf.shape} of {leaf.declared}")
        if array.dtype.name == "float64" and leaf.declared.name == "float32":
            self._note(f"{self.name!r}: {leaf.name} is float64 although its space says float32; cast")
        if leaf.limit is not None:
            array = array - leaf.begin
            if (array < 0).any() or (array >= leaf.limit).any():
                raise Broken(f"{leaf.name} = {value} is outside its space {leaf.space}")
        return spaces.saturate(leaf.space, array) if leaf.narrowed else array

    def _judge(
        self, ids: Sequence[int], rows: Any, actions: Iterable[Any], answer: AnswerRows, failures: list[Failure]
    ) -> None:
        """Check all rows at once for numbers that are not finite, and for values outside of their box."""
        broken = {failure.env_id for failure in failures}
        for name, buffer in answer.floats:
            for index in not_finite(buffer[rows]):
                env = ids[index]
                if self._clip:
                    self._make_finite(env, name, answer)
                    continue
                if env not in broken:
                    broken.add(env)
                    action = next(action for i, action in zip(ids, actions) if i == env)
                    where = _not_finite_at(buffer[env - answer.start])
                    message = f"{self.place(env)}: {name} is not finite{where} after action {action}"
                    failures.append(Failure(env, message, kind="not finite"))
        if self._bound_checks and not broken:
            self._bound_checks -= 1
            for leaf in answer.bounded:
                block = leaf.buffer[rows]
                if (block < leaf.low).any() or (block > leaf.high).any():
                    self._note(
                        f"{self.name!r}: {leaf.name} has values from {block.min():.6g} to {block.max():.6g}, outside of its "
                        f"space {_short(leaf.space)}; they are used as they are"
                    )

    def _make_finite(self, env: int, name: str, answer: AnswerRows) -> None:
        row = env - answer.start
        self.clipped += 1
        self._note(f"{self.name!r}: {name} is not finite; it is made so (--on-nan clip)")
        leaf = next((leaf for leaf in answer.leaves if leaf.name == name), None)
        if leaf is None:
            answer.reward[row] = clipped(answer.reward[row])
        else:
            leaf.buffer[row] = clipped(leaf.buffer[row], leaf.space.low, leaf.space.high)

    def _check_spaces(self, env: int) -> None:
        """Compare the spaces with those of the pool when they are new objects: mostly they are not, and comparing is dear."""
        mine = (self.envs[env].observation_space, self.envs[env].action_space)
        if all(a is b for a, b in zip(mine, self._checked[env])):
            return
        for role, given, promised in zip(("observation", "action"), mine, (self.observation, self.action)):
            if given != promised:
                raise Broken(f"its {role} space is {_short(given)}, but the pool was made for {_short(promised)}")
        self._checked[env] = mine

    def place(self, env: int) -> str:
        """Name an environment, its incarnation and its step, for messages."""
        return f"{self.name!r}, environment {env} (incarnation {self.incarnation[env]}), step {self.steps[env]}"

    def _note(self, text: str) -> None:
        if note_key(text) not in self._noted:
            self._noted.add(note_key(text))
            self.notes.append(text)

    # ------------------------------------------------------------------------------------------- all of them

    def snapshot(self) -> dict[str, Any] | None:
        """Save every environment; None unless all have `get_state()` (a tree of arrays) and `set_state(state)`.

        Only the outermost object is asked: what a wrapper such as TimeLimit counts must be in the state too.
        """
        mine = [self.envs[env] for env in self.ids]
        if not all(hasattr(env, "get_state") and hasattr(env, "set_state") for env in mine):
            return None
        return {
            "envs": tuple(env.get_state() for env in mine),
            "ended": np.array([self._ended[env] for env in self.ids]),
            "reseed": np.array([-1 if (s := self._reseed[env]) is None else s for env in self.ids], np.int64),
            "incarnation": np.array([self.incarnation[env] for env in self.ids], np.int64),
            "steps": np.array([self.steps[env] for env in self.ids], np.int64),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        for index, env in enumerate(self.ids):
            self.envs[env].reset()  # a new environment may refuse to step before its first reset
            self.envs[env].set_state(saved["envs"][index])
            self._ended[env], self.steps[env] = bool(saved["ended"][index]), int(saved["steps"][index])
            seed = int(saved["reseed"][index])
            self._reseed[env] = None if seed < 0 else seed
            self.incarnation[env] = int(saved["incarnation"][index])

    def close(self) -> None:
        for env in self.ids:
            self.envs[env].close()


# ------------------------------------------------------------------------------------------------- the arrays


@dataclass(frozen=True, eq=False)
class LeafBuffer:
    name: str
    keys: tuple[Any, ...]  # how to reach it in an observation
    shape: tuple[int, ...]
    space: Any
    declared: np.dtype[Any]
    narrowed: bool  # 64-bit integers, stored in 32
    begin: Any
    limit: Any  # of Discrete and MultiDiscrete, else None
    plain: bool  # an array of the declared type can be stored as it is
    low: Any  # of a Box of floats with a bound, else None
    high: Any
    buffer: np.ndarray  # [B, *shape]


class AnswerRows:
    """The arrays of some environments: row 0 belongs to the environment `start`."""

    def __init__(
        self,
        observation: gs.Space,
        tree: PyTree,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        first: np.ndarray,
        *,
        start: int,
    ) -> None:
        self.start, self.observation, self.reward = start, tree, reward
        self.terminated, self.truncated, self.first = terminated, truncated, first
        self.leaves = [_leaf(path, keys, space, tree) for path, keys, space in spaces.leaves(observation)]
        only = self.leaves[0] if len(self.leaves) == 1 and not self.leaves[0].keys else None
        self.plain = only if only is not None and only.plain else None  # an observation that is one array, stored as it is
        self.bounded = [leaf for leaf in self.leaves if leaf.low is not None]
        named = [(leaf.name, leaf.buffer) for leaf in self.leaves]
        self.floats = [(name, b) for name, b in [*named, ("reward", reward)] if b.dtype.kind == "f"]


def _leaf(path: str, keys: tuple[Any, ...], space: Any, tree: PyTree) -> LeafBuffer:
    for key in keys:
        tree = tree[key]
    limit = space.n if isinstance(space, gs.Discrete) else space.nvec if isinstance(space, gs.MultiDiscrete) else None
    begin = space.start if isinstance(space, (gs.Discrete, gs.MultiDiscrete)) else 0
    declared = np.dtype(space.dtype)
    narrowed = isinstance(space, gs.Box) and declared.kind in "iu" and declared != tree.dtype
    bounded = isinstance(space, gs.Box) and declared.kind == "f" and (space.bounded_below | space.bounded_above).any()
    slack = 1e-5 if bounded else 0.0  # a bound of 1 is met by 1.0000001
    with np.errstate(over="ignore"):
        low = (space.low - slack * np.maximum(1, np.abs(space.low))).astype(np.float32) if bounded else None
        high = (space.high + slack * np.maximum(1, np.abs(space.high))).astype(np.float32) if bounded else None
    return LeafBuffer(
        path or "observation", keys, tree.shape[1:], space, declared, narrowed, begin, limit,
        plain=limit is None and not narrowed, low=low, high=high, buffer=tree,
    )  # fmt: skip


def each(action: PyTree, rows: Sequence[int]) -> list[Any]:
    """Return the actions of some rows, one by one, as `sample()` gives them: choices as scalars, a Box of no axes as array."""
    if isinstance(action, np.ndarray):
        if action.ndim == 1 and action.dtype.kind == "f":
            return [action[row, ...] for row in rows]
        return list(action) if len(rows) == len(action) else [action[row] for row in rows]
    return [spaces.take(action, row) for row in rows]


def _not_finite_at(value: Any) -> str:
    where = np.argwhere(~np.isfinite(value))
    return f" at index {tuple(where[0].tolist())}" if where.size and np.ndim(value) else ""


def note_key(text: str) -> str:
    """Return what makes two notes the same, whatever values were seen."""
    return text.partition(" has values")[0]


def shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _short(value: Any) -> str:
    return shorten(repr(value))
