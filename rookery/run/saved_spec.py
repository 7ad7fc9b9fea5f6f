"""The spaces of an environment as plain JSON, so that a checkpoint is loaded where its environment cannot be made.

    {"id": "CartPole-v1", "observation": node, "action": node, "raw": [node, node], "pool": {"frame_stack": 4, ...}}

A node is {"box": {"shape", "dtype", "low", "high"}}, {"discrete": {"n", "start", "dtype"}}, {"multi_discrete": {"nvec",
"start", "dtype"}}, {"multi_binary": {"n"}}, {"dict": [[key, node], ...]} or {"tuple": [node, ...]}. A bound is a number,
or nested lists that are broadcast to the shape: along an axis where all are the same, one is written.

Who reads a record trusts nothing in it: kinds, types and sizes are checked before anything is allocated.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs

from rookery import spaces
from rookery.envs.options import PoolOptions
from rookery.types import Spec

LARGEST = 1 << 24  # numbers in an item of a space
DEEPEST, WIDEST = 16, 4096  # dicts and tuples inside each other, and parts of one
DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
)
_WORDS = {"inf": math.inf, "-inf": -math.inf}


def record_of(spec: Spec) -> dict[str, Any] | None:
    """Write down a spec; None where it holds what plain JSON cannot say: then its environment is needed to load a policy."""
    try:
        return {
            "id": str(spec.id),
            "observation": _node(spec.observation),
            "action": _node(spec.action),
            "raw": None if spec.raw is None else [_node(space) for space in spec.raw],
            "pool": None if spec.pool is None else asdict(spec.pool),
        }
    except TypeError:
        return None


def spec_from(record: Any) -> Spec:
    """Read what `record_of` wrote. ValueError: it is nothing of the kind."""
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        raise ValueError("its spaces are no record of an environment")
    raw, pool = record.get("raw"), record.get("pool")
    if raw is not None and not (isinstance(raw, list) and len(raw) == 2):
        raise ValueError("its own spaces are not two")
    if pool is not None and not isinstance(pool, dict):
        raise ValueError("its pool options are no options")
    observation, action = _space(record.get("observation")), _space(record.get("action"))
    own = None if raw is None else (_space(raw[0]), _space(raw[1]))
    options = None if pool is None else PoolOptions(**pool)
    if options is not None:
        size = sum(math.prod(leaf.shape or ()) for _, _, leaf in spaces.leaves(own[0] if own else observation))
        if not isinstance(options.frame_stack, int) or options.frame_stack * max(1, size) > LARGEST:
            raise ValueError(f"its pool stacks {options.frame_stack} frames")
    return Spec(observation, action, record["id"], raw=own, pool=options)


# ------------------------------------------------------------------------------------------------------- writing


def _node(space: Space) -> dict[str, Any]:
    if isinstance(space, gs.Dict):
        if not all(isinstance(key, (str, int)) for key in space.spaces):
            raise TypeError("keys that JSON cannot say")
        return {"dict": [[key, _node(sub)] for key, sub in space.spaces.items()]}
    if isinstance(space, gs.Tuple):
        return {"tuple": [_node(sub) for sub in space.spaces]}
    dtype = np.dtype(space.dtype).name
    if isinstance(space, gs.Box):
        return {"box": {"shape": list(space.shape), "dtype": dtype, "low": _bound(space.low), "high": _bound(space.high)}}
    if isinstance(space, gs.Discrete):
        return {"discrete": {"n": int(space.n), "start": int(space.start), "dtype": dtype}}
    if isinstance(space, gs.MultiDiscrete):
        return {"multi_discrete": {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": dtype}}
    if isinstance(space, gs.MultiBinary):
        return {"multi_binary": {"n": space.n if isinstance(space.n, int) else list(space.shape)}}
    raise TypeError(f"a {type(space).__name__} space is no tree of arrays")


def _bound(bound: np.ndarray) -> Any:
    for axis in range(bound.ndim):
        one = bound.take([0], axis=axis) if bound.shape[axis] else bound
        bound = one if (bound == one).all() else bound
    return _words(bound.item() if bound.size == 1 else bound.tolist())


def _words(value: Any) -> Any:
    """Replace infinities, which JSON does not have; NaN is no bound."""
    if isinstance(value, list):
        return [_words(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise TypeError("a bound that is not a number")
        return "inf" if value > 0 else "-inf"
    return value


# ------------------------------------------------------------------------------------------------------- reading


def _space(node: Any, depth: int = 0) -> Space:
    kind, value = next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else ("", None)
    if kind in ("dict", "tuple"):
        if depth >= DEEPEST or not isinstance(value, list) or len(value) > WIDEST:
            raise ValueError("a space of it is nested too deeply or too wide")
        if kind == "tuple":
            return gs.Tuple([_space(sub, depth + 1) for sub in value])
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int))]
        if len(pairs) != len(value):
            raise ValueError("a dict of its spaces is none")
        return gs.Dict(OrderedDict((key, _space(sub, depth + 1)) for key, sub in pairs))
    if not isinstance(value, dict) or kind not in _LEAVES:
        raise ValueError(f"a space of it has the unknown kind {str(kind)[:40]!r}")
    if kind != "multi_binary" and value.get("dtype") not in DTYPES:
        raise ValueError(f"a space of it has the type {str(value.get('dtype'))[:40]!r}")
    return _LEAVES[kind](value)


def _box(value: dict[str, Any]) -> gs.Box:
    shape, dtype = _shape(value.get("shape")), np.dtype(value["dtype"])
    low, high = (_numbers(value.get(name), dtype, len(shape)) for name in ("low", "high"))
    return gs.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type)


def _discrete(value: dict[str, Any]) -> gs.Discrete:
    n, start = _count(value.get("n")), value.get("start")
    if not isinstance(start, int) or abs(start) >= 2**62:
        raise ValueError("a space of it starts nowhere")
    return gs.Discrete(n, start=start, dtype=np.dtype(value["dtype"]).type)


def _multi_discrete(value: dict[str, Any]) -> gs.MultiDiscrete:
    dtype = np.dtype(value["dtype"])
    nvec, start = (_numbers(value.get(name), np.dtype(np.int64), 32) for name in ("nvec", "start"))
    if nvec.shape != start.shape or nvec.size == 0 or not (nvec >= 1).all() or (nvec >= 2**31).any():
        raise ValueError("a space of it counts nothing")
    return gs.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _multi_binary(value: dict[str, Any]) -> gs.MultiBinary:
    n = value.get("n")
    return gs.MultiBinary(_shape(n) if isinstance(n, list) else _shape([n])[0])


_LEAVES: dict[str, Any] = {
    "box": _box, "discrete": _discrete, "multi_discrete": _multi_discrete, "multi_binary": _multi_binary,
}  # fmt: skip


def _shape(value: Any) -> tuple[int, ...]:
    sizes = [_count(size, least=0) for size in value] if isinstance(value, list) and len(value) <= 32 else None
    if sizes is None or math.prod(sizes) > LARGEST:
        raise ValueError(f"a space of it has no shape, or more than {LARGEST:,} numbers")
    return tuple(sizes)


def _count(value: Any, *, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ValueError(f"a space of it has the count {str(value)[:40]}")
    return value


def _numbers(value: Any, dtype: np.dtype[Any], axes: int) -> np.ndarray:
    """Read a number, or nested lists of numbers, as an array of at most so many axes."""
    try:
        array = np.array(_plain(value, axes))
        if array.ndim > axes or array.dtype.kind not in "fiub" or np.isnan(array.astype(np.float64)).any():
            raise ValueError
        return array.astype(dtype)
    except (ValueError, OverflowError) as error:
        raise ValueError("a space of it has bounds that are no numbers") from error


def _plain(value: Any, axes: int) -> Any:
    if isinstance(value, list):
        if axes <= 0 or len(value) > LARGEST:
            raise ValueError
        return [_plain(item, axes - 1) for item in value]
    if isinstance(value, str):
        return _WORDS.get(value, math.nan)
    if not isinstance(value, (int, float)):
        raise ValueError
    return value
