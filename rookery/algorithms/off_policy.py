"""What DDPG, TD3, SAC and QT-Opt share: critics, and an actor if there is one, that learn from a replay, each part by an
optimizer of its own.

    K gradient steps for each batch that the table gives, cut into K pieces
    each step: gradients of every part that is due → Adam → target networks follow by Polyak averaging
    targets and losses are the algorithm's own (`Losses`)

How many gradient steps an environment step pays for is `update_ratio`, the update-to-data ratio of Chen et al. 2021 (REDQ):
collectors and learner wait for each other to keep to it, whatever the number of environments, K and the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery import ops
from rookery.algorithms import hyper, inspection, normalisers, optimizers
from rookery.algorithms.minibatches import pieces
from rookery.algorithms.priorities import PRIORITY_FLOOR, counted, first_priorities
from rookery.data import columns
from rookery.data.config import TableSpec
from rookery.networks.convolution import inside_loop
from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Report, Rollout, Spec, TrainState

LEAST, MOST = 0.1, 3.0  # of the noise, on the ladder
TARGET = "target"  # the extra of a batch whose targets were computed before it came here, by `Agent.refine`
RATES = {"temperature": "temperature_rate"}  # of parts that have one of their own


class Transition(NamedTuple):
    """Columns of a batch of single transitions, as the losses read them."""

    before: PyTree  # [B, ...] observations, normalised
    action: Array  # [B, size] in units of the bounds; [B] int32 of choices
    reward: Array  # [B] of n steps
    discount: Array  # [B] gamma to the n, 0 where the episode terminated
    after: PyTree  # [B, ...]
    importance: Array  # [B] of prioritized replay; ones without
    counts: Array  # [B] how much each row counts in a loss
    target: Array | None = None  # [B] where somebody has computed it before (`Agent.refine`)

    def mean(self, values: Array) -> Array:
        """Average over the rows that count. values [B] -> []"""
        return ops.masked_mean(values, self.counts)


class Losses(NamedTuple):
    """What an algorithm is. `params` and `slow` are whole; gradients flow to the part that a loss is named after."""

    init: Callable[[Array], tuple[dict[str, PyTree], PyTree]]  # (key) -> parts that are trained, by name; slow
    act: Callable[[PyTree, PyTree, PyTree, Array, PyTree], tuple[PyTree, PyTree]]
    #   (params, observation, memory, key, explore) -> action as the environment takes it, memory
    critic: Callable[..., tuple[Array, tuple[Report, Array]]]
    #   (critic, params, slow, transition, key, config) -> loss, (report, |error| [B])
    actor: Callable[..., tuple[Array, Report]] | None
    #   (parts of the actor's step, params, transition, key, config) -> loss, report; None: there is no actor
    polyak: Callable[[PyTree, PyTree, Any], PyTree]  # (slow, params, config) -> slow
    value: Callable[[PyTree, PyTree], Array]  # (params, observation [B, ...]) -> value of acting greedily [B]
    of_action: Callable[[PyTree, PyTree, PyTree], Array]  # (params, observation, action) -> its value [B]
    action: Callable[[PyTree], Array]  # environment's action [B, ...] -> as a critic reads it
    spread: Callable[[PyTree, PyTree], Array]  # (params, observation [N, ...]) -> how much the policy differs between states []
    memory: Callable[[int], PyTree] = lambda B: ()
    target: Callable[..., Array] | None = None
    #   (params, slow, transition, key, config) -> [B]: what the critic is fitted to, where others may compute it beforehand


class _Descent(NamedTuple):
    tree: PyTree  # gradients, by part
    report: Report  # of the critic
    told: Report  # by the actor; zeros where it was not due
    priorities: Array | None  # [B]


def build(
    losses: Losses, config: Any, spec: Spec, *, delayed: tuple[str, ...], num_updates: int | None, policy_delay: int = 1,
    targets_wait: bool = False,
) -> Agent:  # fmt: skip
    """Build an agent. delayed: the parts that an actor's step moves, one for every `policy_delay` of the critic's;
    targets_wait: target networks follow in these steps only."""
    K, trained = config.gradient_steps, ("critic", *delayed)
    planned = num_updates * K if num_updates and config.anneal else None
    optimizer = optimizers.adam(epsilon=config.adam_epsilon, by_leaf=True)
    prioritized, shown = config.replay.selector == "prioritized", getattr(config, "demo_ratio", 0.0)
    units = normalisers.build(spec, observations=config.normalise_observations, rewards=False)

    def init(key: Array) -> TrainState:
        parts, slow = losses.init(key)
        moments = {name: optimizer.init(parts[name]) for name in trained}
        params = parts | units.init() | {"hyper": hyper.leaves(config)}
        return TrainState(params, slow, moments, jnp.zeros((), jnp.int32))

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
        seen = units.observe(params, observation)
        action, memory = losses.act(params, seen, memory, key, explore)
        if not prioritized:
            return Decision(action, memory, {})
        q = losses.of_action(params, seen, losses.action(action))
        return Decision(action, memory, {"q": q, "value": losses.value(params, seen)})

    def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
        now, begun = hyper.on_host(config, params), env_steps >= (config.random_steps or 0)
        return {
            "random": np.full(len(env_index), getattr(now, "epsilon", 0.0) if begun else 1.0, np.float32),
            "noise": noises(now, np.asarray(env_index), num_envs),
        }

    def transition(params: PyTree, batch: Batch) -> Transition:
        rollout = batch.rollout
        before, after = (units.observe(params, jax.tree.map(lambda x, t=t: x[t], rollout.observation)) for t in (0, 1))
        action = losses.action(jax.tree.map(lambda x: x[0], rollout.action))
        counts, target = ops.row_weights(rollout)[0], rollout.extras[TARGET][0] if TARGET in rollout.extras else None
        return Transition(before, action, rollout.reward[0], rollout.discount[0], after, batch.weight, counts, target)

    def descent(params: PyTree, slow: PyTree, batch: Batch, key: Array, due: Array | None) -> _Descent:
        """Differentiate the critic's loss and, where it is due, the actor's. due: None: it always is."""
        now, keys = hyper.read(config, params), dict(zip(("critic", "actor"), jax.random.split(key)))
        rows, own = transition(params, batch), {name: params[name] for name in delayed}
        critic, (report, error) = jax.grad(losses.critic, has_aux=True)(
            params["critic"], params, slow, rows, keys["critic"], now
        )
        actor: Any = losses.actor  # None: there is none
        of_actor = lambda: jax.grad(actor, has_aux=True)(own, params, rows, keys["actor"], now)
        if actor is None:
            tree, told = {}, {}
        elif due is None:
            tree, told = of_actor()
        else:
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_actor))
            tree, told = jax.lax.cond(due, of_actor, lambda: nothing)
        priorities = counted(jax.lax.stop_gradient(error), batch.rollout) + PRIORITY_FLOOR if prioritized else None
        return _Descent({"critic": critic} | tree, report, told, priorities)

    def is_due(taken: Array) -> Array:
        """Tell whether the actor moves in the gradient step after so many."""
        return taken % policy_delay == 0

    def step(state: TrainState, tree: PyTree, taken: Array) -> TrainState:
        """Step every part that is due by its gradient, then the target networks; taken: gradient steps before this one."""
        now, left = hyper.read(config, state.params), optimizers.remaining(taken, planned)

        def stepped(names: tuple[str, ...], params: PyTree, moments: PyTree) -> tuple[PyTree, PyTree]:
            for name in names:
                rate = getattr(now, RATES.get(name, "learning_rate")) * left
                change, own = optimizer.update(tree[name], moments[name], params[name], learning_rate=rate)
                params, moments = params | {name: optax.apply_updates(params[name], change)}, moments | {name: own}
            return params, moments

        params, moments = stepped(("critic",), state.params, state.optimizer)
        if policy_delay == 1:
            params, moments = stepped(delayed, params, moments)
            return state._replace(params=params, slow=losses.polyak(state.slow, params, now), optimizer=moments)
        due = is_due(taken)
        params, moments = jax.lax.cond(due, lambda: stepped(delayed, params, moments), lambda: (params, moments))
        moved = lambda: losses.polyak(state.slow, params, now)
        slow = jax.lax.cond(due, moved, lambda: state.slow) if targets_wait else moved()
        return state._replace(params=params, slow=slow, optimizer=moments)

    def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
        found = descent(params, slow, batch, key, None)
        seen = units.statistics(batch.rollout)
        return Gradients(found.tree | {"seen": seen}, found.report | found.told, found.priorities)

    def apply(state: TrainState, gradients: Gradients) -> TrainState:
        after = step(state, gradients.tree, state.updates)
        params = units.observed(after.params, gradients.tree["seen"])
        return after._replace(params=params, updates=state.updates + 1)

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        seen, taken = units.statistics(batch.rollout), state.updates * K + jnp.arange(K)

        def body(state: TrainState, inputs: tuple[Batch, Array, Array]) -> tuple[TrainState, tuple[Any, ...]]:
            piece, taken, own_key = inputs
            with inside_loop():
                found = descent(state.params, state.slow, piece, own_key, None if policy_delay == 1 else is_due(taken))
            return step(state, found.tree, taken), found[1:]

        inputs = (pieces(batch, K), taken, jax.random.split(key, K))
        state, (reports, told, priorities) = jax.lax.scan(body, state, inputs)
        due = is_due(taken)
        told = {name: jnp.sum(values * due) / jnp.maximum(1, jnp.sum(due)) for name, values in told.items()}
        report = {name: values.mean() for name, values in reports.items()} | told
        state = state._replace(params=units.observed(state.params, seen), updates=state.updates + 1)
        return Learned(state, report, priorities.reshape(-1) if prioritized else None)

    def refine(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Batch:
        """Compute the targets of a batch, as `learn` would with this key if its target networks stood still."""
        assert losses.target is not None
        find, now = losses.target, hyper.read(config, params)

        def targets(inputs: tuple[Batch, Array]) -> Array:
            piece, own_key = inputs
            with inside_loop():
                return find(params, slow, transition(params, piece), jax.random.split(own_key)[0], now)

        found = jax.lax.map(targets, (pieces(batch, K), jax.random.split(key, K)))
        rollout = batch.rollout
        return batch._replace(rollout=rollout._replace(extras=rollout.extras | {TARGET: found.reshape(1, -1)}))

    value_of = jax.jit(lambda params, observation: losses.value(params, units.observe(params, observation)))

    def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
        """Find |n-step error| of every row on the host, by the values that were acted on; windows end with the rollout."""
        last = jax.tree.map(lambda x: np.ascontiguousarray(x[-1]), rollout.observation)
        value = np.concatenate([rollout.extras["value"], np.asarray(value_of(params, last))[None]])
        return rollout, first_priorities(rollout, value, hyper.on_host(config, params))

    table = TableSpec(
        config.replay, config.batch_size * K, n_step=config.n_step, reward_clip=config.reward_clip, demo_ratio=shown,
        ratio=config.batch_size * config.update_ratio * (1.0 - shown), frames=columns.frames_of(spec),
    )  # fmt: skip
    return Agent(
        init=init, memory=losses.memory, act=act, explore=explore, learn=learn,
        needs=Needs(config.rollout_length, config.discount, replay=True, table=table),
        gradients=gradients if K == 1 else None, apply=apply if K == 1 else None, process=process if prioritized else None,
        inspect=inspection.of_actor(
            lambda params, observation: losses.spread(params, units.observe(params, observation)), optimizer
        ),
        trained=trained, refine=refine if losses.target is not None else None,
    )  # fmt: skip


def noises(config: Any, env_index: np.ndarray, num_envs: int) -> np.ndarray:
    """Give each environment its noise [B]: the same for all, or a ladder from a tenth to three times of it (Ape-X's idea)."""
    if getattr(config, "exploration", "same") == "same" or num_envs < 2:
        return np.ones(len(env_index), np.float32)
    return (LEAST * (MOST / LEAST) ** (env_index / (num_envs - 1))).astype(np.float32)


def regression(q: Array, target: Array, rows: Transition) -> tuple[Array, tuple[Report, Array]]:
    """Compute half the squared error, summed over critics. q [critics, B], target [B] -> loss, (report, |error| [B])"""
    error = q - jax.lax.stop_gradient(target)[None]
    total = rows.mean(rows.importance * 0.5 * jnp.square(error).sum(0))
    return total, ({"loss/critic": total, "q": rows.mean(q.mean(0))}, jnp.abs(error).mean(0))


def polyak(slow: PyTree, newest: PyTree, share: Any) -> PyTree:
    """Move target networks by a share of the way to the newest ones."""
    return jax.tree.map(lambda old, new: old + share * (new - old), slow, newest)


def acted(key: Array, unit: Array, explore: PyTree) -> Array:
    """Replace the actions [B, size] of those that still act at random by uniform ones."""
    uniform = jax.random.uniform(key, unit.shape, unit.dtype, -1.0, 1.0)
    return jnp.where(explore["random"][:, None] > 0, uniform, unit)
