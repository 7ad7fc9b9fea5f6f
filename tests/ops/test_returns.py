import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import plain, random_window, without

from rookery import ops

LAM = 0.9
gae = jax.jit(ops.gae)
n_step_return = jax.jit(ops.n_step_return, static_argnames="n")


def gae_reference(value, value_next, reward, discount, valid, lam):
    """The double sum of the paper: Σ_k (Π discount λ) δ_{t+k}, over the rows until the first that is no transition."""
    T, B = reward.shape
    out = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                if not valid[k, b]:
                    break
                out[t, b] += weight * (reward[k, b] + discount[k, b] * value_next[k, b] - value[k, b])
                weight *= discount[k, b] * lam
    return out


def n_step_reference(value_next, reward, discount, valid, n):
    T, B = reward.shape
    out = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight = 1.0
            for k in range(t, min(t + n, T)):
                if not valid[k, b]:
                    break
                out[t, b] += weight * reward[k, b]
                weight *= discount[k, b]
                bootstrap = value_next[k, b]
            if valid[t, b]:
                out[t, b] += weight * bootstrap
    return out


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_gae_equals_the_double_sum_with_terminations_and_truncations_in_the_middle(rng, lam):
    window = without(random_window(rng, T=20, B=40), "log_rho")
    assert 0 < (window["valid"] == 0).mean() < 0.5 and (window["discount"] == 0).any()
    np.testing.assert_allclose(gae(**window, lam=lam), gae_reference(**window, lam=lam), atol=2e-5)


def test_gae_equals_rlax_where_every_row_is_a_transition(rng):
    window = without(plain(random_window(rng)), "log_rho")
    values = np.concatenate([window["value"], window["value_next"][-1:]])
    expected = jax.vmap(rlax.truncated_generalized_advantage_estimation, (1, 1, None, 1), 1)(
        window["reward"], window["discount"], LAM, values
    )
    np.testing.assert_allclose(gae(**window, lam=LAM), expected, atol=1e-5)


def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value(rng):
    window = without(random_window(rng), "log_rho")
    expected = n_step_reference(**without(window, "value"), n=99) - window["valid"] * window["value"]
    np.testing.assert_allclose(gae(**window, lam=1.0), expected, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 19, 20, 50])
def test_n_step_returns_equal_the_double_loop(rng, n):
    window = without(random_window(rng, T=20, B=40), "log_rho", "value")
    np.testing.assert_allclose(n_step_return(**window, n=n), n_step_reference(**window, n=n), atol=2e-5)


@pytest.mark.parametrize("n", [1, 3, 12])
def test_n_step_returns_equal_rlax_where_every_row_is_a_transition(rng, n):
    window = without(plain(random_window(rng)), "log_rho", "value")
    expected = jax.vmap(rlax.n_step_bootstrapped_returns, (1, 1, 1, None), 1)(
        window["reward"], window["discount"], window["value_next"], n
    )
    np.testing.assert_allclose(n_step_return(**window, n=n), expected, atol=1e-5)


def test_truncation_bootstraps_and_termination_does_not():
    column = lambda *numbers: jnp.array(numbers, jnp.float32)[:, None]
    gamma = 0.5
    same = {"reward": column(1, 2, 0, 4), "valid": column(1, 1, 0, 1), "value_next": column(10, 20, 30, 40)}
    truncated = dict(same, discount=column(gamma, gamma, gamma, gamma))
    terminated = dict(same, discount=column(gamma, 0, gamma, gamma))
    np.testing.assert_allclose(n_step_return(**truncated, n=3)[:, 0], [1 + 0.5 * (2 + 0.5 * 20), 12, 0, 24])
    np.testing.assert_allclose(n_step_return(**terminated, n=3)[:, 0], [2, 2, 0, 24])
    value = column(5, 10, 20, 30)
    difference = gae(**truncated, value=value, lam=1.0) - gae(**terminated, value=value, lam=1.0)
    np.testing.assert_allclose(difference[:, 0], [gamma**2 * 20, gamma * 20, 0, 0])


@pytest.mark.parametrize("op", [lambda w: gae(**w, lam=LAM), lambda w: n_step_return(**without(w, "value"), n=3)])
def test_one_window_over_two_episodes_equals_two_windows(rng, op):
    window = without(random_window(rng, T=14, B=6), "log_rho")
    window["valid"] = np.ones((14, 6), np.float32)
    window["valid"][6] = 0.0  # rows 0..5 and rows 7..13 belong to different episodes
    whole = op(window)
    first, second = op({k: v[:6] for k, v in window.items()}), op({k: v[7:] for k, v in window.items()})
    np.testing.assert_allclose(whole, np.concatenate([first, np.zeros((1, 6)), second]), atol=1e-6)


@given(seed=st.integers(0, 2**20), column=st.integers(0, 4))
@settings(max_examples=15, deadline=None)
def test_what_a_row_that_is_no_transition_holds_changes_nothing(seed, column):
    window = without(random_window(np.random.default_rng(seed)), "log_rho")
    noise = np.where(window["valid"] == 0, 1e3, 0).astype(np.float32)
    noisy = window | {name: window[name] + noise for name in ("reward", "discount", "value_next")}
    np.testing.assert_allclose(gae(**noisy, lam=LAM), gae(**window, lam=LAM), atol=1e-5)
    clean, dirty = without(window, "value"), without(noisy, "value")
    np.testing.assert_allclose(n_step_return(**dirty, n=4), n_step_return(**clean, n=4), atol=1e-5)
    other = window | {"reward": window["reward"].copy()}
    other["reward"][:, column] += 1
    changed = np.abs(np.asarray(gae(**other, lam=LAM) - gae(**window, lam=LAM))).max(axis=0) > 0
    assert not changed[np.arange(5) != column].any(), "columns must not mix"


def test_trailing_axes_broadcast(rng):
    window = without(random_window(rng), "log_rho")
    per_head = np.stack([window["value"], 2 * window["value"]], -1)
    per_head_next = np.stack([window["value_next"], 2 * window["value_next"]], -1)
    shared = {name: window[name][..., None] for name in ("reward", "discount", "valid")}
    both = gae(value=per_head, value_next=per_head_next, **shared, lam=LAM)
    np.testing.assert_allclose(both[..., 0], gae(**window, lam=LAM), atol=1e-6)


def test_no_gradient_flows_through_returns(rng):
    window = without(random_window(rng), "log_rho")

    def total(w):
        return jnp.sum(gae(**w, lam=LAM) + n_step_return(**without(w, "value"), n=3))

    gradient = jax.jit(jax.grad(total))({name: jnp.asarray(array) for name, array in window.items()})
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def test_arrays_that_do_not_line_up_are_refused_by_name(rng):
    window = without(random_window(rng), "log_rho")
    with pytest.raises(ValueError, match="value_next"):
        gae(**window | {"value": np.zeros((13, 5), np.float32)}, lam=LAM)
    with pytest.raises(ValueError, match="rank"):
        gae(**window | {"valid": np.ones(12, np.float32)}, lam=LAM)
    with pytest.raises(ValueError, match="n=0"):
        n_step_return(**without(window, "value"), n=0)
