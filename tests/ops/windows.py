"""Random windows of experience with episodes that end in every way, for the tests of return estimators."""

import numpy as np


def random_window(rng, T=12, B=5, gamma=0.97, p_end=0.3, log_rho_scale=1.0):
    """Rows as a collector writes them: after the last row of an episode comes one with valid = 0 (next-step autoreset).

    `values` [T + 1, B] are drawn freely and seen as value[:-1] and value[1:], as a network would give them.
    """
    valid, discount = np.ones((T, B), np.float32), np.full((T, B), gamma, np.float32)
    for b in range(B):
        ended = rng.random() < 0.2  # the window may begin with a reset row
        for t in range(T):
            valid[t, b] = 0.0 if ended else 1.0
            ended = not ended and rng.random() < p_end
            if ended and rng.random() < 0.5:
                discount[t, b] = 0.0  # terminated; otherwise truncated
    values = rng.normal(size=(T + 1, B)).astype(np.float32)
    return {
        "value": values[:-1],
        "value_next": values[1:],
        "reward": rng.normal(size=(T, B)).astype(np.float32),
        "discount": discount,
        "valid": valid,
        "log_rho": (log_rho_scale * rng.normal(size=(T, B))).astype(np.float32),
    }


def plain(window):
    """The same window, every row a transition of its own; terminations stay."""
    return window | {"valid": np.ones_like(window["valid"])}


def without(window, *names):
    return {name: array for name, array in window.items() if name not in names}
