import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from windows import plain, random_window, without

from rookery import ops

vtrace, n_step_return = jax.jit(ops.vtrace), jax.jit(ops.n_step_return, static_argnames="n")


def vtrace_reference(
    value, value_next, reward, discount, valid, log_rho, rho_bar=1.0, c_bar=1.0, rho_pg_bar=1.0, lam=1.0
):
    """v_s = V(x_s) + Σ_t (Π_{i<t} discount_i c_i) δ_t, the paper's double sum; then advantages from v_{s+1}."""
    T, B = reward.shape
    ratio = np.exp(log_rho.astype(np.float64))
    rho, c, rho_pg = (np.minimum(bar, ratio) for bar in (rho_bar, c_bar, rho_pg_bar))
    target, advantage = np.array(value, np.float64), np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            weight = 1.0
            for t in range(s, T):
                if not valid[t, b]:
                    break
                delta = rho[t, b] * (reward[t, b] + discount[t, b] * value_next[t, b] - value[t, b])
                target[s, b] += weight * delta
                weight *= discount[t, b] * lam * c[t, b]
        for s in range(T):
            if valid[s, b]:
                bootstrap = value_next[s, b]
                if s + 1 < T and valid[s + 1, b]:
                    bootstrap = lam * target[s + 1, b] + (1 - lam) * value_next[s, b]
                advantage[s, b] = rho_pg[s, b] * (reward[s, b] + discount[s, b] * bootstrap - value[s, b])
    return target, advantage


@pytest.mark.parametrize(
    "bars",
    [
        {},
        {"rho_bar": 2.0, "c_bar": 1.5, "rho_pg_bar": 3.0, "lam": 0.9},
        {"rho_bar": math.inf, "c_bar": 0.5, "rho_pg_bar": 1.0, "lam": 0.95},
        {"rho_bar": 1.0, "c_bar": 1.0, "rho_pg_bar": math.inf, "lam": 0.0},
    ],
)
def test_vtrace_equals_the_double_sum_with_ratios_on_both_sides_of_every_threshold(rng, bars):
    window = random_window(rng, T=20, B=40)
    ratio = np.exp(window["log_rho"])
    assert (ratio < 0.5).any() and ((ratio > 1) & (ratio < 1.5)).any() and (ratio > 3).any()
    assert (window["valid"] == 0).any() and (window["discount"] == 0).any()
    got, (target, advantage) = vtrace(**window, **bars), vtrace_reference(**window, **bars)
    scale = max(1.0, np.abs(target).max())
    np.testing.assert_allclose(got.target, target, atol=1e-5 * scale, rtol=1e-5)
    np.testing.assert_allclose(got.advantage, advantage, atol=1e-5 * scale, rtol=1e-5)


@pytest.mark.parametrize("lam", [1.0, 0.7])
def test_vtrace_equals_rlax_where_every_row_is_a_transition(rng, lam):
    window = plain(random_window(rng))
    expected = jax.vmap(
        lambda v, vn, r, d, rho: rlax.vtrace_td_error_and_advantage(v, vn, r, d, rho, lam, 2.0, 1.5), 1, 1
    )(*(window[n] for n in ("value", "value_next", "reward", "discount")), np.exp(window["log_rho"]))
    got = vtrace(**window, rho_bar=2.0, rho_pg_bar=1.5, lam=lam)
    np.testing.assert_allclose(got.target - window["value"], expected.errors, atol=1e-5)
    np.testing.assert_allclose(got.advantage, expected.pg_advantage, atol=1e-5)


def test_on_policy_vtrace_without_clipping_is_the_n_step_return(rng):
    window = random_window(rng) | {"log_rho": np.zeros((12, 5), np.float32)}
    got = vtrace(**window, rho_bar=math.inf, c_bar=math.inf)
    expected = n_step_return(**without(window, "value", "log_rho"), n=12)
    transition = window["valid"] == 1
    np.testing.assert_allclose(got.target[transition], expected[transition], atol=1e-5)
    # and the advantage is then what the target says beyond the value
    np.testing.assert_allclose(got.advantage, got.target - window["value"], atol=1e-5)


def test_a_rho_bar_of_zero_leaves_the_values_as_they_are(rng):
    window = random_window(rng)
    np.testing.assert_array_equal(vtrace(**window, rho_bar=0.0, c_bar=0.0).target, window["value"])


def test_one_trace_over_two_episodes_equals_two_traces(rng):
    window = random_window(rng, T=14, B=6)
    window["valid"] = np.ones((14, 6), np.float32)
    window["valid"][6] = 0.0
    whole = vtrace(**window, lam=0.9)
    first, second = (vtrace(**{k: v[rows] for k, v in window.items()}, lam=0.9) for rows in (np.s_[:6], np.s_[7:]))
    np.testing.assert_allclose(whole.target[:6], first.target, atol=1e-6)
    np.testing.assert_allclose(whole.target[7:], second.target, atol=1e-6)
    np.testing.assert_allclose(whole.advantage[:6], first.advantage, atol=1e-6)
    np.testing.assert_allclose(whole.advantage[7:], second.advantage, atol=1e-6)
    np.testing.assert_array_equal(whole.target[6], window["value"][6])
    np.testing.assert_array_equal(whole.advantage[6], np.zeros(6))


def test_truncation_bootstraps_and_termination_does_not(rng):
    window = plain(random_window(rng, T=4, B=1, p_end=0.0))
    window["valid"][2] = 0.0
    ended = window | {"discount": window["discount"].copy()}
    ended["discount"][1] = 0.0
    truncated, terminated = vtrace(**window), vtrace(**ended)
    rho = np.minimum(1, np.exp(window["log_rho"]))
    expected = rho[1] * window["discount"][1] * window["value_next"][1]
    np.testing.assert_allclose(truncated.target[1] - terminated.target[1], expected, rtol=1e-5)
    np.testing.assert_allclose(truncated.advantage[1] - terminated.advantage[1], expected, rtol=1e-5)
    np.testing.assert_array_equal(truncated.target[2:], terminated.target[2:])


def test_batch_columns_are_independent(rng):
    window = random_window(rng)
    whole = vtrace(**window)
    for b in range(5):
        alone = vtrace(**{name: array[:, b : b + 1] for name, array in window.items()})
        np.testing.assert_allclose(whole.target[:, b : b + 1], alone.target, atol=1e-6)
        np.testing.assert_allclose(whole.advantage[:, b : b + 1], alone.advantage, atol=1e-6)


def test_no_gradient_flows_through_vtrace_and_huge_ratios_stay_finite(rng):
    window = {name: jnp.asarray(array) for name, array in random_window(rng, log_rho_scale=100.0).items()}
    assert (window["log_rho"] > 90).any(), "exp must overflow somewhere"
    gradient = jax.jit(jax.grad(lambda w: sum(jnp.sum(x) for x in vtrace(**w))))(window)
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))
    assert all(np.isfinite(x).all() for x in vtrace(**window))
