"""An algorithm of your own, complete in one file: REINFORCE with a learned baseline and importance weights.

    python examples/custom_algorithm.py
    rookery train impala --algorithm examples/custom_algorithm.py:Reinforce --env identity --max-weight 1.5

An algorithm is a frozen dataclass of hyper-parameters whose `build(spec)` gives an Agent: a tuple of pure functions
(rookery/types.py). Nothing here is inherited and nothing is registered. Its weights make it right on data that is a few
updates old, so the same file trains on Sync and on ActorLearner; set `max_lag=0` in Needs and ActorLearner refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rookery
from rookery import ops
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.sync import Sync
from rookery.types import Agent, Batch, Decision, Learned, Needs, PyTree, Rollout, Spec, TrainState

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    rollout_length: int = 16
    discount: float = 0.95
    learning_rate: float = 1e-2
    max_weight: float = 2.0

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: Any = None) -> Agent:
        num_symbols, num_actions = int(spec.observation.n), int(spec.action.n)  # type: ignore[attr-defined]
        optimizer = optax.adam(self.learning_rate)

        def init(key: Array) -> TrainState:
            params = {"logits": jnp.zeros((num_symbols, num_actions)), "value": jnp.zeros(num_symbols)}
            return TrainState(params, (), optimizer.init(params), jnp.zeros((), jnp.int32))

        def act(params: PyTree, observation: Array, memory: PyTree, key: Array, explore: Array) -> Decision:
            logits = params["logits"][observation]  # [B, A]
            action = jnp.where(explore > 0, jax.random.categorical(key, logits), logits.argmax(-1)).astype(jnp.int32)
            return Decision(action, memory, {"behaviour_logp": logp_of(logits, action)})

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            grads, report = jax.grad(loss, has_aux=True)(state.params, batch.rollout, max_weight=self.max_weight)
            step, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
            params = optax.apply_updates(state.params, step)
            return Learned(TrainState(params, (), optimizer_state, state.updates + 1), report, None)

        needs = Needs(self.rollout_length, self.discount)
        explore = lambda params, env_index, num_envs, env_steps: np.ones(len(env_index), np.float32)
        return Agent(init=init, memory=lambda B: (), act=act, explore=explore, learn=learn, needs=needs)


def loss(params: PyTree, rollout: Rollout, *, max_weight: float) -> tuple[Array, dict[str, Array]]:
    logp = logp_of(params["logits"][rollout.observation[:-1]], rollout.action)  # [T, B]
    value = params["value"][rollout.observation]  # [T + 1, B]
    advantage = ops.gae(value=value[:-1], value_next=value[1:], reward=rollout.reward, discount=rollout.discount,
                        valid=rollout.valid, lam=1.0)  # the return that followed, less the baseline  # fmt: skip
    weight = jnp.minimum(jnp.exp(logp - rollout.extras["behaviour_logp"]), max_weight)
    terms = {
        "policy": -jax.lax.stop_gradient(weight * advantage) * logp,
        "value": 0.5 * jnp.square(jax.lax.stop_gradient(value[:-1] + advantage) - value[:-1]),
    }
    means = {f"loss/{name}": ops.masked_mean(term, rollout.valid) for name, term in terms.items()}
    return sum(means.values()), means


def logp_of(logits: Array, action: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def main(total_steps: int = 40_000, runs: str = "runs") -> dict[str, rookery.Result]:
    results = {}
    for topology in (Sync(num_envs=16), ActorLearner(num_envs=16)):
        name = type(topology).__name__
        results[name] = rookery.train(Reinforce(), env="identity", topology=topology, total_steps=total_steps, runs=runs)
        m = results[name].metrics
        print(f"{name}: return {m['return_mean']:.1f} of 8, lag {m['policy_lag_mean']:.1f}, {m['seconds']:.1f} s")
    return results


if __name__ == "__main__":
    main()
