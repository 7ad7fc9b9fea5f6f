"""Demonstrations: episodes that somebody played well, and the stream of rows that a table makes of them (R2D3).

An episode reads as a Rollout does: row t saw observation[t], did action[t], was given reward[t] and discount[t], then saw
observation[t + 1]. All values are canonical (see rookery/spaces.py), as a pool gives and takes them. Episodes know the spaces
that they were played in, so that they are never mixed with others; files of them are written by rookery/run/demonstrations.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rookery import spaces
from rookery.data.chunks import INCARNATIONS
from rookery.trees import tree_leaves, tree_map
from rookery.types import Array, PyTree, Rollout, Spec


class Played(NamedTuple):
    """One episode of L steps."""

    observation: PyTree  # [L + 1, ...] the last one included
    action: PyTree  # [L, ...]
    reward: Array  # [L]
    discount: Array  # [L] 0 where the episode terminated; 1 to the end where it was cut


class Demonstrations(NamedTuple):
    episodes: tuple[Played, ...]
    spaces: dict[str, str]  # leaf -> its space, as `describe` gives them
    env: str
    digest: str  # SHA-256 of all that is in them

    @property
    def steps(self) -> int:
        return sum(len(episode.reward) for episode in self.episodes)

    @property
    def return_mean(self) -> float:
        return float(np.mean([episode.reward.sum() for episode in self.episodes]))


class WrongDemonstrations(ValueError):
    """Episodes that cannot be right, or that were played in other spaces; the message says where."""

    exit_code = 2


def describe(spec: Spec) -> dict[str, str]:
    """Describe every leaf of the spaces in words: what two environments must have in common to share experience."""
    found = {}
    for role, space in (("observation", spec.observation), ("action", spec.action)):
        for path, _, leaf in spaces.leaves(space):
            found[f"{role}.{path}" if path else role] = str(leaf)
    return found


def gather(episodes: Sequence[Played], spec: Spec) -> Demonstrations:
    """Check every episode against the spaces, and put them together."""
    if not episodes:
        raise WrongDemonstrations("there is no episode to demonstrate anything: give at least one")
    checked = tuple(_checked(episode, number, spec) for number, episode in enumerate(episodes))
    digest = hashlib.sha256(repr(sorted(describe(spec).items())).encode())
    for episode in checked:
        for leaf in tree_leaves(tuple(episode)):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
    return Demonstrations(checked, describe(spec), spec.id, digest.hexdigest())


def _checked(episode: Played, number: int, spec: Spec) -> Played:
    length = len(np.asarray(episode.reward))
    if not length:
        raise WrongDemonstrations(f"episode {number} has no step: leave it out")

    def check(role: str, zero: np.ndarray, rows: Array) -> np.ndarray:
        rows = np.asarray(rows)
        if rows.shape != zero.shape:
            raise WrongDemonstrations(
                f"episode {number}: {role} has the shape {rows.shape}, and {length} steps need {zero.shape}"
            )
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise WrongDemonstrations(f"episode {number}: {role} is not finite at step {np.argwhere(~np.isfinite(rows))[0][0]}")
        return np.ascontiguousarray(rows.astype(zero.dtype))

    try:
        observation = tree_map(lambda z, x: check("observation", z, x), spaces.zeros(spec.observation, (length + 1,)),
                               episode.observation)  # fmt: skip
        action = tree_map(lambda z, x: check("action", z, x), spaces.zeros(spec.action, (length,)), episode.action)
    except (KeyError, IndexError, TypeError) as error:
        leaves = ", ".join(describe(spec))
        raise WrongDemonstrations(f"episode {number} does not have the leaves {leaves}: {error!r}") from None
    zero = np.zeros(length, np.float32)
    reward, discount = check("reward", zero, episode.reward), check("discount", zero, episode.discount)
    if (discount < 0).any() or (discount > 1).any():
        raise WrongDemonstrations(
            f"episode {number}: discount is between 0 (terminated) and 1, not {discount.min():g} to {discount.max():g}"
        )
    return Played(observation, action, reward, discount)


def check_spaces(demonstrations: Demonstrations, spec: Spec) -> None:
    """Refuse demonstrations of other spaces than these, with the leaves that differ."""
    theirs, mine = demonstrations.spaces, describe(spec)
    if theirs == mine:
        return
    names = [name for name in dict.fromkeys([*mine, *theirs]) if theirs.get(name) != mine.get(name)]
    differ = "; ".join(f"{name} is {theirs.get(name, 'absent')} there and {mine.get(name, 'absent')} here" for name in names)
    raise WrongDemonstrations(
        f"the demonstrations were played in {demonstrations.env or 'an environment'} and do not fit {spec.id or 'this one'}: "
        f"{differ}. Record them with the same environment and options."
    )


def row_count(demonstrations: Demonstrations, *, length: int, ahead: int) -> int:
    """Count the rows that `rollouts` yields: whole rollouts of `length`, and enough after the last for what looks `ahead`."""
    own = demonstrations.steps + len(demonstrations.episodes)
    return (-(-own // length) + -(-ahead // length)) * length


def rollouts(
    demonstrations: Demonstrations, *, length: int, ahead: int, previous: bool, memory: PyTree, slot: int
) -> Iterator[Rollout]:
    """Yield all episodes as one environment's stream, repeated until every window that starts in them is complete.

    previous: observations hold the previous action and reward, as `Needs.previous` says. memory: [1, ...] recurrent
    state that every rollout starts from, whichever its first row: burn-in brings it up to date. slot: of their stream.
    """
    episodes = demonstrations.episodes
    join = lambda *parts: np.concatenate(parts)
    after = lambda x, fill: join(x, np.full((1, *x.shape[1:]), fill, x.dtype))  # the row that leads to the next episode
    observation = tree_map(join, *(episode.observation for episode in episodes))
    action = tree_map(join, *(tree_map(lambda x: after(x, 0), episode.action) for episode in episodes))
    reward = join(*(after(episode.reward, 0) for episode in episodes))
    discount = join(*(after(episode.discount, 1) for episode in episodes))
    valid = join(*(after(np.ones_like(episode.reward), 0) for episode in episodes))
    if previous:
        before = lambda x: np.roll(x, 1, axis=0)  # zero at an episode's first, as the row that leads to it is
        observation = {
            "observation": observation,
            "previous_action": tree_map(before, action),
            "previous_reward": before(reward),
        }
    cut = lambda tree, at: tree_map(lambda x: x[at][:, None], tree)
    for step in range(0, row_count(demonstrations, length=length, ahead=ahead), length):
        at = (step + np.arange(length + 1)) % len(reward)
        yield Rollout(
            observation=cut(observation, at), action=cut(action, at[:-1]), reward=cut(reward, at[:-1]),
            discount=cut(discount, at[:-1]), valid=cut(valid, at[:-1]), extras={}, memory=memory,
            version=np.full((length, 1), -1, np.int32), stream=np.array([slot * INCARNATIONS], np.int64),
            step=np.array([step], np.int64),
        )  # fmt: skip
