"""EvolutionWorker: evaluates a share of a population as one batch, and applies every generation to its own copy of the state.

Every environment of its pool has a policy of its own: the perturbed parameters of a share are made once, on the device, and
one compiled call per step decides for all of them. Each member plays one episode, its first. What comes of it, a Score, holds
returns and not parameters. When all shares are in, every worker is given the whole Generation, rebuilds all perturbations
and makes the update that the learner makes: parameters are not sent again. A digest of them goes with each Score, so that a
copy that has come apart from the learner's is found out.

The score of a share depends on the seed, the generation and the share alone, not on who evaluates it or what it did before
(only an environment that fails, and is rebuilt, begins another episode).
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops
from rookery.algorithms.sharing import program_of
from rookery.envs import Incident, Restarts
from rookery.trees import ArraySpec
from rookery.types import Agent, Array, Batch, EnvPool, PyTree, Rollout
from rookery.workers.acting.step import column
from rookery.workers.learning.learner import Learner


class Shares(NamedTuple):
    """How a population is divided into shares, each evaluated as one batch."""

    number: int  # of shares
    size: int  # members of each

    def members(self, share: int) -> np.ndarray:
        """List the members of a share, [size]. With an even number of shares, mirrored pairs lie in neighbouring shares."""
        if self.number % 2:
            return np.arange(share * self.size, (share + 1) * self.size, dtype=np.int32)
        return (2 * (share // 2 * self.size + np.arange(self.size)) + share % 2).astype(np.int32)

    def start(self, share: int) -> int:
        """Number the initial states of a share: both signs of a mirrored pair start from the same, where they can."""
        return share if self.number % 2 else share // 2


class Score(NamedTuple):
    """The result of evaluating a share. Nothing in it grows with the network."""

    generation: int
    share: int
    digest: bytes  # of the parameters that were perturbed
    total: np.ndarray  # [size] float32: the return of each member's first episode
    length: np.ndarray  # [size] int32: its steps
    ended: np.ndarray  # [size] bool: False where it was cut at the limit of steps
    extras: dict[str, PyTree]  # [1, size, ...]: what agent.process() keeps of an episode, i.e. moments of its observations
    seconds: dict[str, float]  # env, inference, transfer
    incidents: Sequence[Incident] = ()  # environments that failed and were rebuilt


class Generation(NamedTuple):
    """What is broadcast when all shares are in. It does not grow with the network either."""

    number: int
    total: np.ndarray  # [population] float32
    length: np.ndarray  # [population] int32
    extras: dict[str, PyTree]  # [1, population, ...]

    def batch(self) -> Batch:
        """Make the batch that `learn` takes: one row, a column per member."""
        one, version = np.ones((1, len(self.total)), np.float32), np.full((1, len(self.total)), self.number, np.int32)
        extras = self.extras | {"length": self.length[None]}
        number = np.arange(len(self.total), dtype=np.int64)
        rollout = Rollout((), (), self.total[None], 0 * one, one, extras, (), version, stream=number, step=0 * number)
        return Batch(rollout, one[0], ())


class EvolutionWorker:
    def __init__(
        self, agent: Agent, make_pool: Callable[[], EnvPool], *, seed: int, shares: Shares, state: PyTree,
        env_restarts: int = 10,
    ) -> None:  # fmt: skip
        """state: a snapshot of the learner, the only time that parameters are sent here."""
        self._agent, self._seed, self._shares = agent, seed, shares
        self._pool = make_pool()
        self._restarts = Restarts(self._pool, allowed=env_restarts)
        self._key = ops.random.key(seed)
        self._perturb, self._decide = compiled(program_of(agent))
        self.restore(state)

    def restore(self, state: PyTree) -> None:
        self._learner = Learner(self._agent, seed=self._seed, snapshot=state)
        self._digest = digest(self._learner.params)

    def learn(self, generation: Generation) -> None:
        self._learner.learn(generation.batch())
        self._digest = digest(self._learner.params)

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters by name. Every worker is told, before the same generation."""
        self._learner.tune(values)
        self._digest = digest(self._learner.params)

    def evaluate(self, generation: int, share: int) -> Score:
        """Play one episode of each member of a share."""
        if generation != self._learner.version:
            raise RuntimeError(f"asked for generation {generation}, but this worker is at {self._learner.version}")
        begin = time.perf_counter()
        size, members = self._shares.size, self._shares.members(share)
        population = self._perturb(self._learner.params, members, self._key, np.uint32(generation + 1))
        entropy = np.random.SeedSequence((self._seed, generation, self._shares.start(share)))
        now = self._restarts.reset(int(entropy.generate_state(1)[0] >> 1))
        self._pool.take_episodes()  # those of the share before
        memory, incidents = self._agent.memory(size), self._restarts.take()
        greedy = jax.tree.map(np.zeros_like, self._agent.explore(self._learner.params, np.arange(size), size, 0))
        total, length, running = np.zeros(size, np.float32), np.zeros(size, np.int32), np.ones(size, bool)
        seconds = {"env": 0.0, "inference": 0.0, "transfer": time.perf_counter() - begin}
        for _ in range(self._agent.needs.rollout_length):
            asked = time.perf_counter()
            action, memory = self._decide(population, now.observation, memory, now.first, running, greedy)
            action = jax.tree.map(np.asarray, action)  # waits for the decision
            decided = time.perf_counter()
            self._pool.send(action)
            now = self._restarts.recv()
            seconds["inference"] += decided - asked
            seconds["env"] += time.perf_counter() - decided
            total += now.reward * running
            length += running & ~now.first  # such a row is of an environment that is being rebuilt
            for failure in self._restarts.take():  # its episode begins anew
                lost = list(failure.env_ids)
                total[lost] = length[lost] = 0
                incidents.append(failure)
            if ((now.terminated | now.truncated) & running).any():
                for episode in self._pool.take_episodes():  # the pool knows when a game is over: a lost life is not the end
                    if running[episode.env_id]:
                        running[episode.env_id] = False
                        total[episode.env_id], length[episode.env_id] = episode.total_reward, episode.length
                if not running.any():
                    break
        played = Generation(generation, total, length, {})
        extras = jax.tree.map(np.asarray, kept(self._agent, self._learner.params, played, memory))
        return Score(generation, share, self._digest, total, length, ~running, extras, seconds, incidents)

    def close(self) -> None:
        self._pool.close()


@functools.lru_cache(maxsize=16)
def compiled(agent: Agent) -> tuple[Callable[..., PyTree], Callable[..., tuple[PyTree, PyTree]]]:
    """Compile, once per process and agent, what perturbs and what decides.

    (params, members, key, counter) -> population; (population, observation, memory, first, running, greedy) -> action, …
    The memory of a member whose episode is over stays as it was.
    """
    assert agent.perturb is not None
    perturbed = agent.perturb

    def perturb(params: PyTree, member: Array, key: Array, counter: Array) -> PyTree:
        return perturbed(params, member, jax.random.fold_in(key, counter))  # the key that learn() will be given

    def decide(
        population: PyTree, observation: PyTree, memory: PyTree, first: Array, running: Array, greedy: PyTree
    ) -> tuple[PyTree, PyTree]:
        B = running.shape[0]
        pick = lambda where, new, old: jax.tree.map(lambda n, o: jnp.where(column(where, o), n, o), new, old)
        before = pick(first & running, agent.memory(B), memory)
        alone = lambda tree: jax.tree.map(lambda x: x[:, None], tree)  # a batch of one for each member
        act = jax.vmap(agent.act, (0, 0, 0, None, 0))
        decision = act(population, alone(observation), alone(before), ops.random.key(0), alone(greedy))
        action, after = jax.tree.map(lambda x: x[:, 0], (decision.action, decision.memory))
        return action, pick(running, after, memory)

    return jax.jit(perturb), jax.jit(decide)


def kept(agent: Agent, params: PyTree, played: Generation, memory: PyTree) -> dict[str, PyTree]:
    """Apply `agent.process` to episodes, given returns, lengths and last recurrent state: what is kept, [1, B, ...]."""
    if agent.process is None:
        return {}
    row, _ = agent.process(params, played.batch().rollout._replace(memory=memory))
    return {name: value for name, value in row.extras.items() if name != "length"}


def kept_specs(agent: Agent, members: int) -> dict[str, PyTree]:
    """Derive the shapes of what is kept, without playing anything."""
    params = jax.eval_shape(agent.init, ops.random.key(0)).params
    nothing = Generation(0, np.zeros(members, np.float32), np.zeros(members, np.int32), {})
    shapes = jax.eval_shape(lambda params: kept(agent, params, nothing, agent.memory(members)), params)
    return jax.tree.map(lambda x: ArraySpec(x.shape, np.dtype(x.dtype)), shapes)


def digest(params: PyTree) -> bytes:
    """Hash parameters to 64 bits: copies with the same digest are the same, bit for bit."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        found.update(np.asarray(leaf).tobytes())
    return found.digest()[:8]
