"""The values that travel between the parts of Rookery, and the contracts of the parts.

Everything here is a NamedTuple (a pytree that needs no import of jax) or a Protocol. Axes: `T` time, `B` batch
(environments), `A` actions. Arrays are numpy on the host and jax inside jitted functions; the shapes are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import gymnasium

Array = Any  # numpy.ndarray on the host, jax.Array inside jitted functions
PyTree = Any  # an array, or a (nested) dict, list, tuple or NamedTuple of them
Report = dict[str, Any]  # name -> scalar array; flat, so that it can be logged as it is


# ------------------------------------------------------------------------------------------------ environments


class Spec(NamedTuple):
    """What an algorithm may know of an environment: the canonical spaces (see rookery/spaces.py)."""

    observation: gymnasium.Space
    action: gymnasium.Space
    id: str = ""
    raw: tuple[gymnasium.Space, gymnasium.Space] | None = None  # the environment's own; None: they are canonical
    pool: Any = None  # rookery.envs.options.PoolOptions between its observations and these; None: nothing


class TimeStep(NamedTuple):
    """What a group of environments answered. Valid until the next `send` to that group.

    Autoreset is next-step: after an episode has ended, the next action is ignored and the answer is the first
    observation of the next episode, with `first = True`, reward 0 and both flags False.
    """

    env_ids: Array  # [B] int32
    observation: PyTree  # [B, ...]
    reward: Array  # [B] float32
    terminated: Array  # [B] bool: the episode ended, nothing comes after (no bootstrap)
    truncated: Array  # [B] bool: the episode was cut (bootstrap from the observation given here)
    first: Array  # [B] bool: `observation` is the first of an episode


class Episode(NamedTuple):
    """An episode that ran to its end, as it was played (rewards not clipped, lives not counted as episodes)."""

    env_id: int
    total_reward: float
    length: int


class EnvPool(Protocol):
    """Many environments; the only way to touch one. Groups are contiguous slices that step independently.

    Actions are canonical: Discrete and MultiDiscrete count from 0 (the pool adds `start`), Box actions are any
    finite float (the pool clips them to the bounds), MultiBinary is 0/1.
    """

    spec: Spec
    num_envs: int
    groups: tuple[slice, ...]

    def reset(self, seed: int) -> TimeStep: ...  # every environment; first = True everywhere
    def send(self, action: PyTree, group: int = 0) -> None: ...  # returns at once
    def recv(self, group: int = 0) -> TimeStep: ...
    def rebuild(self, env_id: int) -> None: ...  # a fresh environment in that slot; its next answer is `first`
    def take_episodes(self) -> list[Episode]: ...  # those that ended since the last call
    def snapshot(self) -> PyTree | None: ...  # None where the environments cannot be saved
    def restore(self, snapshot: PyTree) -> TimeStep: ...  # continues as if never stopped
    def close(self) -> None: ...


# -------------------------------------------------------------------------------------------------- experience


class Rollout(NamedTuple):
    """T steps of B environments, time-major.

    Row t: saw observation[t], did action[t], was given reward[t] and discount[t], then saw observation[t + 1].
    A row with valid = 0 leads from an episode's last observation to the next one's first; it is no transition.
    """

    observation: PyTree  # [T + 1, B, ...]; images uint8
    action: PyTree  # [T, B, ...]
    reward: Array  # [T, B] float32
    discount: Array  # [T, B] float32: 0 where the episode terminated, else 1 (also when truncated)
    valid: Array  # [T, B] float32: 1 - first[t + 1]
    extras: dict[str, PyTree]  # [T, B, ...] what act() wanted remembered: behaviour_logp, value ...
    memory: PyTree  # [B, ...] memory before observation[0], already reset where an episode starts there
    version: Array  # [T, B] int32: parameters that acted; -1: none did, it is a demonstration
    stream: Array  # [B] int64: environment slot and incarnation. Host only, as is `step`: () inside learn()
    step: Array  # [B] int64: index of row 0 in its stream
    weight: Array = ()
    #   [T, B] float32: how much a row counts in the loss; (): every row alike. `valid` cuts recursions, this does not: an
    #   opponent's move, an absent agent and padding are part of the return, and nothing is learned from them


BATCH_MAJOR = ("memory", "stream", "step")  # the fields of Rollout that are [B, ...]; all others are [T, B, ...]


class Batch(NamedTuple):
    """What the learner eats."""

    rollout: Rollout  # its discount already contains gamma: an n-step transition is a T = 1 rollout with gamma**m
    weight: Array  # [B] float32: importance weights, ones by default
    key: Array  # [B] int64: item and generation, for the priorities that come back. Host only: () inside learn()


# -------------------------------------------------------------------------------------------------- algorithms


class Decision(NamedTuple):
    action: PyTree  # [B, ...] canonical (see EnvPool)
    memory: PyTree  # [B, ...] memory after this observation
    extras: dict[str, PyTree]  # [B, ...]
    weight: Array = ()  # [B] float32: becomes a row of Rollout.weight; () where every row counts alike


class TrainState(NamedTuple):
    params: PyTree
    #   all that acting needs, normalisers included. params["hyper"], where it is there: hyper-parameters that may change while
    #   a run goes on, by name, as float32 scalars; changing one compiles nothing again
    slow: PyTree  # target networks, temperatures; () where there are none
    optimizer: PyTree
    updates: Array  # int32 scalar: + 1 per learn or apply, whatever optimizer steps that takes; lag is counted in it


class Gradients(NamedTuple):
    tree: PyTree  # what apply() takes: for each name in Agent.trained a tree shaped like that part of the params, beside
    #               whatever else travels with it (what its batch tells normalisers); where `trained` is None, like the params
    report: Report
    priorities: Array | None = None  # [B]: so that topologies which ship gradients can send them back


class Learned(NamedTuple):
    state: TrainState
    report: Report
    priorities: Array | None  # [B]


class Needs(NamedTuple):
    """What an algorithm asks of its collectors and of the topology that drives it."""

    rollout_length: int  # T of the rollouts that collectors write and, where there is no `table`, learn() is given
    discount: float  # gamma; the data path multiplies it into Batch.rollout.discount
    max_lag: int | None = None  # in updates; 0: only data of the current parameters; None: any
    replay: bool = False  # may an item be learned from more than once?
    return_discount: float | None = None
    #   collectors write extras["discounted_return"] with it: rewards as played, reward[t] included, 0 on resetting rows
    previous: bool = False
    #   the observation becomes {"observation", "previous_action", "previous_reward"}, both zero at an episode's first step
    whole_episodes: bool = False
    table: Any = None  # rookery.data.config.TableSpec: learn() is given batches from such a table; None: whole rollouts


class Auxiliary(NamedTuple):
    """A loss beside the main one with an optimizer of its own: `learn` is `alone`, then a step of it on the same batch."""

    alone: Callable[[TrainState, Batch, Array], Learned]  # (state, batch, key)
    gradients: Callable[[PyTree, PyTree, Batch, Array], Gradients]  # (params, slow, batch, key)
    apply: Callable[[TrainState, PyTree], TrainState]  # (state, tree of its gradients) -> it is no update


class Agent(NamedTuple):
    """All that workers and topologies may know of an algorithm. Every function is pure and can be jitted."""

    init: Callable[[Array], TrainState]  # (key)
    memory: Callable[[int], PyTree]  # (B) -> memory that a new episode starts with, or ()
    act: Callable[[PyTree, PyTree, PyTree, Array, PyTree], Decision]
    #   (params, observation, memory, key, explore) -> Decision; explore: a tree of [B] numbers, 0 = greedy
    explore: Callable[[PyTree, Array, int, int], PyTree]
    #   (params, env_index [B], num_envs, env_steps), counted over all collectors -> the tree of [B] numbers that act() takes;
    #   numpy on the host, called per rollout: an epsilon may be a leaf of params["hyper"]. A tree of zeros is greedy
    learn: Callable[[TrainState, Batch, Array], Learned]  # (state, batch, key)
    needs: Needs
    gradients: Callable[[PyTree, PyTree, Batch, Array], Gradients] | None = None
    #   (params, slow, batch, key); None where an algorithm has none (PPO's epochs, ES)
    apply: Callable[[TrainState, Gradients], TrainState] | None = None
    #   optimizer step, updates += 1, target refresh. Clipping by global norm is in `gradients`
    process: Callable[[PyTree, Rollout], tuple[Rollout, Array | None]] | None = None
    #   (params, rollout) -> rollout, priorities [T, B] of its rows or None: run by the collector; None: nothing to do
    perturb: Callable[[PyTree, Array, Array], PyTree] | None = None
    #   (params, member [B], key) -> params with an axis [B] in front: what each member of a population acts with. The key is
    #   the one that learn() will be given. None where nothing is evolved
    inspect: Callable[[TrainState, Batch], Report] | None = None
    #   (state, some columns of a batch) -> how learning stands, in numbers that show failure before the return does; called
    #   now and then, never part of an update. Names begin with health/. state.optimizer is () where a worker has none
    trained: tuple[str, ...] | None = None
    #   the parts of params that optimizers move, by their keys: TrainState.optimizer has an entry for each of these names.
    #   None: all of params is trained, by one optimizer
    refine: Callable[[PyTree, PyTree, Batch, Array], Batch] | None = None
    #   (params, slow, batch, key) -> batch: what workers between a table and the learner make of what is drawn (labelled
    #   targets, searches repeated with newer parameters). Columns and `key` stay; extras may be added. None: nothing to refine
    auxiliary: Auxiliary | None = None
    #   a loss that may be computed by a worker beside the learner (CURL's contrastive one); None: there is none


class Algorithm(Protocol):
    """A frozen dataclass of hyper-parameters."""

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Any = None) -> Agent:
        """Build the agent. num_updates: planned, for schedules; torso: the user's own network in place of the encoder."""
        ...
