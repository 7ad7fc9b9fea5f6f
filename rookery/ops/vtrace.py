"""V-trace: off-policy value targets and policy-gradient advantages (IMPALA, https://arxiv.org/abs/1802.01561).

Differs from the paper: a trace-decay λ in c (as in its remark 2), and `valid`, which keeps a window that holds parts
of several episodes from leaking one into another.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rookery.ops.returns import backward_sum, check_aligned


class VTraceReturns(NamedTuple):
    target: Array  # [T, B] v_t, to regress the value on; equals `value` on rows that are no transition
    advantage: Array  # [T, B] weights of log π(a_t | x_t), clipped ratio included; 0 on rows that are no transition


def vtrace(
    *,
    value: Array,
    value_next: Array,
    reward: Array,
    discount: Array,
    valid: Array,
    log_rho: Array,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    rho_pg_bar: float | None = 1.0,
    lam: float = 1.0,
) -> VTraceReturns:
    """Compute V-trace targets v and advantages A, with ratio_t = exp(log_rho_t) = π(a_t | x_t) / μ(a_t | x_t):

        δ_t = min(rho_bar, ratio_t) (reward_t + discount_t V(x_{t+1}) − V(x_t))
        v_t = V(x_t) + acc_t,   acc_t = valid_t (δ_t + discount_t λ min(c_bar, ratio_t) acc_{t+1})
        A_t = min(rho_pg_bar, ratio_t) (reward_t + discount_t (λ v_{t+1} + (1 − λ) V(x_{t+1})) − V(x_t))

    Rows read as in `rookery.ops.returns`. Where row t + 1 is no transition (a truncation, the window's end), v_{t+1}
    is V(x_{t+1}), that is `value_next[t]`. The fixed point is V of π clipped by rho_bar; c_bar changes only the speed.
    rho_pg_bar None: A_t without its weight, for an objective that has the ratio itself.

    All arrays [T, B] -> two arrays [T, B]. No gradient flows through either.
    """
    check_aligned(
        value=value, value_next=value_next, reward=reward, discount=discount, valid=valid, log_rho=log_rho
    )
    ratio = jnp.exp(log_rho)
    delta = jnp.minimum(rho_bar, ratio) * (reward + discount * value_next - value)
    decay = discount * (lam * jnp.minimum(c_bar, ratio))
    acc = backward_sum(valid * delta, valid * decay)
    # V(x_{t+1}) + λ acc_{t+1} is the λ-mixture above, and acc is 0 exactly where v_{t+1} has to be V(x_{t+1}).
    acc_next = jnp.concatenate([acc[1:], jnp.zeros_like(acc[:1])])
    bootstrap = value_next + lam * acc_next
    weight = 1.0 if rho_pg_bar is None else jnp.minimum(rho_pg_bar, ratio)
    advantage = valid * weight * (reward + discount * bootstrap - value)
    return jax.lax.stop_gradient(VTraceReturns(target=value + acc, advantage=advantage))
