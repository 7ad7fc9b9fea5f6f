"""A network of the user's own: a flax module as it is, or a pair (init, apply); and what is said of one that does not fit.

    torso=Residual(width=64)                    a module of flax.linen
    torso=(init, apply)                         functions: init(key, observation) -> params, apply(params, observation)
    torso=Layers(4, 64, rngs=nnx.Rngs(0))       a module of flax.nnx, with the weights that it has
    torso=functools.partial(Layers, 4, 64)      the same, made with `rngs` by the seed of the run

What it gives for observations [B, ...] is features [B, F], or an `Output`: then it is the whole network of an actor-critic.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks import encoders, units
from rookery.networks.config import NetworkConfig, Output
from rookery.types import Array, PyTree

Torso = Any  # one of the forms above
B = 3  # of the batch that is tried: with one, an axis that is lost would not show


class Encoding(NamedTuple):
    """A torso of any form, as two functions."""

    init: Callable[[Array, PyTree], PyTree]  # (key, observation [B, ...]) -> params
    apply: Callable[[PyTree, PyTree], PyTree]  # (params, observation [B, ...]) -> features [B, F], or an Output
    name: str = ""  # of the user's own, for messages


def encoding_of(torso: Torso) -> Encoding:
    """Read a torso in any of its forms; of its layers, only the features can be listened to."""
    given = _pair(torso)

    def init(key: Array, observation: PyTree) -> PyTree:
        params = _reading(given.name, observation, given.init, key, observation)
        if isinstance(torso, nn.Module) and (others := sorted(set(params) - {"params"})):
            raise ValueError(_STATE.format(name=given.name, others=", ".join(others)))
        return params

    def apply(params: PyTree, observation: PyTree) -> PyTree:
        features = _reading(given.name, observation, given.apply, params, observation)
        return features if isinstance(features, Output) else units.told(features)

    return Encoding(init, apply, given.name)


def is_torso(given: Any) -> bool:
    """Tell whether it is a network in one of the forms above; whether it fits is seen when it is tried."""
    try:
        return bool(_pair(given))
    except ValueError:
        return False


def _pair(torso: Torso) -> Encoding:
    if isinstance(torso, nn.Module):
        return Encoding(torso.init, torso.apply, f"torso {type(torso).__name__}")
    if isinstance(torso, (tuple, list)) and len(torso) == 2 and all(map(callable, torso)):
        return Encoding(torso[0], torso[1], f"torso ({', '.join(getattr(f, '__name__', 'a function') for f in torso)})")
    if _is_nnx(torso):
        return _nnx(torso, f"torso {type(torso).__name__}", lambda key: torso)
    if callable(torso) and _takes_rngs(torso):
        return _made_nnx(torso)
    if isinstance(torso, type) and issubclass(torso, nn.Module):
        raise ValueError(f"torso={torso.__name__} is a class: give a module of it, torso={torso.__name__}()")
    raise ValueError(f"torso={torso!r} is neither a flax module nor a pair of functions (init, apply)")


_STATE = (
    "{name} keeps {others} beside its parameters, which nobody would update: a network here is a function of its parameters "
    "and an observation. Take LayerNorm or GroupNorm for BatchNorm, and leave Dropout out"
)


def _is_nnx(torso: Torso) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(torso, nnx.Module)


def _nnx(module: Any, name: str, make: Callable[[Array], Any]) -> Encoding:
    """Make functions of a module of flax.nnx. make: (key) -> the module with its first weights."""
    from flax import nnx

    split: Any = nnx.split(module, nnx.Param, ...)
    graph, shapes, rest = split
    if others := sorted({type(part).__name__ for part in jax.tree.leaves(rest, is_leaf=lambda x: isinstance(x, nnx.Variable))}):
        raise ValueError(_STATE.format(name=name, others=", ".join(others)))

    def init(key: Array, observation: PyTree) -> PyTree:
        return nnx.to_pure_dict(nnx.split(make(key), nnx.Param, ...)[1])

    def apply(params: PyTree, observation: PyTree) -> PyTree:
        state = jax.tree.map(lambda leaf: leaf, shapes)  # a copy, to be filled
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(observation)

    return Encoding(init, apply, name)


def _made_nnx(factory: Callable[..., Any]) -> Encoding:
    """Make functions of a module that a class or a function of `rngs` makes, with weights by the seed."""
    from flax import nnx

    made = factory.func if isinstance(factory, functools.partial) else factory
    name = f"torso {getattr(made, '__name__', type(made).__name__)}"
    try:
        shapes = nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
    except TypeError as error:
        raise ValueError(f"{name} cannot be made of rngs alone: {error}") from error
    return _nnx(shapes, name, lambda key: factory(rngs=nnx.Rngs(key)))


def _takes_rngs(function: Callable[..., Any]) -> bool:
    """Tell whether it has a parameter `rngs`; the class of an nnx module hides those of its __init__."""
    function = function.func if isinstance(function, functools.partial) else function
    try:
        asked: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        return "rngs" in inspect.signature(asked).parameters
    except (TypeError, ValueError):
        return False


# ------------------------------------------------------------------------------------------- what does not fit


def _reading(name: str, observation: PyTree, function: Callable[..., Any], *args: Any) -> PyTree:
    """Call a function of the user's; where it raises, say what it was shown."""
    try:
        return function(*args)
    except Exception as error:
        raise ValueError(f"{name} cannot read {_described(observation)}: {type(error).__name__}: {error}") from error


def _described(observation: PyTree) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    return ", ".join(f"observation{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}" for path, leaf in leaves)


def check_given(
    own: Encoding, params: PyTree, space: gymnasium.Space, *, num_outputs: int | None, config: NetworkConfig
) -> None:  # fmt: skip
    """Refuse a torso whose features, or policy and value, have not the shape that is needed: by name, with both shapes.

    num_outputs: of the policy; None: only features are wanted.
    """
    given = jax.eval_shape(own.apply, params, encoders.zeros(space, B))
    if not isinstance(given, Output):
        _check_features(own.name, given)
        return
    if num_outputs is None:
        raise ValueError(f"{own.name} gives a policy and a value, which is for actor-critics; give features [B, F] here.")
    if config.core != "none" or config.heads == "separate":
        raise ValueError(
            f"{own.name} gives an Output, so it is the whole network: it cannot have network.core or network.heads='separate' "
            "behind it. Drop them, or give features [B, F]."
        )
    for leaf, array, expected in (("policy", given.policy, (B, num_outputs)), ("value", given.value, (B,))):
        _check_array(own.name, leaf, array)
        if array.shape != expected:
            why = {"policy": "what the distribution of the actions takes", "value": "one number each, as in value[:, 0]"}[leaf]
            given_shape = f"a {leaf} of shape {array.shape} for a batch of {B}"
            raise ValueError(f"{own.name} gives {given_shape}, expected {expected}: {why}")


def _check_features(name: str, features: Any) -> None:
    _check_array(name, "features", features)
    if features.ndim != 2 or features.shape[0] != B:
        raise ValueError(
            f"{name} must give features [B, F]; it gives features of shape {features.shape} for a batch of {B}, "
            f"expected ({B}, F): flatten all but the first axis, x.reshape(x.shape[0], -1)"
        )


def _check_array(name: str, leaf: str, array: Any) -> None:
    if not isinstance(array, (jax.Array, jax.ShapeDtypeStruct, np.ndarray)):
        raise ValueError(f"{name} gives {leaf} that are a {type(array).__name__}: give one array of floats")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} gives {leaf} of {array.dtype}: give floats")
