"""The Learner: holds the train state and turns batches into updates.

An update that is not finite is never kept, so it can never be published: the state stays as it was and `NonFinite` says
what was not a number.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.algorithms import hyper
from rookery.algorithms.sharing import OwnLeaves, program_of
from rookery.data import arrays
from rookery.types import Agent, Array, Batch, PyTree, Report, Rollout, TrainState
from rookery.workers.learning import absorbing, mesh
from rookery.workers.learning.absorbing import Absorbed
from rookery.workers.learning.inspection import Inspector
from rookery.workers.learning.nonfinite import NonFinite, culprit, guarded
from rookery.workers.learning.tree_paths import from_flat, to_flat


class Update(NamedTuple):
    """The result of one update."""

    version: int  # updates applied so far: the version of `params`
    params: PyTree  # never donated: may be held and published
    report: dict[str, float]
    priorities: np.ndarray | None
    trained_steps: int
    lag_mean: float  # in updates, over the valid rows that some parameters decided
    lag_max: int
    busy_seconds: float
    idle_seconds: float  # from the end of the update before to the start of this one
    slow: PyTree = None  # a copy of the state's slow part, for those who refine batches with it; None: nobody does


class Learner:
    def __init__(
        self, agent: Agent, *, seed: int, snapshot: PyTree | None = None, devices: int = 1, shares_slow: bool = False
    ) -> None:
        """shares_slow: updates bring a copy of what is slow (target networks) along."""
        self._agent, self._shares_slow = agent, shares_slow
        self._key = ops.random.key(seed)
        self._state = initial(agent)(jax.random.fold_in(self._key, 0))
        self.version = 0
        if snapshot is not None:
            self._state = from_flat(self._state, snapshot["state"])
            self.version = int(snapshot["version"])
        self._learn = compiled_update(program_of(agent))
        self._shown: Callable[[PyTree], PyTree] = lambda tree: tree
        self._inspector = Inspector(agent)
        self._placed: Callable[[PyTree], PyTree] = lambda tree: tree
        if devices > 1 or jax.process_count() > 1:
            grid = mesh.mesh_of(devices)
            self._placed = lambda tree: mesh.replicated(grid, tree)
            self._state = self._placed(self._state)
            self._learn, self._shown = mesh.compiled(updating(agent), grid, donate=(1, 2)), mesh.one_copy
        self._ended = time.perf_counter()

    @property
    def params(self) -> PyTree:
        return self._shown(self._state.params)

    def published(self) -> tuple[PyTree, int]:
        return self.params, self.version

    def slow(self) -> PyTree:
        """Copy what is slow: the next update donates it."""
        return jax.tree.map(jnp.array, self._shown(self._state.slow))

    def replace(self, params: PyTree) -> None:
        """Replace the parameters; optimizer state and target network stay."""
        self._state = self._state._replace(params=params)

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters by name, from the next update on; nothing is compiled again. ValueError: one is unknown."""
        params = hyper.tuned(self.params, values)
        if values:
            self.replace(self._state.params | {"hyper": self._placed(params["hyper"])})

    def warm_up(self, specs: Rollout) -> None:
        """Compile `learn` on zeros and discard the result; done while collectors fill the first batch."""
        rollout = arrays.allocate(specs)
        batch = Batch(rollout, np.ones(rollout.reward.shape[1], np.float32), ())
        copied = jax.tree.map(jnp.copy, tuple(self._state))
        jax.block_until_ready(self._learn(*copied, device_part(batch), self._key, np.uint32(0)))
        self._ended = time.perf_counter()

    def learn(self, batch: Batch) -> Update:
        """Make one update, and wait until it is ready: when this returns, nothing reads the batch any more."""
        begin = time.perf_counter()
        params, slow, optimizer, updates = self._state
        counter = np.uint32(self.version + 1)
        seen = device_part(batch)
        self._state, report, priorities, finite = self._learn(params, slow, optimizer, updates, seen, self._key, counter)
        lag_mean, lag_max = data_lag(batch, self.version)
        trained = int(batch.rollout.valid.sum())
        finite = np.asarray(finite)  # waits for the update
        report = {name: float(value) for name, value in jax.device_get(report).items()}
        if not finite.all():
            raise NonFinite(culprit(self.version + 1, batch.rollout, report, finite, self._state.params))
        self.version += 1
        report |= self._inspector.look(lambda: self._shown(self._state), seen)
        end = time.perf_counter()
        idle, self._ended = begin - self._ended, end
        slow = self.slow() if self._shares_slow else None
        return Update(self.version, self.params, report, priorities, trained, lag_mean, lag_max, end - begin, idle, slow)

    def absorb(self, tree: PyTree) -> Absorbed:
        """Step by a gradient of the auxiliary loss, and wait until that is done; updates are counted as before."""
        self._state = absorbing.absorbed(self._agent, self._state, tree)
        return Absorbed(self.params, self.slow(), self.version)

    def inspect(self) -> dict[str, float]:
        """Compute the health metrics now, on a batch of a while ago."""
        return self._inspector.again(self._shown(self._state))

    def snapshot(self) -> PyTree:
        return {"state": to_flat(self._state), "version": self.version}

    def close(self) -> None:
        pass


@functools.lru_cache(maxsize=8)
def compiled_update(agent: Agent) -> Callable[..., Any]:
    """Compile an update, once per process and agent; agent: `program_of` one."""
    return jax.jit(updating(agent), donate_argnums=(1, 2))


def updating(agent: Agent) -> Callable[..., Any]:
    """Build the function that makes an update unless it is not finite. The key is an argument of it: a constant would make each
    seed compile anew."""

    def update(
        params: PyTree, slow: PyTree, optimizer: PyTree, updates: Array, batch: Batch, key: Array, counter: Array
    ) -> tuple[TrainState, Report, Array | None, Array]:
        state = TrainState(params, slow, optimizer, updates)
        learned, finite = guarded(agent, state, batch, jax.random.fold_in(key, counter))
        return *learned, finite

    return update


def initial(agent: Agent) -> Callable[[Array], TrainState]:
    """Compile `agent.init`. Its leaves are of the types that updates return: with one whose type follows that of others, as
    of `jnp.full(shape, 0.5)`, all that takes the state would be compiled a second time after the first update.

    Hyper-parameters are constants of `init`. They are made by a program of their own, which takes milliseconds to compile:
    else agents that differ in nothing else would compile all of it again, a second each. Those that share their programs
    compile neither."""
    made, own = compiled_init(program_of(agent)), agent.init
    return (lambda key: own.given(made(key))) if isinstance(own, OwnLeaves) else made


@functools.lru_cache(maxsize=16)
def compiled_init(agent: Agent) -> Callable[[Array], TrainState]:
    """Compile `init`, once per process and agent; agent: `program_of` one."""
    typed = lambda tree: jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), tree)
    found: Callable[[PyTree], PyTree] = lambda params: params.get("hyper", ()) if isinstance(params, dict) else ()

    def most(key: Array) -> TrainState:
        state = agent.init(key)
        return typed(state._replace(params=state.params | {"hyper": ()}) if found(state.params) else state)

    whole, rest = jax.jit(most), jax.jit(lambda key: typed(found(agent.init(key).params)))

    def init(key: Array) -> TrainState:
        state, leaves = whole(key), rest(key)
        return state._replace(params=state.params | {"hyper": leaves}) if leaves else state

    return init


def device_part(batch: Batch) -> Batch:
    """Drop the int64 columns: jax would silently truncate them to 32 bits."""
    return Batch(batch.rollout._replace(stream=(), step=()), batch.weight, ())


def data_lag(batch: Batch, version: int) -> tuple[float, int]:
    """Measure the policy lag in updates, mean and greatest, at parameters `version`. Demonstrations have none."""
    acted = (batch.rollout.valid > 0) & (batch.rollout.version >= 0)
    lags = version - batch.rollout.version[acted]
    return (float(lags.mean()), int(lags.max())) if lags.size else (0.0, 0)
