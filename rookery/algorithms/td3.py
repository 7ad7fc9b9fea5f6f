"""TD3: twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477).

    a'    = clip(mu'(s') + clip(noise, ±c), ±1)                     smoothed action of the target policy
    y     = r + gamma min(Q'1(s', a'), Q'2(s', a'))                 twins
    J(Q)  = mean (Q1(s, a) − y)² + (Q2(s, a) − y)²
    J(mu) = mean −Q1(s, mu(s))                                      every second step, and then the targets follow

Differs from the paper: actions and noise are in units of their bounds; the gradients of a step are taken at the same
parameters; a truncated episode bootstraps; the learning rate and networks are those of the authors' later code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from rookery.algorithms import off_policy
from rookery.algorithms.ddpg import deterministic
from rookery.algorithms.off_policy import Transition
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig
from rookery.networks.torso import Torso
from rookery.ranges import Count, Long, NotNegative, Positive, Range, Rate, Share
from rookery.types import Agent, Array, Spec


@dataclass(frozen=True, kw_only=True)
class TD3:
    """Deterministic policy gradients with twin critics, smoothed targets and a policy that waits."""

    leaves: ClassVar[tuple[str, ...]] = ("learning_rate", "polyak", "noise", "target_noise", "target_noise_clip", "discount")
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
    """Of actor and critics."""
    anneal: bool = False
    """Decay the learning rate linearly to zero over the planned run."""
    adam_epsilon: Positive = 1e-8
    polyak: Share = 0.005
    """Share of the way that target networks go to the newest ones, each time that they follow."""
    policy_delay: Count = 2
    """Gradient steps of the critics for each one of the policy and of the target networks."""
    noise: NotNegative = 0.1
    """Standard deviation of what explores, in units of the bounds."""
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise that smooths targets over actions."""
    target_noise_clip: NotNegative = 0.5
    """Bound of that noise."""
    layer_norm: bool = False
    """Layer normalisation in the critics: they stand many gradient steps per environment step."""
    random_steps: Long | None = None
    """Environment steps of uniformly random actions before the policy acts; None: a twentieth of the run, at most 10,000."""
    normalise_observations: bool | None = None
    """Running mean and deviation of observations; None: of those numbers that have no bounds, or distant ones."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this; None: they are learned from as they are."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    """Of the actor and of each critic."""
    replay: ReplayBuffer = field(default_factory=lambda: ReplayBuffer(capacity=1_000_000))

    @property
    def steps_per_update(self) -> float:
        return self.gradient_steps / self.update_ratio

    @property
    def warm_up_steps(self) -> int:
        return self.replay.min_size

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Torso | None = None) -> Agent:
        losses = deterministic(spec, self, torso, critics=2, smoothed=smoothed)
        return off_policy.build(
            losses, self, spec, delayed=("actor",), num_updates=num_updates, policy_delay=self.policy_delay, targets_wait=True
        )


def smoothed(action: Array, rows: Transition, key: Array, config: TD3) -> Array:
    """Smooth the target policy's actions [B, size]: similar actions have similar values."""
    noise = config.target_noise * jax.random.normal(key, action.shape)
    return jnp.clip(action + jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip), -1.0, 1.0)
