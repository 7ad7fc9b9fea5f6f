"""Hyper-parameters as leaves: numbers of an algorithm that may change while a run goes on, without compiling anything again.

An algorithm names those of its fields in `leaves`; all others are static, because shapes, the form of the program or what
lies in a table depend on them. `params["hyper"]` has one float32 scalar for each: they travel, are saved and are published
with the network. Nothing trains them: gradients are those of `Agent.trained`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array, PyTree

Config = TypeVar("Config")


def leaves(config: Any) -> dict[str, Array]:
    """Give the leaves of a dataclass of hyper-parameters their first values: what `init` puts into params["hyper"]."""
    return {name: jnp.asarray(getattr(config, name), jnp.float32) for name in config.leaves}


def read(config: Config, params: PyTree) -> Config:
    """Return the same hyper-parameters with the leaves that `params` hold, as arrays; where there are none, as they are."""
    found = _of(params)
    return dataclasses.replace(config, **jax.lax.stop_gradient(found)) if found else config  # type: ignore[type-var]


def on_host(config: Config, params: PyTree) -> Config:
    """Do as `read`, in floats. Each is the shortest decimal that its float32 stands for: 0.4 is 0.4, as it was typed."""
    found = {name: float(str(np.float32(value))) for name, value in _of(params).items()}
    return dataclasses.replace(config, **found) if found else config  # type: ignore[type-var]


def leaf(params: PyTree, name: str, otherwise: Any) -> Any:
    """Return one leaf, or what stands for it in an agent that has none of that name."""
    return _of(params).get(name, otherwise)


def tuned(params: PyTree, values: Mapping[str, float]) -> PyTree:
    """Return the parameters with some leaves set. ValueError names those that there are where one is unknown."""
    there = _of(params)
    if unknown := sorted(values.keys() - there.keys()):
        known = f"those that can are {', '.join(sorted(there))}" if there else "this agent has none that can"
        raise ValueError(f"{', '.join(unknown)} cannot be set while a run goes on: {known}")
    set_to = {name: jnp.asarray(np.full(np.shape(there[name]), value, np.float32)) for name, value in values.items()}
    return params | {"hyper": there | set_to} if set_to else params


def _of(params: PyTree) -> dict[str, Any]:
    found: dict[str, Any] = params.get("hyper", {}) if isinstance(params, dict) else {}
    return found
