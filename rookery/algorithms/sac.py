"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

    y      = r + gamma (min Q'(s', a') − alpha log pi(a' | s')),    a' ~ pi(. | s')
    J(Q)   = mean (Q(s, a) − y)²                                    each of the critics
    J(pi)  = mean (alpha log pi(a~ | s) − min Q(s, a~)),            a~ = tanh(mu(s) + sigma(s) noise)
    J(alpha) = mean −log alpha (log pi(a~ | s) + wanted entropy)

What many gradient steps for each environment step need (`update_ratio`) are switches: critics with layer normalisation
(`layer_norm`; Hiraoka et al. 2022, DroQ, without its dropout), and a larger ensemble of which each target takes the least of a
random few (`critics`, `target_critics`; Chen et al. 2021, REDQ).

Differs from the paper: actions are in units of their bounds, and so is the entropy; all gradients of a step are taken at the
same parameters, so that they can travel; a truncated episode bootstraps. Choices (Discrete) are in discrete_sac.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import curl, off_policy
from rookery.algorithms.off_policy import Losses, Transition
from rookery.data.config import ReplayBuffer
from rookery.networks import NetworkConfig
from rookery.networks.action_critic import action_critic
from rookery.networks.actor import actor
from rookery.networks.config import ViewsConfig
from rookery.networks.shared import front_of
from rookery.networks.torso import Torso
from rookery.ops.action_units import action_units
from rookery.ranges import Count, Finite, Long, Natural, Positive, Range, Rate, Share
from rookery.types import Agent, Array, PyTree, Report, Spec

LOG_STD = (-20.0, 2.0)  # of the normal before the tanh


@dataclass(frozen=True, kw_only=True)
class SAC:
    """Off-policy actor-critic that maximises return and entropy."""

    leaves: ClassVar[tuple[str, ...]] = (
        "learning_rate", "temperature_rate", "polyak", "encoder_polyak", "contrastive_rate", "discount",
    )
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
    temperature_rate: Rate = 3e-4
    """Learning rate of the temperature."""
    anneal: bool = False
    """Decay the learning rates linearly to zero over the planned run."""
    adam_epsilon: Positive = 1e-8
    polyak: Share = 0.005
    """Share of the way that the target critics go to the newest ones, each gradient step."""
    encoder_polyak: Share = 0.025
    """The same for the encoder of images, which actor and critics share (--network.heads separate: they do not)."""
    policy_delay: Count = 1
    """Gradient steps of the critics for each one of the policy."""
    critics: Annotated[int, Range(1, 64)] = 2
    """Critics: two are twins, more are REDQ's ensemble."""
    target_critics: Annotated[int, Range(1, 64)] = 2
    """Critics, drawn anew each step, of which a target takes the least."""
    layer_norm: bool = False
    """Layer normalisation in the critics: they stand many gradient steps per environment step."""
    initial_temperature: Positive = 1.0
    """Weight of the entropy in the beginning."""
    target_entropy: Finite | None = None
    """Entropy that the temperature holds, of actions in units of their bounds; None: −1 for each number of an action, half of
    the greatest for choices."""
    random_steps: Long | None = None
    """Environment steps of uniformly random actions before the policy acts; None: a twentieth of the run, at most 10,000."""
    contrastive_every: Natural = 0
    """Updates for each contrastive step of the encoder (CURL), on the same batch; 0: none. Needs --views.kind."""
    contrastive_rate: Rate = 1e-3
    """Learning rate of the contrastive steps."""
    views: ViewsConfig = field(default_factory=ViewsConfig)
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
        if self.contrastive_every and not front_of(spec, self.network, torso).shared:
            raise ValueError(
                "--contrastive-every trains an encoder that actor and critics share, as they do of images: use "
                "--network.heads shared, or --contrastive-every 0"
            )
        if self.target_critics > self.critics:
            raise ValueError(f"--target-critics {self.target_critics} of --critics {self.critics}: lower it, or raise those")
        if curl.asked(self):
            return curl.build(self, spec, curl.EncoderPlace("critic", follows=True), num_updates=num_updates, torso=torso)
        if isinstance(spec.action, gymnasium.spaces.Discrete):
            from rookery.algorithms import discrete_sac

            losses = discrete_sac.losses(spec, self, torso)
        else:
            losses = continuous(spec, self, torso)
        return off_policy.build(
            losses, self, spec, delayed=("actor", "temperature"), num_updates=num_updates, policy_delay=self.policy_delay
        )


def continuous(spec: Spec, config: SAC, torso: Torso | None) -> Losses:
    """Build networks and losses for actions that are numbers between bounds."""
    units = action_units(spec.action)
    box = gymnasium.spaces.Box(-1.0, 1.0, (units.size,))
    squashed = ops.squashed_gaussian(box.low, box.high)
    front = front_of(spec, config.network, torso)
    own = None if front.shared else torso
    policy = actor(front.spec, 2 * units.size, front.network, torso=own)
    critic = action_critic(
        front.spec._replace(action=box), front.network, ensemble=config.critics, layer_norm=config.layer_norm, torso=own
    )
    wanted = -float(units.size) if config.target_entropy is None else config.target_entropy

    def outputs(own: PyTree, params: PyTree, observation: PyTree) -> Array:
        """Compute mean and log deviation by an actor, behind the critics' encoder where they share it."""
        mean, log_std = jnp.split(policy.apply(own, front.read(params["critic"], observation)), 2, -1)
        return jnp.concatenate([mean, jnp.clip(log_std, *LOG_STD)], -1)

    def values(own: PyTree, observation: PyTree, action: Array) -> Array:
        """Value actions by all critics. [critics, B]"""
        return critic.apply(front.heads(own), front.read(own, observation), action)

    def acting(params: PyTree, observation: PyTree) -> Array:
        return outputs(params["actor"], params, observation)

    def init(key: Array) -> tuple[dict[str, PyTree], PyTree]:
        keys = dict(zip(("actor", "critic"), jax.random.split(key)))
        newest = front.init(keys["critic"], critic.init(keys["critic"]))
        parts = {"actor": policy.init(keys["actor"]), "critic": newest, "temperature": first_temperature(config)}
        return parts, {"critic": jax.tree.map(jnp.copy, newest)}

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> tuple[PyTree, PyTree]:
        keys = dict(zip(("sample", "random"), jax.random.split(key)))
        found = acting(params, observation)
        sampled = squashed.sample(keys["sample"], found)
        unit = jnp.where(explore["noise"][:, None] > 0, sampled, squashed.mode(found))
        return units.from_unit(off_policy.acted(keys["random"], unit, explore)), memory

    def of_critic(
        newest: PyTree, params: PyTree, slow: PyTree, rows: Transition, key: Array, config: SAC
    ) -> tuple[Array, tuple[Report, Array]]:
        keys = dict(zip(("action", "subset"), jax.random.split(key)))
        action, logp = squashed.sample_and_logp(keys["action"], acting(params, rows.after))
        q_after = least(keys["subset"], values(slow["critic"], rows.after, action), config.target_critics)
        target = rows.reward + rows.discount * (q_after - temperature(params) * logp)
        q = values(newest, rows.before, rows.action)  # [critics, B]
        return off_policy.regression(q, target, rows)

    def of_actor(own: PyTree, params: PyTree, rows: Transition, key: Array, config: SAC) -> tuple[Array, Report]:
        action, logp = squashed.sample_and_logp(key, outputs(own["actor"], params, rows.before))
        q = values(params["critic"], rows.before, action)
        worth = q.mean(0) if config.critics > config.target_critics else q.min(0)
        terms = {
            "actor": rows.mean(temperature(params) * logp - worth),
            "temperature": -own["temperature"]["log"] * rows.mean(jax.lax.stop_gradient(logp) + wanted),
        }
        told = {f"loss/{name}": term for name, term in terms.items()}
        return sum(terms.values()), told | {"temperature": temperature(params), "entropy": -rows.mean(logp)}

    return Losses(
        init=init, act=act, critic=of_critic, actor=of_actor, polyak=partial(follow, shared=front.shared),
        value=lambda params, seen: values(params["critic"], seen, squashed.mode(acting(params, seen))).min(0),
        of_action=lambda params, seen, action: values(params["critic"], seen, action).min(0), action=units.to_unit,
        spread=lambda params, seen: jnp.tanh(acting(params, seen)[:, : units.size]).std(0).mean(),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ for discrete_sac.py as well


def first_temperature(config: SAC) -> PyTree:
    return {"log": jnp.log(jnp.float32(config.initial_temperature))}


def temperature(params: PyTree) -> Array:
    """Return alpha, which no gradient reaches."""
    return jnp.exp(jax.lax.stop_gradient(params["temperature"]["log"]))


def least(key: Array, q: Array, count: int) -> Array:
    """Take the least of `count` members that are drawn at random. q [critics, ...] -> [...]"""
    if count == len(q):
        return q.min(0)
    return q[jax.random.permutation(key, len(q))[:count]].min(0)


def follow(slow: PyTree, params: PyTree, config: Any, shared: bool = False) -> PyTree:
    """Move the target critics towards the newest ones; an encoder that the actor shares at a pace of its own."""
    moved = off_policy.polyak(slow["critic"], params["critic"], config.polyak)
    if shared:
        moved |= {"encoder": off_policy.polyak(slow["critic"]["encoder"], params["critic"]["encoder"], config.encoder_polyak)}
    return {"critic": moved}
