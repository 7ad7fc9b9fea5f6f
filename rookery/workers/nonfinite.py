"""What is said of an update that was refused because something in it was not a number."""

from __future__ import annotations

import jax
import numpy as np

from rookery.types import BATCH_MAJOR, PyTree, Rollout
from rookery.workers.flat import path_name


class NonFinite(ArithmeticError):
    """A loss, a gradient or a parameter became NaN or infinite; the update was not applied."""


def culprit(number: int, rollout: Rollout, report: dict[str, float], finite: np.ndarray, params: PyTree) -> str:
    """Names the first thing that is not finite in update `number`, from the data to the parameters.

    finite: [1 + leaves of params], as the guarded update says: the report, then each leaf.
    """
    update = f"update {number} was not applied"
    for path, leaf in jax.tree_util.tree_leaves_with_path(rollout):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(leaf))[0])
            column = where[0 if path_name(path).split("/")[0] in BATCH_MAJOR else 1]
            stream = rollout.stream[column]
            return (
                f"{update}: the data's {path_name(path)} holds {leaf[where]} at index {where} (stream {stream}). "
                "The environment or the policy made it."
            )
    bad = [name for name, value in report.items() if not np.isfinite(value)]
    if bad:
        return (
            f"{update}: {', '.join(bad)} became {report[bad[0]]} on finite data. "
            "Try a lower learning rate or a smaller max_gradient_norm."
        )
    leaves = jax.tree_util.tree_leaves_with_path(params)
    names = [path_name(path) for (path, _), ok in zip(leaves, finite[1:]) if not ok]
    return f"{update}: parameters {', '.join(names)} would have become non-finite. Try a lower learning rate."
