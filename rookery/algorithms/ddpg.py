"""DDPG: deep deterministic policy gradients (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971), Ape-X DPG included.

    y     = r + gamma Q'(s', mu'(s'))
    J(Q)  = mean (Q(s, a) − y)²
    J(mu) = mean −Q(s, mu(s))                                       the gradient flows through the action
    targets follow by Polyak averaging

With `n_step`, prioritized replay, and noise of its own for each environment it is Ape-X DPG (Horgan et al. 2018): collectors
give first priorities by the critic that is published with the policy.

Differs from the papers: Gaussian noise instead of an Ornstein-Uhlenbeck process (Fujimoto et al. 2018 found no gain in it);
actions and noise are in units of their bounds; no weight decay, no batch normalisation; the gradients of a step are taken at
the same parameters; a truncated episode bootstraps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import gymnasium
import jax
import jax.numpy as jnp

from rookery.algorithms import off_policy
from rookery.algorithms.off_policy import Losses, Transition
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig
from rookery.networks.action_critic import action_critic
from rookery.networks.actor import actor
from rookery.networks.torso import Torso
from rookery.ops.action_units import action_units
from rookery.ranges import Count, Long, NotNegative, Positive, Range, Rate, Share
from rookery.types import Agent, Array, PyTree, Report, Spec


@dataclass(frozen=True, kw_only=True)
class DDPG:
    """Deterministic policy gradients from replay."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "polyak", "noise", "discount")
    #   may change while a run goes on (see hyper.py)
    rollout_length: Count = 1
    """Steps of every environment between two visits to the table."""
    discount: Share = 0.99
    n_step: Annotated[int, Range(1, 255)] = 1
    batch_size: Count = 256
    gradient_steps: Count = 8
    """Gradient steps per update: each draws a batch of its own, and handing them over costs once."""
    update_ratio: Annotated[float, Range(1e-3, 1000)] = 1.0
    """Gradient steps per environment step (update-to-data ratio); where many of them overfit, --layer-norm."""
    learning_rate: Rate = 3e-4
    """Of actor and critic."""
    anneal: bool = False
    """Decay the learning rate linearly to zero over the planned run."""
    adam_epsilon: Positive = 1e-8
    polyak: Share = 0.005
    """Share of the way that target networks go to the newest ones, each gradient step."""
    noise: NotNegative = 0.1
    """Standard deviation of what explores, in units of the bounds."""
    exploration: Literal["same", "ladder"] = "same"
    """Noise of the environments: the same for all, or a ladder over them from a tenth to three times of it."""
    layer_norm: bool = False
    """Layer normalisation in the critic: it stands many gradient steps per environment step."""
    random_steps: Long | None = None
    """Environment steps of uniformly random actions before the policy acts; None: a twentieth of the run, at most 10,000."""
    normalise_observations: bool | None = None
    """Running mean and deviation of observations; None: of those numbers that have no bounds, or distant ones."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this; None: they are learned from as they are."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    """Of the actor and of the critic."""
    replay: ReplayBuffer = field(default_factory=lambda: ReplayBuffer(capacity=1_000_000))

    @property
    def steps_per_update(self) -> float:
        return self.gradient_steps / self.update_ratio

    @property
    def warm_up_steps(self) -> int:
        return self.replay.min_size

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        losses = deterministic(spec, self, torso, critics=1, smoothed=lambda action, rows, key, config: action)
        return off_policy.build(losses, self, spec, delayed=("actor",), num_updates=num_updates)


def deterministic(
    spec: Spec, config: Any, torso: Torso | None, *, critics: int, smoothed: Callable[[Array, Transition, Array, Any], Array]
) -> Losses:
    """Build networks and losses of a policy that is a function. smoothed: what a target makes of its action."""
    units = action_units(spec.action)
    box = gymnasium.spaces.Box(-1.0, 1.0, (units.size,))
    policy = actor(spec, units.size, config.network, torso=torso)
    critic = action_critic(
        spec._replace(action=box), config.network, ensemble=critics, layer_norm=config.layer_norm, torso=torso
    )

    def mu(params: PyTree, observation: PyTree) -> Array:
        return jnp.tanh(policy.apply(params, observation))

    def init(key: Array) -> tuple[dict[str, PyTree], PyTree]:
        keys = dict(zip(("actor", "critic"), jax.random.split(key)))
        parts = {"actor": policy.init(keys["actor"]), "critic": critic.init(keys["critic"])}
        return parts, jax.tree.map(jnp.copy, parts)

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> tuple[PyTree, PyTree]:
        keys = dict(zip(("noise", "random"), jax.random.split(key)))
        best = mu(params["actor"], observation)
        noise = params["hyper"]["noise"] * explore["noise"][:, None] * jax.random.normal(keys["noise"], best.shape)
        unit = jnp.clip(best + noise, -1.0, 1.0)
        return units.from_unit(off_policy.acted(keys["random"], unit, explore)), memory

    def of_critic(
        newest: PyTree, params: PyTree, slow: PyTree, rows: Transition, key: Array, config: Any
    ) -> tuple[Array, tuple[Report, Array]]:
        action = smoothed(mu(slow["actor"], rows.after), rows, key, config)
        target = rows.reward + rows.discount * critic.apply(slow["critic"], rows.after, action).min(0)
        return off_policy.regression(critic.apply(newest, rows.before, rows.action), target, rows)

    def of_actor(own: PyTree, params: PyTree, rows: Transition, key: Array, config: Any) -> tuple[Array, Report]:
        first = jax.tree.map(lambda leaf: leaf[:1], params["critic"])  # of twins, the first
        total = -rows.mean(one_critic.apply(first, rows.before, mu(own["actor"], rows.before))[0])
        return total, {"loss/actor": total}

    one_critic = action_critic(spec._replace(action=box), config.network, layer_norm=config.layer_norm, torso=torso)
    of_action = lambda params, seen, action: critic.apply(params["critic"], seen, action).min(0)
    return Losses(
        init=init, act=act, critic=of_critic, actor=of_actor,
        polyak=lambda slow, params, config: off_policy.polyak(
            slow, {"actor": params["actor"], "critic": params["critic"]}, config.polyak
        ),
        value=lambda params, seen: of_action(params, seen, mu(params["actor"], seen)), of_action=of_action,
        action=units.to_unit, spread=lambda params, seen: mu(params["actor"], seen).std(0).mean(),
    )  # fmt: skip
