"""check_agent: does an Agent keep what rookery/types.py promises of it?

    check_agent(MyAlgorithm().build(spec), spec)

It acts and learns on random experience of the right form (experience.py), compiled as the workers compile it. What it cannot
see is whether anything is learned: that needs an environment and a minute.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import ops, spaces
from rookery.testing.contracts import (
    require,
    require_close,
    require_finite,
    require_layout,
    require_leading,
    same,
)
from rookery.testing.experience import explored, on_device, random_batch, random_observation
from rookery.types import Agent, Batch, Decision, Gradients, Learned, PyTree, Spec, TrainState

LONG = 10**9  # environment steps, so many that every schedule of exploration has ended


def check_agent(
    agent: Agent, spec: Spec, *, batch: Batch | None = None, num_envs: int = 4, seed: int = 0,
    same_update: bool = True, rtol: float = 1e-4, atol: float = 1e-5,
) -> None:  # fmt: skip
    """Assert the contracts of an agent: layouts, greedy actions, exploration, updates, gradients.

    batch: what `learn` is given, where it cannot be made of random rollouts; same_update: False where `learn` takes several
    steps on a batch, and `gradients` ships the first; rtol, atol: between the two programs, which may round differently.
    Raises ContractBroken.
    """
    state = jax.jit(agent.init)(ops.random.key(seed))
    _check_init(state)
    explore = _check_explore(agent, state.params, num_envs)
    _check_act(agent, spec, state.params, explore, num_envs)
    given = on_device(batch or random_batch(agent, spec, state.params, num_envs=num_envs, seed=seed))
    learned = _check_learn(agent, state, given)
    applied = _check_gradients(agent, state, given)
    for part in ("params", "slow") if applied is not None and same_update else ():
        what = f"apply(gradients) is not what learn does: {part}"
        require_close(what, getattr(learned.state, part), getattr(applied, part), rtol=rtol, atol=atol)
    if agent.perturb is not None:
        _check_perturb(agent.perturb, state.params, num_envs)
    if agent.inspect is not None:
        _check_inspect(jax.jit(agent.inspect)(state, given))


def _check_init(state: Any) -> None:
    require(isinstance(state, TrainState), f"init gives a TrainState, not a {type(state).__name__}")
    count = np.asarray(state.updates)
    require(
        count.shape == () and count.dtype == np.int32 and count == 0,
        f"init: updates is the int32 scalar 0, not {count.dtype.name}{list(count.shape)} {count}",
    )
    require_finite("init: params", state.params)


def _check_explore(agent: Agent, params: PyTree, num_envs: int) -> PyTree:
    """Check `explore`; return what `act` is given to explore with."""
    B = num_envs
    index = B + np.arange(B)  # the second of two collectors
    start, later = (explored(agent, params, index, 2 * B, steps) for steps in (0, LONG))
    for explore in (start, later):
        for leaf in jax.tree.leaves(explore):
            shape = np.shape(leaf)
            require(shape == (B,), f"explore: every leaf is [{B}], one number for each environment asked about, not {shape}")
        require_finite("explore", explore)
    require_layout("explore after many environment steps", start, later)
    return start


def _check_act(agent: Agent, spec: Spec, params: PyTree, explore: PyTree, num_envs: int) -> None:
    B, act = num_envs, jax.jit(agent.act)
    memory = agent.memory(B)
    require_leading("memory", memory, (B,))
    seen = spaces.with_previous(spec) if agent.needs.previous else spec
    observation = random_observation(seen.observation, B, np.random.default_rng(0))
    decision = act(params, observation, memory, ops.random.key(1), explore)
    require(isinstance(decision, Decision), f"act gives a Decision, not a {type(decision).__name__}")
    require_layout("the memory after act", memory, decision.memory)
    require(isinstance(decision.extras, dict), f"act: extras is a dict, not a {type(decision.extras).__name__}")
    require_leading("act: extras", decision.extras, (B,))
    if np.shape(decision.weight) != (0,):
        require(np.shape(decision.weight) == (B,), f"act: weight is [{B}] or (), not {np.shape(decision.weight)}")
    greedy = jax.tree.map(np.zeros_like, explore)
    for how, numbers in (("exploring", explore), ("greedy", greedy)):
        action = act(params, observation, memory, ops.random.key(1), numbers).action
        try:
            spaces.canonical_action(spec.action, jax.tree.map(np.asarray, action))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            require(False, f"act, {how}: the action does not fit {spec.action}: {error}")
        like = spaces.zeros(spec.action, (B,))
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(action)]
        wanted = [np.shape(leaf) for leaf in jax.tree.leaves(like)]
        require(shapes == wanted, f"act, {how}: actions of {spec.action} have shapes {wanted}, not {shapes}")
    actions = [act(params, observation, memory, ops.random.key(key), greedy).action for key in range(5)]
    require(
        all(same(actions[0], other) for other in actions),
        "act depends on the key where `explore` is all zeros: zeros mean greedy, and an evaluation could not be repeated",
    )


def _check_learn(agent: Agent, state: TrainState, batch: Batch) -> Learned:
    learn, key = jax.jit(agent.learn), ops.random.key(2)
    learned = learn(state, batch, key)
    require(isinstance(learned, Learned), f"learn gives a Learned, not a {type(learned).__name__}")
    require_layout("the state after learn", state, learned.state)
    count = int(learned.state.updates)
    require(count == 1, f"learn: updates goes from 0 to {count}, not to 1")
    _check_report("learn", learned.report)
    require_finite("learn: params", learned.state.params)
    require(not same(learned.state.params, state.params), "learn leaves all params as they are: nothing is learned")
    _check_priorities("learn", learned.priorities, batch)
    again = learn(learned.state, batch, key)
    require_layout("the state after a second learn", state, again.state)
    require(same(learned, learn(state, batch, key)), "learn gives something else for the same arguments: it is not pure")
    return learned


def _check_gradients(agent: Agent, state: TrainState, batch: Batch) -> TrainState | None:
    """Check `gradients` and `apply`; return the state after `apply`, None where there are no gradients."""
    both = (agent.gradients is None) == (agent.apply is None)
    require(both, "gradients and apply: an agent has both or neither")
    if agent.gradients is None or agent.apply is None:
        return None
    found = jax.jit(agent.gradients)(state.params, state.slow, batch, ops.random.key(2))
    require(isinstance(found, Gradients), f"gradients gives a Gradients, not a {type(found).__name__}")
    if agent.trained is not None:
        for name in agent.trained:
            require(name in found.tree, f"gradients: there is none of {name!r}, which is in `trained`")
            require_layout(f"gradients: the part {name!r}", state.params[name], found.tree[name])
    else:
        require_layout("gradients", state.params, found.tree)
    _check_report("gradients", found.report)
    _check_priorities("gradients", found.priorities, batch)
    applied = jax.jit(agent.apply)(state, found)
    require_layout("the state after apply", state, applied)
    count = int(applied.updates)
    require(count == 1, f"apply: updates goes from 0 to {count}, not to 1")
    return applied


def _check_report(what: str, report: Any) -> None:
    require(isinstance(report, dict) and report, f"{what}: the report is a dict with at least one number")
    for name, value in report.items():
        require(np.shape(value) == (), f"{what}: {name!r} of the report has shape {np.shape(value)}, and must be a scalar")
    require_finite(f"{what}: report", report)


def _check_priorities(what: str, priorities: Any, batch: Batch) -> None:
    B = batch.rollout.reward.shape[1]
    if priorities is not None:
        require(np.shape(priorities) == (B,), f"{what}: priorities are [{B}], one for each column, not {np.shape(priorities)}")
        require((np.asarray(priorities) >= 0).all(), f"{what}: a priority is negative")


def _check_perturb(perturb: Any, params: PyTree, num_envs: int) -> None:
    population = jax.jit(perturb)(params, jnp.arange(num_envs), ops.random.key(0))
    wanted = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *np.shape(x))), params)
    require_layout("perturb: params with the axis of the members in front", wanted, population)
    spread = any(not np.array_equal(leaf[0], leaf[-1]) for leaf in map(np.asarray, jax.tree.leaves(population)))
    require(num_envs < 3 or spread, "perturb: all members act with the same params")


def _check_inspect(report: Any) -> None:
    _check_report("inspect", report)
    for name in report:
        require(name.startswith("health/"), f"inspect: names begin with health/, {name!r} does not")
