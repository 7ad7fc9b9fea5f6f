"""Environments written in JAX behind `EnvPool`, for collectors on the host: one compiled call steps a group.

`send` dispatches that call and returns; `recv` waits for its arrays and hands them over without a copy. Each environment
has a key of its own, made of (seed, env id, incarnation), and folds its count of steps into it: what it does depends neither
on the groups nor on its neighbours, and a snapshot is the arrays of the state.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import spaces
from rookery.envs.jax.env import JaxEnv
from rookery.envs.jax.slots import SlotAnswer, Slots, compiled, from_host, slot_seeds, to_host
from rookery.envs.pools.pool import (
    EnvironmentFailed,
    OnNan,
    PendingActions,
    Tally,
    clip_step,
    env_ids,
    find_not_finite,
    group_of,
    join,
    not_finite_kind,
    split,
)
from rookery.types import Array, Episode, PyTree, TimeStep


class JaxPool:
    """Many copies of one environment, which must have been built once and for all (`sources.build`)."""

    stack_axis: int | None = None
    on_nan: OnNan = "stop"
    clipped = 0  # answers whose numbers were made finite

    def __init__(self, env: JaxEnv, num_envs: int, *, seed: int = 0, groups: int = 1) -> None:
        self.spec, self.id, self.num_envs, self.groups = env.spec, env.spec.id, num_envs, split(num_envs, groups)
        self._programs = compiled(env.reset, env.step)
        self._seed, self._incarnation = seed, np.zeros(num_envs, np.int64)
        self._ids = [env_ids(group) for group in self.groups]
        self._encode = [spaces.action_encoder(self.spec.action, len(ids)) for ids in self._ids]
        self._leaves = [(path or "observation", keys) for path, keys, _ in spaces.leaves(self.spec.observation)]
        self._box, self._tally = PendingActions(groups), Tally(self.groups)
        self._slots: list[Slots] = []
        self._coming: list[tuple[Slots, SlotAnswer]] = []  # of each group, what its next recv gives
        self._fresh = np.zeros(num_envs, bool)  # rebuilt, to be reset by the next recv
        self._last: list[TimeStep] = []

    def reset(self, seed: int | None = None) -> TimeStep:
        """Reset all environments, each seeded from (seed, env id); without a seed, that of the constructor."""
        self._seed = self._seed if seed is None else seed
        self._incarnation[:], self._fresh[:] = 0, False
        self._coming = [self._programs.start(self._seeds(group)) for group in self.groups]
        self._slots = [slots for slots, _ in self._coming]
        self._last = [self._on_host(group, answer) for group, (_, answer) in enumerate(self._coming)]
        self._tally.start_all()
        self._box.clear_all()
        return join(self._last)

    def send(self, action: PyTree, group: int = 0) -> None:
        """Dispatch a step and return at once. The action is copied: jax may otherwise read the caller's array later."""
        action = jax.tree.map(jnp.array, self._encode[group](action))
        self._box.put(action, group)
        self._coming[group] = self._programs.advance(self._slots[group], action)

    def recv(self, group: int = 0) -> TimeStep:
        action, part = self._box.peek(group), self.groups[group]
        if self._fresh[part].any():
            self._coming[group] = self._programs.restart(*self._coming[group], self._fresh[part], self._seeds(part))
            self._fresh[part] = False
        slots, answer = self._coming[group]
        step = self._on_host(group, answer)
        step = self._check_finite(step, action, slots)
        self._slots[group], self._last[group] = slots, step
        self._tally.add(group, step.reward, step.terminated | step.truncated)
        self._box.clear(group)
        return step

    def rebuild(self, env_id: int) -> None:
        """Start a fresh episode with a new key in that slot; there is nothing else that could be broken."""
        group_of(self.groups, env_id)
        self._tally.abort(env_id)
        self._incarnation[env_id] += 1
        self._fresh[env_id] = True

    def take_episodes(self) -> list[Episode]:
        return self._tally.take()

    def snapshot(self) -> PyTree | None:
        self._box.require_idle("snapshot()")
        parts = [[to_host(leaf) for leaf in jax.tree.leaves(slots)] for slots in self._slots]
        return {
            "slots": tuple(np.concatenate(leaves) for leaves in zip(*parts)),
            "last": dict(zip(TimeStep._fields, join(self._last))),
            "fresh": self._fresh.copy(),
            "incarnation": self._incarnation.copy(),
            "seed": np.array(self._seed),
            "tally": self._tally.snapshot(),
        }

    def restore(self, snapshot: PyTree) -> TimeStep:
        """Continue bit for bit; the number of groups may differ from that of the pool that was saved."""
        saved = len(snapshot["fresh"])
        if saved != self.num_envs:
            raise ValueError(f"the snapshot has {saved} environments, this pool {self.num_envs}")
        if not self._slots:
            self.reset()  # for the structure of the state
        self._slots = [self._from_host(part, snapshot["slots"]) for part in self.groups]
        last = tuple(snapshot["last"][name] for name in TimeStep._fields)
        self._last = [TimeStep(*spaces.take(last, part)) for part in self.groups]
        self._fresh, self._incarnation = np.array(snapshot["fresh"]), np.array(snapshot["incarnation"])
        self._seed = int(snapshot["seed"])
        self._tally.restore(snapshot["tally"])
        self._box.clear_all()
        return join(self._last)

    def close(self) -> None:
        self._slots, self._coming = [], []

    def _seeds(self, part: slice) -> Array:
        """Derive the seeds, [B] uint32."""
        return slot_seeds(self._seed, range(part.start, part.stop), self._incarnation[part].tolist())

    def _on_host(self, group: int, answer: SlotAnswer) -> TimeStep:
        return TimeStep(self._ids[group], *jax.tree.map(np.asarray, tuple(answer)))

    def _from_host(self, part: slice, saved: Any) -> Slots:
        leaves, structure = jax.tree.flatten(self._slots[0])
        shapes = [to_host(leaf).shape[1:] for leaf in leaves]
        if [np.shape(leaf)[1:] for leaf in saved] != shapes:
            raise ValueError(f"the snapshot is not one of {self.id!r} with these options: its state has other shapes")
        return jax.tree.unflatten(structure, [from_host(value[part], leaf) for value, leaf in zip(saved, leaves)])

    def _check_finite(self, step: TimeStep, action: PyTree, slots: Slots) -> TimeStep:
        if (found := find_not_finite(step, self._leaves)) is not None:
            if self.on_nan == "clip":
                step, rows = clip_step(step, self.spec.observation)
                self.clipped += rows
                return step
            name, row = found
            env = int(step.env_ids[row])
            place = f"{self.id!r}, environment {env} (incarnation {self._incarnation[env]})"
            tried = jax.tree.map(lambda x: np.asarray(x[row]).tolist(), action)
            message = f"{place}, after {int(slots.count[row])} steps: {name} is not finite after action {tried}"
            raise EnvironmentFailed(message, env, kind=not_finite_kind(self.on_nan))
        return step
