"""QT-Opt: Q-learning over continuous actions without an actor (Kalashnikov et al. 2018, https://arxiv.org/abs/1806.10293).

    pi(s)  = argmax_a Q(s, a)                                       by the cross-entropy method (ops/cem.py)
    a'     = argmax_a Q'1(s', a)
    y      = r + gamma min(Q'1(s', a'), Q'2(s', a'))                clipped double Q of two target networks
    Q'1    = Polyak average of Q,   Q'2 = Q'1 as it was `target_lag` gradient steps ago
    J(Q)   = mean D(Q(s, a), y)         cross-entropy where values have bounds (`value_range`), else half the squared error

`refine` is a Bellman updater: it labels batches with y, by whatever target networks it was sent last, and `learn` fits the
labels (topologies/bellman_updaters.py). A batch without labels is labelled by the learner itself, with its own target networks.

Differs from the paper: the lag is kept by copies, so it goes from 2/3 to 4/3 of what is asked for; collectors act by the newest
critic; the action joins the features of an image behind the convolutions, which run once for all that is tried in a state; no
penalty for each step; actions are in units of their bounds; a truncated episode bootstraps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import optax

from rookery import ops
from rookery.algorithms import off_policy
from rookery.algorithms.off_policy import Losses, Transition
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig, units
from rookery.networks.action_critic import action_critic
from rookery.networks.torso import Torso
from rookery.ops.action_units import action_units
from rookery.ops.cem import Best
from rookery.ranges import Count, Finite, Long, NotNegative, Positive, Range, Rate, Share
from rookery.types import Agent, Array, PyTree, Report, Spec

SMALLEST = 0.02  # share of the range of values that a new network may begin with
LAG = 0.6  # of the target average's own time constant: the paper's 6,000 steps of 1 / (1 − 0.9999)


@dataclass(frozen=True, kw_only=True)
class QTOpt:
    """Q-learning over continuous actions: the best of many that are tried."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "polyak", "noise", "epsilon", "discount")
    #   may change while a run goes on (see hyper.py)
    rollout_length: Count = 1
    """Steps of every environment between two visits to the table."""
    discount: Share = 0.99
    n_step: Annotated[int, Range(1, 255)] = 1
    batch_size: Count = 64
    gradient_steps: Count = 8
    """Gradient steps per update: each draws a batch of its own, and handing them over costs once."""
    update_ratio: Annotated[float, Range(1e-3, 1000)] = 1.0
    """Gradient steps per environment step (update-to-data ratio); where many of them overfit, --layer-norm."""
    learning_rate: Rate = 3e-4
    anneal: bool = False
    """Decay the learning rate linearly to zero over the planned run."""
    adam_epsilon: Positive = 1e-8
    samples: Annotated[int, Range(2, 4096)] = 64
    """Actions that each iteration of the cross-entropy method tries."""
    elites: Annotated[int, Range(1, 4096)] = 6
    """Of them, those that the next iteration's distribution is fitted to."""
    iterations: Annotated[int, Range(1, 32)] = 2
    """Of the cross-entropy method, for each decision and each target."""
    polyak: Share = 0.005
    """Share of the way that the first target network goes to the newest one, each gradient step."""
    target_lag: Long | None = None
    """Gradient steps that the second target network lags behind the first; None: 0.6 / polyak, as published."""
    value_range: tuple[Finite, Finite] | None = None
    """Bounds of the values: the loss is the cross-entropy of a sigmoid between them. None: no bounds, and squared errors."""
    noise: NotNegative = 0.1
    """Standard deviation of what explores, in units of the bounds."""
    epsilon: Share = 0.1
    """Share of uniformly random actions."""
    layer_norm: bool = False
    """Layer normalisation in the critic: it stands many gradient steps per environment step."""
    random_steps: Long | None = None
    """Environment steps of uniformly random actions before the policy acts; None: a twentieth of the run, at most 10,000."""
    demo_ratio: Annotated[float, Range(0, below=1)] = 0.0
    """Share of each batch that is logged experience, the rest is collected."""
    demonstrations: str | None = None
    """Where logged experience is; `rookery record` makes some."""
    normalise_observations: bool | None = None
    """Running mean and deviation of observations; None: of those numbers that have no bounds, or distant ones."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this; None: they are learned from as they are."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    replay: ReplayBuffer = field(default_factory=lambda: ReplayBuffer(capacity=1_000_000))

    @property
    def steps_per_update(self) -> float:
        return self.gradient_steps / self.update_ratio

    @property
    def warm_up_steps(self) -> int:
        return self.replay.min_size

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        if self.elites >= self.samples:
            raise ValueError(f"--elites {self.elites} of --samples {self.samples}: the best are some of those that were tried")
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError("--value-range {} {}: the first is the lower bound".format(*self.value_range))
        return off_policy.build(critic_alone(spec, self, torso), self, spec, delayed=(), num_updates=num_updates)


def critic_alone(spec: Spec, config: QTOpt, torso: Torso | None) -> Losses:
    """Build the network and what is made of it."""
    of_actions = action_units(spec.action)
    box = gymnasium.spaces.Box(-1.0, 1.0, (of_actions.size,))
    critic = action_critic(spec._replace(action=box), config.network, layer_norm=config.layer_norm, torso=torso)
    low, high = config.value_range or (0.0, 1.0)
    bounded = config.value_range is not None
    period = copies_every(config)
    # a new network takes every return to be about 0: from one half, sparse rewards take thousands of steps to come down
    begin = float(jax.scipy.special.logit(min(max(-low / (high - low), SMALLEST), 1.0 - SMALLEST))) if bounded else 0.0

    def outputs(newest: PyTree, observation: PyTree, action: Array) -> Array:  # [B]
        return critic.apply(newest, observation, action)[0] + begin

    def q(newest: PyTree, observation: PyTree, action: Array) -> Array:
        raw = outputs(newest, observation, action)
        return low + (high - low) * jax.nn.sigmoid(raw) if bounded else raw

    def argmax(newest: PyTree, observation: PyTree, key: Array) -> Best:
        """Find the best action of each state. What reads the observation alone is computed once for all that are tried."""
        tried = jax.vmap(lambda action: outputs(newest, observation, action))
        return ops.cross_entropy_method(
            tried, key, batch=jax.tree.leaves(observation)[0].shape[0], size=of_actions.size, samples=config.samples,
            elites=config.elites, iterations=config.iterations,
        )  # fmt: skip

    def init(key: Array) -> tuple[dict[str, PyTree], PyTree]:
        newest = critic.init(key)
        copied = {name: jax.tree.map(jnp.copy, newest) for name in ("average", "lagged", "waiting")}
        return {"critic": newest}, copied | {"steps": jnp.zeros((), jnp.int32)}

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> tuple[PyTree, PyTree]:
        keys = dict(zip(("search", "noise", "chance", "random"), jax.random.split(key, 4)))
        best = argmax(params["critic"], observation, keys["search"]).action
        noise = params["hyper"]["noise"] * explore["noise"][:, None] * jax.random.normal(keys["noise"], best.shape)
        at_random = jax.random.uniform(keys["chance"], explore["random"].shape) < explore["random"]
        unit = off_policy.acted(keys["random"], jnp.clip(best + noise, -1.0, 1.0), explore | {"random": at_random})
        return of_actions.from_unit(unit), memory

    def target(params: PyTree, slow: PyTree, rows: Transition, key: Array, config: QTOpt) -> Array:
        action = argmax(slow["average"], rows.after, key).action
        doubted = jnp.minimum(q(slow["average"], rows.after, action), q(slow["lagged"], rows.after, action))
        return rows.reward + rows.discount * doubted

    def loss(
        newest: PyTree, params: PyTree, slow: PyTree, rows: Transition, key: Array, config: QTOpt
    ) -> tuple[Array, tuple[Report, Array]]:
        wanted = target(params, slow, rows, key, config) if rows.target is None else rows.target
        lag = {"target_lag": jnp.float32(period) + slow["steps"] % period}
        if not bounded:
            total, (report, error) = off_policy.regression(q(newest, rows.before, rows.action)[None], wanted, rows)
            return total, (report | lag, error)
        raw, share = outputs(newest, rows.before, rows.action), jnp.clip((wanted - low) / (high - low), 0.0, 1.0)
        total = rows.mean(rows.importance * optax.sigmoid_binary_cross_entropy(raw, jax.lax.stop_gradient(share)))
        value = low + (high - low) * jax.nn.sigmoid(raw)
        return total, ({"loss/critic": total, "q": rows.mean(value)} | lag, jnp.abs(value - wanted))

    def follow(slow: PyTree, params: PyTree, config: QTOpt) -> PyTree:
        steps = slow["steps"] + 1
        average = off_policy.polyak(slow["average"], params["critic"], config.polyak)
        due = lambda new, old: jax.tree.map(lambda x, y: jnp.where(steps % period == 0, x, y), new, old)
        lagged, waiting = due(slow["waiting"], slow["lagged"]), due(average, slow["waiting"])
        return {"average": average, "lagged": lagged, "waiting": waiting, "steps": steps}

    def best_value(params: PyTree, observation: PyTree) -> Array:
        return q(params["critic"], observation, argmax(params["critic"], observation, ops.random.key(0)).action)

    def spread(params: PyTree, observation: PyTree) -> Array:
        with units.listening():  # what is tried is not what the policy does
            action = argmax(params["critic"], observation, ops.random.key(0)).action
        outputs(params["critic"], observation, action)
        return action.std(0).mean()

    return Losses(
        init=init, act=act, critic=loss, actor=None, polyak=follow, value=best_value,
        of_action=lambda params, seen, action: q(params["critic"], seen, action), action=of_actions.to_unit, spread=spread,
        target=target,
    )  # fmt: skip


def copies_every(config: QTOpt) -> int:
    """Count the gradient steps between copies of the target network: a copy waits for so many, then it is used for as many,
    so that its age goes from once to twice of it, and is `target_lag` in the middle."""
    lag = LAG / max(config.polyak, 1e-6) if config.target_lag is None else config.target_lag
    return max(1, round(lag / 1.5))
