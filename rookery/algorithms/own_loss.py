"""A loss of the user's own in the place of an algorithm's: how it is called, and what is said of one that does not fit.

    def my_loss(params, rollout, *, model, config):
        out = model.evaluate(params, rollout)  # logp, entropy, value, value_next: each [T, B]
        ...
        return ops.masked_mean(error, ops.row_weights(rollout)), {"loss/mine": ...}

    rookery.train(A2C(loss=my_loss), env="CartPole-v1")

It has the form of `a2c.loss`, `pg.loss`, `vtrace.loss` and `ppo.loss` (there, `rollout` is a minibatch, `ppo.Sequences`), so it
may call the one that it replaces. What it needs of `model` and `config` it names; the report may be left out. Networks,
normalisers, optimizer, clipping and schedules stay those of the algorithm. The loss itself is reported by its function's name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery.types import Array, PyTree

OwnLoss = Any  # (params, rollout, *, model, config) -> loss [], or (loss [], report); None: the algorithm's


def chosen(own: OwnLoss, ours: Callable[..., tuple[Array, Any]]) -> Callable[..., tuple[Array, Any]]:
    """Return the loss to learn by: the algorithm's own, or the user's with its answers checked."""
    if own is None:
        return ours
    if not callable(own):
        raise ValueError(f"loss={own!r} is no function: give one of (params, rollout, *, model, config)")
    return functools.partial(_called, own)


def name_of(own: OwnLoss) -> str:
    """Return the name of a loss, for messages and reports."""
    while isinstance(own, functools.partial):
        own = own.func
    return str(getattr(own, "__name__", type(own).__name__)).strip("<>")


def _called(own: OwnLoss, params: PyTree, rollout: Any, *, model: Any, config: Any) -> tuple[Array, Any]:
    name, given = name_of(own), {"model": model, "config": config}
    taken = {key: value for key, value in given.items() if _takes(own, key)}
    try:
        inspect.signature(own).bind(params, rollout, **taken)
    except TypeError as error:
        raise ValueError(f"a loss is called as {name}(params, rollout, model=model, config=config): {error}") from error
    try:
        answer = own(params, rollout, **taken)
    except (KeyError, AttributeError) as error:
        raise ValueError(_missing(name, error, params, rollout)) from error
    total, report = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
    total = _scalar(total, f"{name} gives a loss")
    if not jnp.issubdtype(total.dtype, jnp.floating):
        raise ValueError(f"{name} gives a loss of {total.dtype}: a gradient needs a float")
    if not isinstance(report, dict) or not all(isinstance(key, str) for key in report):
        raise ValueError(f"{name} gives {_kind(report)} beside its loss: a report is a dict, name -> scalar")
    report = {key: _scalar(value, f"{name} reports {key!r}") for key, value in report.items()}
    return total, {f"loss/{name}": total} | report


def _takes(own: OwnLoss, key: str) -> bool:
    parameters = inspect.signature(own).parameters
    return key in parameters or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def _scalar(value: Any, what: str) -> Array:
    if not isinstance(value, (jax.Array, int, float)) and not hasattr(value, "__array__"):
        raise ValueError(f"{what} that is {_kind(value)}, expected one number")
    array = jnp.asarray(value)
    if array.shape != ():
        raise ValueError(
            f"{what} of shape {array.shape}, expected one number, shape (): reduce it once, over the rows that count, "
            "ops.masked_mean(x, ops.row_weights(rollout))"
        )
    return array


def _missing(name: str, error: KeyError | AttributeError, params: PyTree, rollout: Any) -> str:
    what = repr(error.args[0]) if isinstance(error, KeyError) else str(error)
    extras = getattr(rollout, "extras", None)
    there = [f"{type(rollout).__name__} has {', '.join(rollout._fields)}"]
    there += [f"its extras are {', '.join(extras) or 'empty'}"] if isinstance(extras, dict) else []
    there += [f"params are {', '.join(params)}"] if isinstance(params, dict) else []
    remedy = "; VTrace keeps behaviour_logp of what acted" if "behaviour_logp" in what else ""
    return f"{name} asks for what is not there: {what}. {'; '.join(there)}{remedy}"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
