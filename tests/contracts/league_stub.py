"""A two-player league against the contracts: several named policies and learners, the opponent fixed per episode.

`combine` makes one Agent of several: its parameters, memories and states are dicts by name. Seats alternate, so the
game's discount is -gamma; `main` plays the even moves and one of the others, drawn when the episode starts and kept in
the memory, the odd ones. Who moved is an extra of every row; each learner sees the whole batch and its own rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from ppo_stub import PPO

from rookery.types import Agent, Array, Batch, Decision, Learned, PyTree, Report, Spec, TrainState


@dataclass(frozen=True, kw_only=True)
class League:
    names: tuple[str, ...] = ("main", "exploiter", "historical")  # the first is at home in every match
    learners: tuple[str, ...] = ("main", "exploiter")  # the others are frozen
    gamma: float = 0.99

    def build(self, spec: Spec, *, num_updates: int | None = None, torso: object = None) -> Agent:
        return combine({name: PPO(gamma=-self.gamma).build(spec) for name in self.names}, self.learners)


def combine(agents: dict[str, Agent], learners: tuple[str, ...]) -> Agent:
    """One agent of several that share their action space and the structure of their extras."""
    names = tuple(agents)
    needs = {agent.needs for agent in agents.values()}
    if len(needs) != 1:
        raise ValueError(f"policies {', '.join(names)} ask for different rollouts ({needs}); give them the same needs")

    def init(key: Array) -> TrainState:
        states = {name: agents[name].init(jax.random.fold_in(key, i)) for i, name in enumerate(names)}
        match = jnp.ones(len(names) - 1)  # the coordinator's weights of the opponents, published with the rest
        params = {"match": match, **{name: state.params for name, state in states.items()}}
        slow, optimizer = ({name: getattr(s, part) for name, s in states.items()} for part in ("slow", "optimizer"))
        return TrainState(params, slow, optimizer, jnp.int32(0))

    def memory(num: int) -> PyTree:
        unset = {"opponent": jnp.full(num, -1, jnp.int32), "move": jnp.zeros(num, jnp.int32)}
        return {**unset, **{name: agent.memory(num) for name, agent in agents.items()}}

    def act(params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: PyTree) -> Decision:
        draw, *keys = jax.random.split(key, 1 + len(names))
        drawn = 1 + jax.random.categorical(draw, jnp.log(params["match"]), shape=memory["opponent"].shape)
        drawn = jnp.where(explore["sample"] > 0, drawn, 1 + jnp.argmax(params["match"]))  # 0 = greedy, opponent too
        opponent = jnp.where(memory["opponent"] < 0, drawn, memory["opponent"]).astype(jnp.int32)
        policy = jnp.where(memory["move"] % 2 == 0, 0, opponent)  # [B] who moves
        chosen: Decision | None = None
        for i, name in enumerate(names):  # every policy decides for every column: shapes stay fixed
            mine = agents[name].act(params[name], observation, memory[name], keys[i], explore)
            memory = {**memory, name: mine.memory}
            chosen = mine if chosen is None else choose(policy == i, mine, chosen)
        assert chosen is not None
        memory = {**memory, "opponent": opponent, "move": memory["move"] + 1}
        return Decision(chosen.action, memory, {**chosen.extras, "policy": policy, "opponent": opponent})

    def choose(condition: Array, a: Decision, b: Decision) -> Decision:
        def pick(x: Array, y: Array) -> Array:
            return jnp.where(condition.reshape((-1,) + (1,) * (x.ndim - 1)), x, y)

        return Decision(jax.tree.map(pick, a.action, b.action), (), jax.tree.map(pick, a.extras, b.extras))

    def learn(state: TrainState, batch: Batch, key: Array) -> Learned:
        params, slow, optimizer = dict(state.params), dict(state.slow), dict(state.optimizer)
        report: Report = {}
        for name in learners:
            valid = batch.rollout.valid * (batch.rollout.extras["policy"] == names.index(name))
            # Wrong on purpose, and a finding: valid = 0 also cuts the recursion, so a row of another player ends the
            # return. There is no column that says "part of the recursion, not of the loss".
            rollout = batch.rollout._replace(valid=valid, memory=batch.rollout.memory[name])
            own = TrainState(params[name], slow[name], optimizer[name], state.updates)
            own_key = jax.random.fold_in(key, names.index(name))
            learned = agents[name].learn(own, batch._replace(rollout=rollout), own_key)
            params[name], slow[name], optimizer[name], _ = learned.state
            report |= {f"{name}/{entry}": value for entry, value in learned.report.items()}
        return Learned(TrainState(params, slow, optimizer, state.updates + 1), report, priorities=None)

    def explore(params: PyTree, env_index: Array, num_envs: int, env_steps: int) -> PyTree:
        return {"sample": np.ones(len(env_index), np.float32)}

    return Agent(init, memory, act, explore, learn, needs.pop())
