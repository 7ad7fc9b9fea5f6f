"""The AnakinProgram: environments, acting, replay and learning compiled into one, run for many updates per call.

The whole state of training is one tree of arrays, the Carry: a call maps it to the next one, and a snapshot is a copy of it.
Several agents that differ in their seed alone are a leading axis of every array. An update that is not finite is never
kept, and ends the run with the name of what was not a number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.algorithms import hyper
from rookery.algorithms.sharing import program_of
from rookery.data import arrays
from rookery.data.config import TableSpec
from rookery.envs.jax.env import JaxEnv
from rookery.envs.jax.slots import Programs, from_host, programs, slot_seeds, to_host
from rookery.types import Agent, Array, Batch, Episode, PyTree, Report, Rollout, TrainState
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.acting.step import discount
from rookery.workers.compiled import ring as rings
from rookery.workers.compiled.unroll import Ended, ScanState, begin, unroll
from rookery.workers.learning.learner import initial
from rookery.workers.learning.nonfinite import NonFinite, culprit, guarded
from rookery.workers.learning.tree_paths import path_name, to_flat

# Of the program alone. Processor time of one PPO update (40 minibatches of 256, two networks of 64, 64), measured on a busy
# machine: 15 to 16 ms with startup's library fusions of a product with its bias and tanh, 13.2 to 13.4 with the product alone
# in the library, 12.5 to 12.9 if it also stays in one thread. Like startup's, this keeps reductions out of the library.
CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}


class Pace(NamedTuple):
    """What one turn of the loop does, and how many turns a call makes."""

    rollouts: int  # per turn
    updates: int  # per turn
    turns: int  # per call
    warm_up: int  # rollouts before the first update


class Carry(NamedTuple):
    """The whole state of one agent's training; with several, [S, ...]."""

    seed: Array  # uint32 scalar
    state: TrainState
    streams: ScanState
    ring: Any  # a Ring; (): each rollout is learned from once


class Told(NamedTuple):
    """The statistics of a turn, on the device."""

    steps: Array  # valid rows that were collected
    ended: Ended  # [rollouts, T, B]
    data_finite: Array  # [leaves of a rollout]
    trained: Array  # [updates] valid rows that were learned from
    lag_mean: Array  # [updates]
    lag_max: Array  # [updates]
    report: Report  # of [updates]
    finite: Array  # [updates, 1 + leaves of params]


class Advanced(NamedTuple):
    """The result of a call."""

    version: int  # updates of each agent so far
    params: PyTree  # of the first seed; never donated: may be held and published
    env_steps: int  # of all seeds, as are all of the following
    trained_steps: int
    episodes: list[Episode]  # environment b of seed s is s * B + b
    report: dict[str, float]  # of the last update, mean over the seeds; empty while the replay is filled
    lag_mean: float
    lag_max: int
    seconds: float


class AnakinProgram:
    def __init__(
        self, agent: Agent, env: JaxEnv, *, num_envs: int, num_seeds: int, pace: Pace, seed: int, snapshot: PyTree | None = None
    ) -> None:
        self._agent, self._num_envs, self._pace, self._many = agent, num_envs, pace, num_seeds > 1
        environments = programs(env.reset, env.step)
        self._specs = rollout_specs(agent, env.spec, num_envs)
        self._rollouts = 0  # so far, of each agent
        self._kept_from = 0  # rollouts before the ring's first
        init = initial(agent)
        nothing = jax.tree.map(np.asarray, spaces.zeros(env.spec.action, (num_envs,))) if agent.needs.previous else ()
        starts = compiled_start(program_of(agent), environments)
        start = lambda seeds: starts(nothing, seeds)
        agents = [self._first(seed + number, init, start) for number in range(num_seeds)]
        self._carry: Carry = jax.tree.map(lambda *x: jnp.stack(x), *agents) if self._many else agents[0]
        self.version = 0
        if snapshot is not None:
            self._restore(snapshot)
        self._run = compiled_loop(program_of(agent), environments, num_envs, self._many, pace)
        self._shown: PyTree = self.published()[0]  # of the first seed

    def _first(self, seed: int, init: Callable[..., TrainState], start: Callable[..., ScanState]) -> Carry:
        """Make the first state, with the keys and seeds of a Learner and a Collector over a JaxPool: such a run is the same."""
        entropy = np.random.SeedSequence((seed, 0, 0, 0))
        pool_seed, ids = int(entropy.generate_state(1)[0] >> 1), range(self._num_envs)
        streams = start(slot_seeds(pool_seed, ids, [0] * self._num_envs))
        table: TableSpec | None = self._agent.needs.table
        ring: Any = ()
        if table is not None:
            rows = rings.num_rows(table, num_envs=self._num_envs, rollout_length=self._agent.needs.rollout_length)
            ring = rings.empty(self._specs, rows)
        return Carry(jnp.uint32(seed), init(jax.random.fold_in(ops.random.key(seed), 0)), streams, ring)

    # ------------------------------------------------------------------------------------------------ the host

    def advance(self) -> Advanced:
        """Run `turns` turns in one compiled call; with a replay, the first one only collects until updates can begin."""
        begin_seconds, pace, T = time.perf_counter(), self._pace, self._agent.needs.rollout_length
        missing = pace.warm_up - (self._rollouts - self._kept_from)
        turns = pace.turns if missing <= 0 else -(-missing // pace.rollouts)
        numbers = self._rollouts + pace.rollouts * np.arange(turns, dtype=np.int32)
        explore = [self._explore(int(number) + nth) for number in numbers for nth in range(pace.rollouts)]
        stacked = jax.tree.map(lambda *x: np.stack(x).reshape(turns, pace.rollouts, *np.shape(x[0])), *explore)
        written = (numbers - self._kept_from) * T
        self._carry, device_told = self._run(self._carry, stacked, numbers, written, learns=missing <= 0)
        told: Told = jax.device_get(device_told)  # waits for the call
        self._check_finite(told)
        self._rollouts += turns * pace.rollouts
        self._shown = jax.tree.map(np.array, self._agent_of(0).state.params)
        if missing <= 0:
            self.version += turns * pace.updates
        return Advanced(
            version=self.version,
            params=self._shown,
            env_steps=int(told.steps.sum()),
            trained_steps=int(np.sum(told.trained)),
            episodes=self._episodes(told.ended),
            report={name: float(value[-1, ..., -1].mean()) for name, value in told.report.items()},
            lag_mean=float(np.mean(told.lag_mean)) if missing <= 0 else 0.0,
            lag_max=int(np.max(told.lag_max)) if missing <= 0 else 0,
            seconds=time.perf_counter() - begin_seconds,
        )

    def _explore(self, rollout: int) -> PyTree:
        """Schedule the n-th rollout's exploration: every row before it counts as a step, so that it depends on nothing else."""
        steps = rollout * self._num_envs * self._agent.needs.rollout_length
        return self._agent.explore(self._shown, np.arange(self._num_envs), self._num_envs, steps)

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters by name, of all seeds, from the next call on; nothing is compiled again."""
        state = self._carry.state
        self._carry = self._carry._replace(state=state._replace(params=hyper.tuned(state.params, values)))
        self._shown = hyper.tuned(self._shown, values)

    def _episodes(self, ended: Ended) -> list[Episode]:
        """List the episodes that ended, in the order of time. ended: of [turns, (seeds,) rollouts, T, B]"""
        in_time = lambda x: np.moveaxis(x, 1, 3) if self._many else x[:, :, :, None]  # [turns, rollouts, T, seeds, B]
        over, total, length = (in_time(x) for x in ended)
        where = over.nonzero()
        ids = where[3] * self._num_envs + where[4]
        return [Episode(*one) for one in zip(ids.tolist(), total[where].tolist(), length[where].tolist())]

    def _check_finite(self, told: Told) -> None:
        """Raise NonFinite for the first update that was refused, or for the first rollout that is not finite."""
        one = lambda x: x if self._many else np.asarray(x)[:, None]  # [turns, seeds, ...]
        data = one(told.data_finite)
        for turn, number, leaf in np.argwhere(~data):
            before, seed = self.version + int(turn) * self._pace.updates, self._agent_of(0).seed + number
            raise NonFinite(
                f"update {before + 1} was not applied: the data's {_float_names(self._specs)[leaf]} holds what is no finite "
                f"number (seed {seed}). The environment or the policy made it."
            )
        if not told.report:
            return
        finite = one(told.finite)  # [turns, seeds, updates, 1 + leaves]
        for turn, number, nth in np.argwhere(~finite.all(-1)):
            report = {name: float(one(value)[turn, number, nth]) for name, value in told.report.items()}
            update = self.version + int(turn) * self._pace.updates + int(nth) + 1
            params = self._agent_of(int(number)).state.params
            raise NonFinite(culprit(update, None, report, finite[turn, number, nth], params))

    def _agent_of(self, number: int) -> Carry:
        """Slice out the agent of one seed, without its environments' past."""
        alone = self._carry._replace(ring=())
        return jax.tree.map(lambda x: x[number], alone) if self._many else alone

    def published(self) -> tuple[PyTree, int]:
        return jax.tree.map(np.array, self._agent_of(0).state.params), self.version

    # -------------------------------------------------------------------------------------------------- keeping

    def snapshot(self) -> PyTree:
        """Save all agents (program), and that of the first seed as every topology saves the one that is evaluated (learner)."""
        table: TableSpec | None = self._agent.needs.table
        large = table is not None and arrays.nbytes(jax.tree.leaves(self._carry.ring)) > table.config.save_megabytes << 20
        ring = None if large else {path_name(path): to_host(leaf) for path, leaf in _paths(self._carry.ring)}
        alone = self._carry._replace(ring=())
        return {
            "learner": {"state": to_flat(self._agent_of(0).state), "version": self.version},
            "program": {
                "carry": {path_name(path): to_host(leaf) for path, leaf in _paths(alone)},
                "ring": ring,
                "rollouts": self._rollouts,
                "kept_from": self._kept_from,
            },
        }

    def _restore(self, snapshot: PyTree) -> None:
        saved = snapshot["program"]
        self.version, self._rollouts = int(snapshot["learner"]["version"]), int(saved["rollouts"])
        self._kept_from = int(saved["kept_from"])
        ring = self._carry.ring
        if saved["ring"] is None:  # too large to be saved: filled anew before it is learned from
            self._kept_from = self._rollouts
        else:
            ring = _like(ring, saved["ring"])
        self._carry = _like(self._carry._replace(ring=()), saved["carry"])._replace(ring=ring)

    def close(self) -> None:
        pass


# ------------------------------------------------------------------------------------------------- the program


@lru_cache(maxsize=16)
def compiled_start(agent: Agent, environments: Programs) -> Callable[..., ScanState]:
    """Compile the first state of the environments: (no action yet, seeds [B]) -> ScanState."""
    return jax.jit(lambda action, seeds: begin(agent, environments, action, seeds))


@lru_cache(maxsize=16)  # runs of the same agent share what is compiled
def compiled_loop(agent: Agent, environments: Programs, num_envs: int, many: bool, pace: Pace) -> Callable[..., Any]:
    """Compile the loop: (carry, explore, numbers, written, learns=) -> Carry, Told.

    explore: of [turns, rollouts, B]; numbers, written [turns]: rollouts, and rows of the ring, before each turn; learns:
    else it only collects. The counters are the same for all seeds, so that a ring is written in place.
    """
    T, table = agent.needs.rollout_length, agent.needs.table

    def turn(carry: Carry, explore: PyTree, number: Array, written: Array, learns: bool) -> tuple[Carry, Told]:
        key, state = ops.random.key(carry.seed), carry.state
        acting = jax.random.fold_in(jax.random.fold_in(key, 0), 0)

        def collect(carry: Carry, at: tuple) -> tuple[Carry, tuple]:
            explore, nth = at
            streams, rollout, ended = unroll(
                agent, environments, carry.streams, params=state.params, version=state.updates, explore=explore,
                key=acting, counter=(number + nth).astype(jnp.uint32) * T,
            )  # fmt: skip
            told = (rollout.valid.sum(), ended, _finite_leaves(rollout))
            if table is None:
                return carry._replace(streams=streams), (*told, rollout)
            ring = rings.write(carry.ring, rollout, written + nth * T)
            return carry._replace(streams=streams, ring=ring), (*told, ())

        def learn(state: TrainState, _: None) -> tuple[TrainState, tuple]:
            own, gamma = jax.random.fold_in(key, state.updates + 1), discount(state.params, agent.needs)
            if table is None:
                batch = Batch(fresh._replace(discount=fresh.discount * gamma), jnp.ones(num_envs), ())
            else:
                have = written + pace.rollouts * T
                batch = rings.sample(carry.ring, have, jax.random.fold_in(own, 1), table=table, gamma=gamma)
            learned, finite = guarded(agent, state, batch, own)
            lag = (state.updates - batch.rollout.version) * (batch.rollout.valid > 0)
            trained = batch.rollout.valid.sum()
            return learned.state, (trained, lag.sum() / jnp.maximum(trained, 1.0), lag.max(), learned.report, finite)

        carry, (steps, ended, finite, rollouts) = _repeat(collect, carry, (explore, jnp.arange(pace.rollouts)), pace.rollouts)
        fresh = jax.tree.map(lambda x: x[0], rollouts)  # without a replay there is one per turn
        told: tuple = ((), (), (), {}, ())
        if learns:
            state, told = _repeat(learn, state, None, pace.updates)
        return carry._replace(state=state), Told(steps.sum(), ended, finite.all(0), *told)

    def call(carry: Carry, explore: PyTree, numbers: Array, written: Array, *, learns: bool) -> tuple[Carry, Told]:
        def of_all(carry: Carry, at: tuple) -> tuple[Carry, Told]:
            explore, number, written = at
            one = lambda carry: turn(carry, explore, number, written, learns)
            return (jax.vmap(one) if many else one)(carry)

        return jax.lax.scan(of_all, carry, (explore, numbers, written))

    options = CPU_OPTIONS if jax.default_backend() == "cpu" else {}
    return jax.jit(call, donate_argnums=0, static_argnames="learns", compiler_options=options)


def _repeat(function: Callable[..., Any], carry: Any, inputs: PyTree, times: int) -> tuple[Any, Any]:
    """Scan; where it would go round once, without a loop: XLA optimises straight-line code."""
    if times > 1:
        return jax.lax.scan(function, carry, inputs, length=times)
    carry, out = function(carry, jax.tree.map(lambda x: x[0], inputs))
    return carry, jax.tree.map(lambda x: x[None], out)


def _paths(tree: PyTree) -> list[tuple[tuple, Array]]:
    return jax.tree_util.tree_leaves_with_path(tree)


def _like(tree: PyTree, saved: dict[str, np.ndarray]) -> PyTree:
    names = [path_name(path) for path, _ in _paths(tree)]
    wrong = [
        name for name, leaf in zip(names, jax.tree.leaves(tree))
        if name not in saved or to_host(leaf).shape != np.shape(saved[name])
    ]  # fmt: skip
    if wrong:
        raise ValueError(
            "the checkpoint was made by another agent, or with another environment, --num-envs or --num-seeds: "
            f"{', '.join(wrong[:4])} differ"
        )
    return jax.tree.unflatten(
        jax.tree.structure(tree), [from_host(saved[name], leaf) for name, leaf in zip(names, jax.tree.leaves(tree))]
    )


def _floats(rollout: Rollout) -> list[tuple[tuple, Array]]:
    kept = rollout._replace(stream=(), step=())
    return [(path, leaf) for path, leaf in _paths(kept) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _float_names(specs: Rollout) -> list[str]:
    return [path_name(path) for path, _ in _floats(specs)]


def _finite_leaves(rollout: Rollout) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for _, leaf in _floats(rollout)])
