"""The Learner: holds the train state and turns batches into updates.

An update that is not finite is never kept, so it can never be published: the state stays as it was and `NonFinite` says
what was not a number.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.data import arrays
from rookery.types import BATCH_MAJOR, Agent, Array, Batch, PyTree, Report, Rollout, TrainState
from rookery.workers.flat import from_flat, path_name, to_flat


class NonFinite(ArithmeticError):
    """A loss, a gradient or a parameter became NaN or infinite; the update was not applied."""


class Update(NamedTuple):
    """What came of a batch."""

    version: int  # updates applied so far: the version of `params`
    params: PyTree  # never donated: may be held and published
    report: dict[str, float]
    priorities: np.ndarray | None
    trained_steps: int
    lag_mean: float  # in updates, over the valid rows
    lag_max: int
    busy_seconds: float
    idle_seconds: float  # from the end of the update before to the start of this one


class Learner:
    def __init__(self, agent: Agent, *, seed: int, snapshot: PyTree | None = None) -> None:
        self._agent = agent
        self._key = ops.random.key(seed)
        self._state: TrainState = jax.jit(agent.init)(jax.random.fold_in(self._key, 0))
        self.version = 0
        if snapshot is not None:
            self._state = from_flat(self._state, snapshot["state"])
            self.version = int(snapshot["version"])
        self._learn = jax.jit(self._guarded, donate_argnums=(1, 2))
        self._ended = time.perf_counter()

    @property
    def params(self) -> PyTree:
        return self._state.params

    def published(self) -> tuple[PyTree, int]:
        return self._state.params, self.version

    def warm_up(self, specs: Rollout) -> None:
        """Compiles `learn` on zeros, and forgets the result; done while collectors fill the first batch."""
        rollout = arrays.allocate(specs)
        batch = Batch(rollout, np.ones(rollout.reward.shape[1], np.float32), ())
        copied = jax.tree.map(jnp.copy, tuple(self._state))
        jax.block_until_ready(self._learn(*copied, device_part(batch), self._key, np.uint32(0)))
        self._ended = time.perf_counter()

    def learn(self, batch: Batch) -> Update:
        """One update, from start to ready: when this returns, nothing reads the batch any more."""
        begin = time.perf_counter()
        params, slow, optimizer, updates = self._state
        counter = np.uint32(self.version + 1)
        seen = device_part(batch)
        self._state, report, priorities, finite = self._learn(params, slow, optimizer, updates, seen, self._key, counter)
        lag_mean, lag_max = _lag(batch, self.version)
        trained = int(batch.rollout.valid.sum())
        finite = np.asarray(finite)  # waits for the update
        report = {name: float(value) for name, value in jax.device_get(report).items()}
        if not finite.all():
            raise NonFinite(self._culprit(batch, report, finite))
        self.version += 1
        end = time.perf_counter()
        idle, self._ended = begin - self._ended, end
        return Update(
            self.version, self._state.params, report, priorities, trained, lag_mean, lag_max, end - begin, idle
        )

    def _guarded(
        self, params: PyTree, slow: PyTree, optimizer: PyTree, updates: Array, batch: Batch, key: Array, counter: Array
    ) -> tuple[TrainState, Report, Array | None, Array]:
        """learn(), and the old state again where the new one is not finite. finite: [1 + leaves of params].

        The key is an argument: as a constant of the program it would make each seed compile anew.
        """
        state = TrainState(params, slow, optimizer, updates)
        learned = self._agent.learn(state, batch, jax.random.fold_in(key, counter))
        finite = jnp.stack(
            [jnp.isfinite(jnp.array([jnp.asarray(v, jnp.float32) for v in learned.report.values()])).all()]
            + [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(learned.state.params)]
        )
        keep = finite.all()
        state = jax.tree.map(lambda new, old: jnp.where(keep, new, old), learned.state, state)
        return state, learned.report, learned.priorities, finite

    def _culprit(self, batch: Batch, report: dict[str, float], finite: np.ndarray) -> str:
        """Names the first thing that is not finite, from the data to the parameters."""
        update = f"update {self.version + 1} was not applied"
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch.rollout):
            if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
                where = tuple(int(i) for i in np.argwhere(~np.isfinite(leaf))[0])
                column = where[0 if path_name(path).split("/")[0] in BATCH_MAJOR else 1]
                stream = batch.rollout.stream[column]
                return (
                    f"{update}: the data's {path_name(path)} holds {leaf[where]} at index {where} (stream {stream}). "
                    "The environment or the policy made it."
                )
        bad = [name for name, value in report.items() if not np.isfinite(value)]
        if bad:
            return (
                f"{update}: {', '.join(bad)} became {report[bad[0]]} on finite data. "
                "Try a lower learning rate or a smaller max_gradient_norm."
            )
        leaves = jax.tree_util.tree_leaves_with_path(self._state.params)
        names = [path_name(path) for (path, _), ok in zip(leaves, finite[1:]) if not ok]
        return f"{update}: parameters {', '.join(names)} would have become non-finite. Try a lower learning rate."

    def snapshot(self) -> PyTree:
        return {"state": to_flat(self._state), "version": self.version}

    def close(self) -> None:
        pass


def device_part(batch: Batch) -> Batch:
    """Without the int64 columns: jax would silently cut them to 32 bits."""
    return Batch(batch.rollout._replace(stream=(), step=()), batch.weight, ())


def _lag(batch: Batch, version: int) -> tuple[float, int]:
    valid = batch.rollout.valid > 0
    if not valid.any():
        return 0.0, 0
    lag = version - batch.rollout.version[valid]
    return float(lag.mean()), int(lag.max())
