"""Soft actor-critic over choices (Christodoulou 2019, https://arxiv.org/abs/1910.07207): expectations over actions are exact.

    y      = r + gamma sum_a pi(a | s') (min Q'(s', a) − alpha log pi(a | s'))
    J(pi)  = mean sum_a pi(a | s) (alpha log pi(a | s) − min Q(s, a))

Differs from the paper: the entropy to be held is half of the greatest, log of the number of legal actions, not 0.98 of it,
which keeps a policy close to uniform. An `action_mask` makes illegal actions impossible.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from rookery import ops
from rookery.algorithms import inspection, off_policy
from rookery.algorithms.off_policy import Losses, Transition
from rookery.algorithms.sac import SAC, first_temperature, follow, least, temperature
from rookery.networks import encoders
from rookery.networks.actor import actor
from rookery.networks.q_network import q_network
from rookery.networks.shared import front_of
from rookery.networks.torso import Torso
from rookery.types import Array, PyTree, Report, Spec

WANTED = 0.5  # of the greatest entropy


def losses(spec: Spec, config: SAC, torso: Torso | None) -> Losses:
    """Build networks and losses for an action that is one choice."""
    size = int(spec.action.n)  # type: ignore[attr-defined]
    front = front_of(spec, config.network, torso)
    own_torso = None if front.shared else torso
    policy = actor(front.spec, size, front.network, torso=own_torso)
    network = q_network(front.spec, front.network, torso=own_torso)
    if config.layer_norm:
        raise ValueError("--layer-norm is for critics of continuous actions; choices have one value each")

    def init(key: Array) -> tuple[dict[str, PyTree], PyTree]:
        keys = dict(zip(("actor", "critic"), jax.random.split(key)))
        newest = front.init(keys["critic"], jax.lax.map(network.init, jax.random.split(keys["critic"], config.critics)))
        parts = {"actor": policy.init(keys["actor"]), "critic": newest, "temperature": first_temperature(config)}
        return parts, {"critic": jax.tree.map(jnp.copy, newest)}

    def logits(own: PyTree, params: PyTree, observation: PyTree) -> Array:
        """Compute logits by an actor, behind the critics' encoder where they share it."""
        legal, found = encoders.split_mask(observation), policy.apply(own, front.read(params["critic"], observation))
        return found if legal is None else ops.mask_logits(found, legal)

    def values(params: PyTree, observation: PyTree) -> Array:
        """Value every choice, by every critic. [critics, B, A]; illegal ones 0, as no policy takes them"""
        seen, heads = front.read(params, observation), front.heads(params)
        member = lambda i: network.step(jax.tree.map(lambda leaf: leaf[i], heads), seen, (), None)[0].q
        q, legal = jnp.stack([member(i) for i in range(config.critics)]), encoders.split_mask(observation)
        return q if legal is None else jnp.where(legal[None], q, 0.0)

    def policy_of(own: PyTree, params: PyTree, observation: PyTree) -> tuple[Array, Array]:
        """Compute probabilities and their logarithms, [B, A]; the latter 0 where an action is illegal."""
        logp = jax.nn.log_softmax(logits(own, params, observation))
        p = jnp.exp(logp)
        return p, jnp.where(p > 0, logp, 0.0)

    def wanted(observation: PyTree, like: Array) -> Array:
        if config.target_entropy is not None:
            return jnp.full_like(like, config.target_entropy)
        legal = encoders.split_mask(observation)
        count = jnp.full_like(like, size) if legal is None else legal.sum(-1)
        return WANTED * jnp.log(count)

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> tuple[PyTree, PyTree]:
        keys = dict(zip(("sample", "random"), jax.random.split(key)))
        found = logits(params["actor"], params, observation)
        flat = jnp.where(found > -1e8, 0.0, found)  # every legal action alike
        sampled = jax.random.categorical(keys["sample"], jnp.where(explore["random"][:, None] > 0, flat, found))
        return jnp.where(explore["noise"] > 0, sampled, jnp.argmax(found, -1)).astype(jnp.int32), memory

    def of_critic(
        newest: PyTree, params: PyTree, slow: PyTree, rows: Transition, key: Array, config: SAC
    ) -> tuple[Array, tuple[Report, Array]]:
        p, logp = policy_of(params["actor"], params, rows.after)
        q_after = least(key, values(slow["critic"], rows.after), config.target_critics)
        soft = jnp.sum(p * (q_after - temperature(params) * logp), -1)
        q = values(newest, rows.before)
        taken = ops.of_action(q, jnp.broadcast_to(rows.action[None], q.shape[:2]))
        return off_policy.regression(taken, rows.reward + rows.discount * soft, rows)

    def of_actor(own: PyTree, params: PyTree, rows: Transition, key: Array, config: SAC) -> tuple[Array, Report]:
        p, logp = policy_of(own["actor"], params, rows.before)
        q = jax.lax.stop_gradient(values(params["critic"], rows.before).min(0))
        entropy = -jnp.sum(p * logp, -1)
        still = jax.lax.stop_gradient(entropy)
        terms = {
            "actor": rows.mean(-temperature(params) * entropy - jnp.sum(p * q, -1)),
            "temperature": own["temperature"]["log"] * rows.mean(still - wanted(rows.before, still)),
        }
        told = {f"loss/{name}": term for name, term in terms.items()}
        return sum(terms.values()), told | {"temperature": temperature(params), "entropy": rows.mean(entropy)}

    def of_action(params: PyTree, observation: PyTree, action: PyTree) -> Array:
        return ops.of_action(values(params["critic"], observation).min(0), action)

    return Losses(
        init=init, act=act, critic=of_critic, actor=of_actor, polyak=partial(follow, shared=front.shared),
        value=lambda params, seen: of_action(params, seen, jnp.argmax(logits(params["actor"], params, seen), -1)),
        of_action=of_action, action=lambda action: action,
        spread=lambda params, seen: inspection.policy_spread(spec.action, logits(params["actor"], params, seen)),
    )  # fmt: skip
