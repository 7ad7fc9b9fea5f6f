"""check_agent passes agents that keep their contracts, and names what is wrong with those that do not."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from rookery import envs
from rookery.algorithms.a2c import A2C
from rookery.algorithms.dqn import DQN
from rookery.algorithms.es import ES
from rookery.algorithms.ppo import PPO
from rookery.networks import NetworkConfig
from rookery.testing import SPEC, ContractBroken, check_agent, counting_agent, ledger_agent, summing_agent
from rookery.types import Agent, Decision, Gradients, Learned

SMALL = NetworkConfig(hidden=(4,))
GOOD: dict[str, tuple[Any, str]] = {
    "a2c": (A2C(rollout_length=4, value_steps=1, network=SMALL), "CartPole-v1"),
    "ppo-numbers": (PPO(rollout_length=4, epochs=1, minibatches=1, network=SMALL), "Pendulum-v1"),
    "dqn": (DQN(network=SMALL), "catch"),
    "es": (ES(network=SMALL), "CartPole-v1"),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_algorithm_of_ours_passes(name: str) -> None:
    algorithm, env = GOOD[name]
    spec = envs.spec_of(env)
    check_agent(algorithm.build(spec, num_updates=10), spec)


@pytest.mark.parametrize("agent", [counting_agent(), counting_agent(previous=True), summing_agent(), ledger_agent()])
def test_the_fakes_pass(agent: Agent) -> None:
    check_agent(agent, SPEC)


def test_the_algorithm_of_the_examples_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    module = importlib.import_module("custom_algorithm")
    spec = envs.spec_of("identity")
    check_agent(module.Reinforce(rollout_length=4).build(spec), spec)


def test_an_agent_whose_exploration_follows_its_params_passes() -> None:
    explore: Any = lambda params, env_index, num_envs, env_steps: {"x": np.asarray(env_index + params["offset"], np.float32)}
    check_agent(counting_agent()._replace(explore=explore), SPEC)


def test_learn_may_take_more_steps_than_gradients_ship_where_it_is_said() -> None:
    agent = A2C(rollout_length=4, value_steps=3, network=SMALL).build(SPEC)
    with pytest.raises(ContractBroken, match="not what learn does"):
        check_agent(agent, SPEC)
    check_agent(agent, SPEC, same_update=False)


# ------------------------------------------------------------------------------------------------ can it say no?

GOOD_ONE = summing_agent()


def acts(**changes: Any) -> dict[str, Any]:
    """An agent whose decision is changed: by a function of (decision, key, explore)."""

    def act(params: Any, observation: Any, memory: Any, key: Any, explore: Any) -> Decision:
        decision = GOOD_ONE.act(params, observation, memory, key, explore)
        return decision._replace(**{name: change(decision, key, explore) for name, change in changes.items()})

    return {"act": act}


def learns(**changes: Any) -> dict[str, Any]:
    """An agent whose Learned is changed: by a function of (learned, the state before)."""

    def learn(state: Any, batch: Any, key: Any) -> Learned:
        learned = GOOD_ONE.learn(state, batch, key)
        return learned._replace(**{name: change(learned, state) for name, change in changes.items()})

    return {"learn": learn, "gradients": None, "apply": None}


def starts(**changes: Any) -> dict[str, Any]:
    return {"init": lambda key: GOOD_ONE.init(key)._replace(**changes)}


def draws(key: Any, action: Any) -> Any:
    return jax.random.randint(key, action.shape, 0, 4)


def wide(params: Any, slow: Any, batch: Any, key: Any) -> Gradients:
    found = GOOD_ONE.gradients(params, slow, batch, key)  # type: ignore[misc]
    return found._replace(tree=found.tree | {"sum": jnp.zeros((3,))})


def doubled(state: Any, gradients: Any) -> Any:
    return GOOD_ONE.apply(GOOD_ONE.apply(state, gradients), gradients)._replace(updates=state.updates + 1)  # type: ignore[misc]


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "updates that begin at one": (starts(updates=jnp.ones((), jnp.int32)), "updates is the int32 scalar 0"),
    "updates of another type": (starts(updates=jnp.zeros(())), "not float32"),
    "params that are not finite": (starts(params={"sum": jnp.float32(np.nan)}), r"\['sum'\] is not finite"),
    "no state": ({"init": lambda key: {"w": jnp.zeros(3)}}, "init gives a TrainState, not a dict"),
    "a memory without columns": ({"memory": lambda B: jnp.zeros(())}, r"memory: .* must begin with \(4,\)"),
    "exploration of all environments": (
        {"explore": lambda *given: {"x": np.zeros(given[-2], np.float32)}}, r"explore: every leaf is \[4\]"
    ),
    "exploration that changes its form": (
        {"explore": lambda *given: {"x": np.zeros(4, np.float32)} | ({"late": np.zeros(4)} if given[-1] else {})},
        "explore after many environment steps has another structure",
    ),
    "greedy by chance": (acts(action=lambda d, key, _: draws(key, d.action)), "act depends on the key"),
    "an action too far": (acts(action=lambda d, *_: d.action + 4), "does not fit Discrete"),
    "an action of all": (acts(action=lambda d, *_: d.action[0]), "have shapes"),
    "fractions of actions": (acts(action=lambda d, *_: d.action * 1.0), "takes integers"),
    "a memory that grows": (
        acts(memory=lambda d, *_: d.memory | {"wide": jnp.zeros((4, 3))}),
        r"memory after act: leaf \['wide'\] is float32\[4, 3\]",
    ),
    "extras without columns": (acts(extras=lambda *_: {"value": jnp.zeros(())}), "act: extras"),
    "extras without names": (acts(extras=lambda *_: jnp.zeros(4)), "extras is a dict"),
    "a weight for each of others": (acts(weight=lambda *_: jnp.ones(3)), r"weight is \[4\] or \(\)"),
    "nothing learned": (learns(state=lambda new, old: new.state._replace(params=old.params)), "leaves all params as they are"),
    "an update that is not counted": (
        learns(state=lambda new, old: new.state._replace(updates=old.updates)), "goes from 0 to 0, not to 1"
    ),
    "another type after learning": (
        learns(state=lambda new, _: new.state._replace(params=new.state.params | {"offset": jnp.ones(())})),
        r"the state after learn: leaf .*offset.* is float32\[\] instead of int32\[\]",
    ),
    "a part that is lost": (learns(state=lambda new, old: new.state._replace(slow=())), "the state after learn has another"),
    "a report in rows": (learns(report=lambda new, old: {"loss": jnp.zeros(3)}), "must be a scalar"),
    "no report": (learns(report=lambda new, old: {}), "at least one number"),
    "a loss that is not finite": (learns(report=lambda new, old: {"loss": jnp.inf}), "report: leaf .*loss.* is not finite"),
    "priorities of rows": (learns(priorities=lambda new, old: jnp.ones((3, 4))), r"priorities are \[4\]"),
    "negative priorities": (learns(priorities=lambda new, old: -jnp.ones(4)), "a priority is negative"),
    "gradients that nobody applies": ({"apply": None}, "both or neither"),
    "gradients of another shape": ({"gradients": wide}, r"gradients: leaf \['sum'\] is float32\[3\]"),
    "a gradient that is applied twice": ({"apply": doubled}, "not what learn does: params"),
    "a trained part without gradient": ({"trained": ("offset", "policy")}, "there is none of 'policy'"),
    "a population of one": (
        {"perturb": lambda params, member, key: jax.tree.map(lambda x: jnp.stack([x] * len(member)), params)},
        "all members act with the same params",
    ),
    "members without an axis": ({"perturb": lambda params, member, key: params}, "axis of the members"),
    "health by another name": ({"inspect": lambda state, batch: {"fine": jnp.ones(())}}, "names begin with health/"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_an_agent_that_breaks_a_contract_is_told_which(name: str) -> None:
    changes, words = BROKEN[name]
    with pytest.raises(ContractBroken, match=words):
        check_agent(GOOD_ONE._replace(**changes), SPEC)


def test_learning_that_is_not_pure_is_found() -> None:
    calls: list[int] = []

    def count() -> np.float32:
        calls.append(1)
        return np.float32(len(calls))

    def learn(state: Any, batch: Any, key: Any) -> Learned:
        drawn = io_callback(count, jax.ShapeDtypeStruct((), np.float32))
        learned = GOOD_ONE.learn(state, batch, key)
        params = learned.state.params
        return learned._replace(state=learned.state._replace(params=params | {"sum": params["sum"] + drawn}))

    with pytest.raises(ContractBroken, match="not pure"):
        check_agent(GOOD_ONE._replace(learn=learn, gradients=None, apply=None), SPEC)
