"""R2D2 against the contracts: stored memory, burn-in, overlapping sequences, sequence priorities, replay.

One tanh recurrence instead of an LSTM. Kapturowski et al., 2019; the state after burn-in carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rookery.types import Agent, Array, Batch, Decision, Gradients, Learned, Needs, PyTree, Rollout, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class R2D2:
    burn_in: int = 4
    sequence_length: int = 8  # after the burn-in
    gamma: float = 0.997
    eta: float = 0.9
    target_period: int = 2
    width: int = 5

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        assert isinstance(spec.action, gymnasium.spaces.Discrete)
        num_actions = int(spec.action.n)
        num_inputs = int(np.prod(spec.observation.shape or ())) + num_actions + 1
        optimizer = optax.adam(1e-3)

        def step(params: PyTree, observation: PyTree, memory: Array) -> tuple[Array, Array]:
            """observation leaves [B, ...], memory [B, W] -> q [B, A], memory [B, W]"""
            previous = jax.nn.one_hot(observation["previous_action"], num_actions)
            parts = (observation["observation"], previous, observation["previous_reward"][..., None])
            memory = jnp.tanh(jnp.concatenate(parts, -1) @ params["inputs"] + memory @ params["core"])
            return memory @ params["head"], memory

        def unroll(params: PyTree, rollout: Rollout, memory: Array) -> tuple[Array, Array]:
            """-> q [T + 1, B, A], memory before each observation [T + 1, B, W]; reset where an episode starts"""
            fresh = jnp.concatenate([jnp.ones_like(rollout.valid[:1]), rollout.valid])  # row 0 was reset when stored

            def body(carry: Array, row: tuple[PyTree, Array]) -> tuple[Array, tuple[Array, Array]]:
                before = jnp.where(row[1][:, None] > 0, carry, start(len(row[1])))
                q, carry = step(params, row[0], before)
                return carry, (q, before)

            q, before = jax.lax.scan(body, memory, (rollout.observation, fresh))[1]
            return q, before

        def start(num: int) -> Array:
            return jnp.zeros((num, self.width))

        def init(key: Array) -> TrainState:
            shapes = {"inputs": (num_inputs, self.width), "core": (self.width,) * 2, "head": (self.width, num_actions)}
            keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
            params = {name: 0.3 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
            return TrainState(params, slow=params, optimizer=optimizer.init(params), updates=jnp.int32(0))

        def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
            q, memory = step(params, observation, memory)
            coin, choice = jax.random.split(key)
            random = jax.random.randint(choice, q.shape[:1], 0, num_actions)
            greedy = jax.random.uniform(coin, q.shape[:1]) >= explore["epsilon"]
            return Decision(jnp.where(greedy, jnp.argmax(q, -1), random), memory, {"q": q})

        def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
            return {"epsilon": np.float32(0.4) ** (1 + 7 * env_index.astype(np.float32) / max(1, num_envs - 1))}

        def errors(q: Array, q_next: Array, rollout: Rollout) -> Array:
            """q [T, B, A], q_next [T, B] -> temporal-difference errors [T, B], 0 where there was no transition"""
            chosen = jnp.take_along_axis(q, rollout.action[..., None], -1)[..., 0]
            return rollout.valid * (rollout.reward + rollout.discount * jax.lax.stop_gradient(q_next) - chosen)

        def priority(error: Array) -> Array:  # [T, B] -> [B]
            return self.eta * jnp.max(jnp.abs(error), 0) + (1 - self.eta) * jnp.mean(jnp.abs(error), 0)

        def process(params: PyTree, rollout: Rollout) -> tuple[Rollout, Array | None]:
            # The collector's discount has no gamma yet, so it is put in here, on a copy. The last row has no q_next.
            part = rollout._replace(discount=self.gamma * rollout.discount)
            q = rollout.extras["q"]
            names = ("action", "reward", "discount", "valid")
            part = part._replace(**{name: getattr(part, name)[:-1] for name in names})
            priorities = priority(errors(q[:-1], jnp.max(q[1:], -1), part)[self.burn_in :])
            return rollout._replace(extras={}), priorities  # q has served; it is not stored

        def loss(params: PyTree, slow: PyTree, batch: Batch) -> tuple[Array, Array]:
            rollout, n = batch.rollout, self.burn_in
            before = jax.lax.stop_gradient(unroll(params, rollout, rollout.memory)[1][n])
            names = ("observation", "action", "reward", "discount", "valid")
            part = rollout._replace(**{name: jax.tree.map(lambda x: x[n:], getattr(rollout, name)) for name in names})
            q, before_slow = unroll(params, part, before)[0], unroll(slow, rollout, rollout.memory)[1][n]
            best = jnp.argmax(q[1:], -1)[..., None]
            q_next = jnp.take_along_axis(unroll(slow, part, before_slow)[0][1:], best, -1)[..., 0]
            error = errors(q[:-1], q_next, part)
            return jnp.mean(batch.weight * jnp.mean(jnp.square(error), 0)), priority(error)

        def gradients(params: PyTree, slow: PyTree, batch: Batch, key: Array) -> Gradients:
            (value, _), tree = jax.value_and_grad(loss, has_aux=True)(params, slow, batch)
            return Gradients(tree, {"loss": value})

        def apply(state: TrainState, gradients: Gradients) -> TrainState:
            change, memory = optimizer.update(gradients.tree, state.optimizer, state.params)
            params, updates = optax.apply_updates(state.params, change), state.updates + 1
            refresh = updates % self.target_period == 0
            slow = jax.tree.map(lambda new, old: jnp.where(refresh, new, old), params, state.slow)
            return TrainState(params, slow, memory, updates)

        def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
            # Not `apply` of `gradients`: Gradients has no room for the priorities, so the loss is taken again here.
            (value, priorities), tree = jax.value_and_grad(loss, has_aux=True)(state.params, state.slow, batch)
            return Learned(apply(state, Gradients(tree, {})), {"loss": value}, priorities)

        length = self.burn_in + self.sequence_length
        needs = Needs(length, self.gamma, replay=True, previous=True)
        return Agent(init, start, act, explore, learn, needs, gradients, apply, process)
