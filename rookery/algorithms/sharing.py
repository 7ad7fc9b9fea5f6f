"""Programs that several runs of a process share: agents that differ in their leaves alone are built of the same functions.

jax compiles a function once, and knows it again by its identity. A search over learning rates would compile everything anew
for each trial, though the programs are equal: a leaf is an argument of theirs (hyper.py). So the functions of the last few
agents are kept, and an agent like one of them differs in `init`, which gives its own leaves, and in the discount that its
`Needs` tell the host. What is keyed by an agent and compiled is keyed by `program_of` it.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rookery.types import Agent, Array, Spec, TrainState

KEPT = 8  # agents: their functions, and what jax has compiled of them


@dataclass(frozen=True)
class OwnLeaves:
    """An `init` that shares its program, and gives the leaves values of its own."""

    shared: Any  # the `init` of the agent that was built first
    discount: float  # of that agent
    leaves: tuple[tuple[str, float], ...]

    def __call__(self, key: Array) -> TrainState:
        return self.given(self.shared(key))

    def given(self, state: TrainState) -> TrainState:
        """Put the leaves into a state that has those of another."""
        own = {name: jax.device_put(np.array(value, np.float32)) for name, value in self.leaves}
        return state._replace(params=state.params | {"hyper": own})


@dataclass(frozen=True)
class _SharedAgent:
    """An agent, and all that its functions depend on."""

    algorithm: Any  # its leaves set aside
    spec: Spec
    num_updates: int | None
    torso: Any
    agent: Agent

    def serves(self, algorithm: Any, spec: Spec, num_updates: int | None, torso: Any) -> bool:
        if type(self.algorithm) is not type(algorithm) or self.num_updates != num_updates or self.torso is not torso:
            return False
        try:
            return bool(self.algorithm == algorithm and self.spec == spec)
        except Exception:  # what holds arrays cannot be compared
            return False


_kept: list[_SharedAgent] = []  # the newest last
_lock = threading.Lock()


def build(algorithm: Any, spec: Spec, *, num_updates: int | None, torso: Any) -> Agent:
    """Build an agent; where one is kept that differs in the leaves alone, of its functions."""
    agent: Agent = algorithm.build(spec, num_updates=num_updates, torso=torso)
    names = getattr(algorithm, "leaves", ())
    if not names or not dataclasses.is_dataclass(algorithm):
        return agent
    leaves = tuple((name, float(getattr(algorithm, name))) for name in names)
    static = copy.copy(algorithm)
    for name in names:
        object.__setattr__(static, name, None)  # not `replace`: it may refuse what is no number
    with _lock:
        found = next((kept for kept in _kept if kept.serves(static, spec, num_updates, torso)), None)
        if found is None:
            _kept.append(_SharedAgent(static, spec, num_updates, torso, agent))
            del _kept[:-KEPT]
            return agent
        _kept.remove(found)
        _kept.append(found)
    twin = found.agent
    return twin._replace(init=OwnLeaves(twin.init, twin.needs.discount, leaves), needs=agent.needs)


def program_of(agent: Agent) -> Agent:
    """Return the agent as programs see it: equal for all that share theirs, whose leaves and discount are arguments."""
    if not isinstance(agent.init, OwnLeaves):
        return agent
    needs, discount = agent.needs, agent.init.discount
    returns = discount if needs.return_discount == needs.discount else needs.return_discount
    return agent._replace(init=agent.init.shared, needs=needs._replace(discount=discount, return_discount=returns))
