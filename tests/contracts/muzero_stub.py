"""MuZero against the contracts: `act` searches, visits and root values travel in extras, targets are unrolled.

The search is one ply deep over the learned model: enough to have visits and a root value. The observation has a leaf
`state` for searches on true rules; `process` drops it, so it is never stored. Two players who alternate are told by a
negative discount in `needs`, and nowhere else. Schrittwieser et al., 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.config import ReplayConfig, TableSpec
from rookery.types import Agent, Array, Batch, Decision, Learned, Needs, PyTree, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class MuZero:
    num_unrolled: int = 3
    td_steps: int = 2
    discount: float = -1.0  # minus gamma: the value of the next position is the other player's
    num_simulations: int = 8
    num_sampled_moves: int = 4
    width: int = 6
    batch_size: int = 4
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(capacity=200, min_size=4, samples_per_insert=4.0, selector="prioritized")
    )

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        assert isinstance(spec.action, gymnasium.spaces.Discrete)
        assert isinstance(spec.observation, gymnasium.spaces.Dict)
        num_inputs, num_actions = int(np.prod(spec.observation["board"].shape or ())), int(spec.action.n)

        def represent(params: PyTree, board: Array) -> Array:
            return jnp.tanh(board @ params["represent"])  # [..., W]

        def advance(params: PyTree, latent: Array, action: Array) -> tuple[Array, Array]:
            x = jnp.concatenate([latent, jax.nn.one_hot(action, num_actions)], -1) @ params["advance"]
            return jnp.tanh(x[..., :-1]), x[..., -1]  # latent [..., W], reward [...]

        def predict(params: PyTree, latent: Array) -> tuple[Array, Array]:
            x = latent @ params["predict"]
            return x[..., :-1], x[..., -1]  # logits [..., A], value [...]

        def init(key: Array) -> TrainState:
            shapes = {
                "represent": (num_inputs, self.width),
                "advance": (self.width + num_actions, self.width + 1),
                "predict": (self.width, num_actions + 1),
            }
            keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
            params = {name: 0.3 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
            return TrainState(params, slow=(), optimizer=(), updates=jnp.int32(0))

        def search(params: PyTree, board: Array) -> tuple[Array, Array]:
            """board [B, ...] -> visits [B, A], value of the root [B]"""
            latent = represent(params, board)
            prior, _ = predict(params, latent)  # [B, A]
            each = jnp.broadcast_to(jnp.arange(num_actions), prior.shape)
            child, reward = advance(params, jnp.repeat(latent[:, None], num_actions, 1), each)
            q = reward + self.discount * predict(params, child)[1]  # [B, A]
            visits = jax.nn.softmax(prior + self.num_simulations * q)
            return visits, jnp.sum(visits * q, -1)

        def refine(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Batch:
            """Reanalyze: search the stored positions again, with newer parameters."""
            rollout = batch.rollout
            T, B = rollout.reward.shape
            visits, root = search(params, rollout.observation["board"][:-1].reshape(T * B, -1))
            fresh = {"visits": visits.reshape(T, B, -1), "root_value": root.reshape(T, B)}
            return batch._replace(rollout=rollout._replace(extras=rollout.extras | fresh))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            visits, root = search(params, observation["board"])
            heat = jnp.where(memory["move"] < self.num_sampled_moves, explore["temperature"], 0.0)
            sampled = jax.random.categorical(key, jnp.log(visits) / jnp.maximum(heat, 1e-6)[:, None])
            action = jnp.where(heat > 0, sampled, jnp.argmax(visits, -1))
            return Decision(action, {"move": memory["move"] + 1}, {"visits": visits, "root_value": root})

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            return {"temperature": np.full(len(env_index), 1.0 if env_steps < 500_000 else 0.5, np.float32)}

        def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
            root = rollout.extras["root_value"]
            rollout = rollout._replace(observation={"board": rollout.observation["board"]})
            surprise = jnp.abs(root[0] - targets(rollout, rollout.discount * self.discount)[0])  # [B] of the first position
            return rollout, jnp.broadcast_to(surprise, rollout.reward.shape)

        def targets(rollout: Rollout, discount: Array) -> Array:
            """-> value targets [K + 1, B]: td_steps rewards, then the root value found when the move was played"""

            def back(acc: Array, row: Any) -> tuple[Array, None]:
                reward, factor, valid = row
                return valid * (reward + factor * acc), None

            found = []
            for k in range(self.num_unrolled + 1):
                rows = tuple(x[k : k + self.td_steps] for x in (rollout.reward, discount, rollout.valid))
                found.append(jax.lax.scan(back, rollout.extras["root_value"][k + self.td_steps], rows, reverse=True)[0])
            return jnp.stack(found)

        def loss(params: PyTree, rollout: Rollout, weight: Array) -> tuple[Array, Array]:
            target = targets(rollout, rollout.discount)
            latent = represent(params, rollout.observation["board"][0])
            alive, total, first = jnp.ones_like(weight), jnp.zeros_like(weight), jnp.zeros_like(weight)
            for k in range(self.num_unrolled + 1):
                logits, value = predict(params, latent)
                policy = -jnp.sum(rollout.extras["visits"][k] * jax.nn.log_softmax(logits), -1)
                first = value if k == 0 else first
                here = rollout.valid[k] * alive  # 0 from the reset row on: nothing is learned across episodes
                latent, reward = advance(params, latent, rollout.action[k])
                terms = policy + jnp.square(value - target[k]) + jnp.square(reward - rollout.reward[k])
                total, alive = total + here * terms, here * jnp.where(rollout.discount[k] == 0, 0.0, 1.0)
            return jnp.mean(weight * total), jnp.abs(first - target[0])

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            found = jax.value_and_grad(loss, has_aux=True)(state.params, batch.rollout, batch.weight)
            (value, priorities), tree = found
            params = jax.tree.map(lambda p, g: p - 1e-2 * g, state.params, tree)
            return Learned(TrainState(params, (), (), state.updates + 1), {"loss": value}, priorities)

        def memory(num: int) -> PyTree:
            return {"move": jnp.zeros(num, jnp.int32)}

        length = self.num_unrolled + self.td_steps + 1
        table = TableSpec(self.replay, self.batch_size, sequence_length=length, extras=("visits", "root_value"))
        needs = Needs(length, self.discount, replay=True, table=table)
        return Agent(init, memory, act, explore, learn, needs, process=process, refine=refine)
