"""Step any Gymnasium environment in this process, one after the other.

Observations are written into two alternating sets of preallocated arrays per group, so an answer stays whole
until the one after the next is received, and an environment that reuses its own buffers does no harm. The step
that follows the end of an episode resets the environment here; no Gymnasium vector class is involved.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from rookery import spaces
from rookery.envs.gym_envs import AnswerRows, Broken, Failure, GymEnvs, MakeEnv, each
from rookery.envs.pools import stalls
from rookery.envs.pools.pool import (
    EnvironmentFailed,
    OnNan,
    PendingActions,
    Tally,
    derive_seed,
    env_ids,
    group_of,
    join,
    not_finite_kind,
    split,
)  # fmt: skip
from rookery.trees import tree_map
from rookery.types import Episode, PyTree, TimeStep


class SerialPool:
    """`make_env()` gives a gymnasium.Env; one is made per slot."""

    stack_axis: int | None = None

    def __init__(
        self, make_env: MakeEnv, num_envs: int, *, id: str, seed: int = 0, groups: int = 1, on_nan: OnNan = "stop"
    ) -> None:
        self._on_nan: OnNan = on_nan
        self.id, self.num_envs, self.groups = id, num_envs, split(num_envs, groups)
        try:
            self._gym_envs = GymEnvs(make_env, range(num_envs), num_envs, name=id, clip=on_nan == "clip")
        except Broken as broken:
            raise EnvironmentFailed(f"{id!r}: {broken}", 0) from broken
        stalls.watch(self._gym_envs)
        self._seed = seed
        self.spec = spaces.spec_of(self._gym_envs.observation, self._gym_envs.action, id)
        self._ids = [env_ids(group) for group in self.groups]
        self._encode = [spaces.action_encoder(self._gym_envs.action, len(ids)) for ids in self._ids]
        self._box, self._tally = PendingActions(groups), Tally(self.groups)
        self._answers = [tuple(self._allocate(group) for _ in range(2)) for group in self.groups]
        self._turn = [0] * groups  # which of the two answers was given last
        self._todo: list[list[int]] = [[] for _ in self.groups]  # environments that recv() still has to step
        self._failed: list[dict[int, Failure]] = [{} for _ in self.groups]  # and those that wait to be rebuilt

    def reset(self, seed: int | None = None) -> TimeStep:
        """Reset all environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._seed = self._seed if seed is None else seed
        self._tally.start_all()
        self._box.clear_all()
        self._turn = [0] * len(self.groups)
        for group, ids in enumerate(self._ids):
            self._todo[group], self._failed[group] = [], {}
            for env in ids.tolist():
                self._gym_envs.reseed(env, 0, derive_seed(self._seed, env, 0))
            failures = self._gym_envs.advance(ids.tolist(), [None] * len(ids), self._answers[group][0])
            self._tell_notes()
            if failures:
                raise self._failed_by(failures[0]) from failures[0].error
        return self._everything()

    def send(self, action: PyTree, group: int = 0) -> None:
        """Keep the actions and return at once: the environments are stepped by `recv`."""
        self._box.put(tree_map(np.copy, self._encode[group](action)), group)  # it may be the caller's own array
        self._turn[group] ^= 1
        self._todo[group] = self._ids[group].tolist()

    def recv(self, group: int = 0) -> TimeStep:
        """Step what is left to step. After a failure and a `rebuild`, only the rebuilt one is."""
        action, start = self._box.peek(group), self.groups[group].start
        answer, todo, failed = self._answers[group][self._turn[group]], self._todo[group], self._failed[group]
        if todo:
            self._todo[group] = []
            failures = self._gym_envs.advance(todo, each(action, [env - start for env in todo]), answer)
            failed |= {failure.env_id: failure for failure in failures}
            self._tell_notes()
        for failure in failed.values():
            raise self._failed_by(failure) from failure.error
        self._tally.add(group, answer.reward, answer.terminated | answer.truncated)
        self._box.clear(group)
        return self._shown(group)

    @property
    def clipped(self) -> int:
        """Count the answers whose numbers were made finite."""
        return self._gym_envs.clipped

    def _failed_by(self, failure: Failure) -> EnvironmentFailed:
        kind = not_finite_kind(self._on_nan) if failure.kind == "not finite" else failure.kind
        return EnvironmentFailed(failure.message, failure.env_id, kind=kind)

    def rebuild(self, env_id: int) -> None:
        group = group_of(self.groups, env_id)
        self._tally.abort(env_id)
        incarnation = self._gym_envs.incarnation[env_id] + 1
        try:
            self._gym_envs.rebuild(env_id, incarnation, derive_seed(self._seed, env_id, incarnation))
        except (Exception, SystemExit) as error:
            said = str(error) if isinstance(error, Broken) else repr(error)
            raise EnvironmentFailed(f"{self._gym_envs.place(env_id)}: it cannot be made: {said}", env_id) from error
        if self._failed[group].pop(env_id, None) is not None:
            self._todo[group] = sorted([*self._todo[group], env_id])

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    def snapshot(self) -> PyTree | None:
        """Save all environments; None unless every one has `get_state()` and `set_state(state)`: see GymEnvs.snapshot."""
        self._box.require_idle("snapshot()")
        saved = self._gym_envs.snapshot()
        if saved is None:
            return None
        last = dict(zip(TimeStep._fields, self._everything()))
        return saved | {"last": last, "seed": np.array(self._seed, np.int64), "tally": self._tally.snapshot()}

    def restore(self, snapshot: PyTree) -> TimeStep:
        if len(snapshot["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot has {len(snapshot['envs'])} environments, this pool {self.num_envs}")
        self._gym_envs.restore(snapshot)
        self._seed = int(snapshot["seed"])
        self._tally.restore(snapshot["tally"])
        self._box.clear_all()
        for group, ids in enumerate(self.groups):
            part = spaces.take(tuple(snapshot["last"][name] for name in TimeStep._fields[1:]), ids)
            tree_map(np.copyto, tuple(self._shown(group))[1:], part)
        return self._everything()

    def render(self) -> Any:
        """Return the picture or the text that the first environment draws of itself."""
        return self._gym_envs.envs[0].render()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the environment says of its drawing: `render_modes`, `render_fps`."""
        return dict(getattr(self._gym_envs.envs[0], "metadata", None) or {})

    def close(self) -> None:
        self._gym_envs.close()

    def _allocate(self, group: slice) -> AnswerRows:
        size = group.stop - group.start
        tree = spaces.zeros(self._gym_envs.observation, (size,))
        flags = [np.zeros(size, bool) for _ in range(3)]
        return AnswerRows(self._gym_envs.observation, tree, np.zeros(size, np.float32), *flags, start=group.start)

    def _shown(self, group: int) -> TimeStep:
        a = self._answers[group][self._turn[group]]
        return TimeStep(self._ids[group], a.observation, a.reward, a.terminated, a.truncated, a.first)

    def _everything(self) -> TimeStep:
        """Return the last answers of all groups, copied."""
        return join([self._shown(group) for group in range(len(self.groups))])

    def _tell_notes(self) -> None:
        while self._gym_envs.notes:
            warnings.warn(self._gym_envs.notes.pop(0), stacklevel=3)
