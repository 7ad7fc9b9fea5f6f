"""The optimizers that algorithms share: one gradient step, an optional linear decay to zero over the planned run."""

from __future__ import annotations

import optax


def schedule(learning_rate: float, num_steps: int | None) -> optax.ScalarOrSchedule:
    """Linear decay to zero over `num_steps` optimizer steps; constant where None."""
    return optax.linear_schedule(learning_rate, 0.0, num_steps) if num_steps else learning_rate


def adam(learning_rate: float, *, num_steps: int | None, epsilon: float) -> optax.GradientTransformation:
    """Adam over one flat vector: on CPU a small network's update is bound by the number of XLA ops, not by their size."""
    return optax.flatten(optax.adam(schedule(learning_rate, num_steps), eps=epsilon))


def rmsprop(learning_rate: float, *, num_steps: int | None, decay: float, epsilon: float) -> optax.GradientTransformation:
    """RMSProp as A3C and IMPALA use it: no momentum, not centred, epsilon inside the root."""
    return optax.flatten(optax.rmsprop(schedule(learning_rate, num_steps), decay=decay, eps=epsilon, eps_in_sqrt=True))
