"""Arguments and results on their way through Ray's object store: what is copied, and what is passed by reference.

An array that comes out of the store is a view of it, and keeps its memory there for as long as it lives; whoever keeps one
copies it. A call is written as `method keyword ...` with its values side by side, because Ray resolves a reference only
where it is an argument itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ray

from rookery.runtime.ray.cluster import raylet
from rookery.runtime.ray.errors import LOST


class Shared:
    """An argument for many workers: put into the object store once, when the first of them is called with it."""

    def __init__(self, value: Any) -> None:
        self._value, self._ref = value, None  # type: Any, Any

    def ref(self) -> Any:
        """Return the reference that Ray resolves where it is an argument."""
        if self._ref is None:
            raylet.require()
            self._ref, self._value = ray.put(host_arrays(self._value)), None
        return self._ref


class Kept(Shared):
    """A result that stays in the object store where it was made, until another worker is called with it."""

    def __init__(self, ref: Any) -> None:
        self._value, self._ref = None, ref


# ---------------------------------------------------------------------------------------------- the driver's side


def write_call(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Write a call as an actor takes it: `method keyword ...`, and all values side by side, so that Ray resolves each."""
    return " ".join((method.__name__, *kwargs)), *args, *kwargs.values()


def reference(value: Any) -> Any:
    """Replace a Shared by its reference; in a list, too: what is there is given to the worker as views of the store."""
    if isinstance(value, list) and any(isinstance(item, (Shared, ray.ObjectRef)) for item in value):
        return [item.ref() if isinstance(item, Shared) else item for item in value]
    return value.ref() if isinstance(value, Shared) else value


def array_bytes(tree: Any) -> int:
    """Count the bytes of the numpy arrays of a tree."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray))


# ----------------------------------------------------------------------------------------------- the actor's side


def read_call(asked: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Read what `write_call` has written. -> method, positional arguments, keyword arguments."""
    method, *names = asked.split()
    first = len(values) - len(names)
    return method, values[:first], dict(zip(names, values[first:]))


def resolve(value: Any) -> Any:
    """Return what a worker is given for an argument; None for what was lost with the machine that it lay on."""
    if not isinstance(value, list) or not any(isinstance(item, ray.ObjectRef) for item in value):
        return device_copies((value,))[0]
    found: list[Any] = []
    for ref in value:
        try:
            found.append(ray.get(ref))
        except LOST:
            found.append(None)
    return found


def device_copies(args: tuple) -> tuple:
    """Copy arrays, which are views of the object store, to this worker's own device, once."""
    return jax.tree.map(lambda x: jnp.array(x) if isinstance(x, np.ndarray) else x, args)


def host_arrays(tree: Any) -> Any:
    """Replace arrays of a device by numpy arrays."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)
