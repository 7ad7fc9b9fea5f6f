"""An update that is kept only if it is finite, and what is said of one that was refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import BATCH_MAJOR, Agent, Array, Batch, Learned, PyTree, Rollout, TrainState
from rookery.workers.learning.tree_paths import path_name


class NonFinite(ArithmeticError):
    """A loss, a gradient or a parameter became NaN or infinite; the update was not applied."""


def culprit(number: int, rollout: Rollout | None, report: dict[str, float], finite: np.ndarray, params: PyTree) -> str:
    """Name the first thing that is not finite in update `number`, from the data to the parameters.

    rollout: None where the data is known to be finite. finite: [1 + leaves of params], as the guarded update says: the report,
    then each leaf.
    """
    update = f"update {number} was not applied"
    for path, leaf in jax.tree_util.tree_leaves_with_path(rollout):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(leaf))[0])
            column = where[0 if path_name(path).split("/")[0] in BATCH_MAJOR else 1]
            stream = rollout.stream[column]  # type: ignore[union-attr]
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
    if rollout is not None and names and all(name.split("/")[0] in ("reward", "observation") for name in names):
        what = names[0].split("/")[0]
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(getattr(rollout, what)))
        return (
            f"{update}: the running moments of the {what}s would have become non-finite: they are as large as {largest:.3g}. "
            f"Scale them in the environment, or use --normalise-{what}s False."
        )
    return f"{update}: parameters {', '.join(names)} would have become non-finite. Try a lower learning rate."


def guarded(agent: Agent, state: TrainState, batch: Batch, key: Array) -> tuple[Learned, Array]:
    """Learn; keep the old state where the new one is not finite. finite: [1 + leaves of params]."""
    learned = agent.learn(state, batch, key)
    finite = jnp.stack(
        [jnp.isfinite(jnp.array([jnp.asarray(v, jnp.float32) for v in learned.report.values()])).all()]
        + [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(learned.state.params)]
    )
    keep = finite.all()
    kept = jax.tree.map(lambda new, old: jnp.where(keep, new, old), learned.state, state)
    return learned._replace(state=kept), finite
