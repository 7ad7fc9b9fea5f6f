"""Every loss against its slow restatement in paper_losses.py: value, terms and gradient, on data with every kind of end."""

import functools

import jax
import numpy as np
import paper_losses
import pytest
from algorithm_cases import (
    ALGORITHMS,
    adapted,
    assert_trees_close,
    model_of,
    on_policy,
    random_params,
    random_rollout,
)

from rookery.algorithms import a2c, appo, pg, ppo, vtrace

MODEL = model_of()
PARAMS, OTHER = random_params(MODEL, seed=1), random_params(MODEL, seed=2)


@functools.cache
def forward():
    from rookery.algorithms.actor_critic import first_rows

    return jax.jit(lambda params, r: MODEL.forward(params, r.observation, r.memory, first_rows(r.valid)))


def see(params, rollout):
    logits, values = forward()(params, rollout)
    return paper_losses.read_categorical(np.asarray(logits)[:-1], np.asarray(values), rollout.action)


@functools.cache
def chain_rule():
    """(network, rollout, derivatives by logp, value and entropy) -> the gradient of the network."""

    def gradient(network, rollout, derivatives):
        def outputs(network):
            out = MODEL.evaluate(PARAMS | {"network": network}, rollout)
            return out.logp, out.value, out.entropy

        return jax.vjp(outputs, network)[1](derivatives)[0]

    return jax.jit(gradient)


def compare(loss, params, rollout, stated):
    """loss: (network) -> (scalar, report)"""
    (value, report), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params["network"])
    np.testing.assert_allclose(value, stated.loss, rtol=1e-4)
    for name, term in stated.terms.items():
        np.testing.assert_allclose(report[f"loss/{name}"], term, rtol=1e-4, atol=1e-6, err_msg=name)
    derivatives = tuple(d.astype(np.float32) for d in (stated.by_logp, stated.by_value, stated.by_entropy))
    assert_trees_close(gradient, chain_rule()(params["network"], rollout, derivatives), rtol=1e-3, atol=2e-5)
    return report


@pytest.fixture
def rollout(rng):
    rollout = random_rollout(rng)
    assert (rollout.valid == 0).any() and (rollout.discount == 0).any()
    return rollout


def test_a2c_is_the_n_step_policy_gradient(rollout):
    config = ALGORITHMS["a2c"]
    loss = lambda network: a2c.loss(PARAMS | {"network": network}, rollout, model=MODEL, config=config)
    report = compare(loss, PARAMS, rollout, paper_losses.a2c(see(PARAMS, rollout), rollout, config))
    entropy = see(PARAMS, rollout).entropy
    np.testing.assert_allclose(report["entropy"], entropy[rollout.valid == 1].mean(), rtol=1e-4)


def test_pg_is_reinforce_with_standardised_rewards_to_go(rollout):
    config = ALGORITHMS["pg"]
    loss = lambda network: pg.loss(PARAMS | {"network": network}, rollout, model=MODEL, config=config)
    compare(loss, PARAMS, rollout, paper_losses.pg(see(PARAMS, rollout), rollout, config))


@pytest.mark.parametrize("bars", [dict(rho_bar=1.0, c_bar=1.0), dict(rho_bar=1.5, c_bar=0.8)], ids=["paper", "other"])
def test_vtrace_is_impalas_loss_with_ratios_on_both_sides_of_the_bars(rollout, bars):
    config = adapted("vtrace", **bars)
    seen = see(PARAMS, rollout)
    ratio = np.exp(seen.logp - rollout.extras["behaviour_logp"])[rollout.valid == 1]
    assert (ratio < 0.8).any() and ((ratio > 1) & (ratio < 1.5)).any() and (ratio > 1.5).any()
    loss = lambda network: vtrace.loss(PARAMS | {"network": network}, rollout, model=MODEL, config=config)
    report = compare(loss, PARAMS, rollout, paper_losses.impala(seen, rollout, config))
    np.testing.assert_allclose(report["rho"], ratio.mean(), rtol=1e-4)


@pytest.mark.parametrize("value_clip", [0.3, None])
def test_ppo_is_the_clipped_objective_and_the_clipped_value_loss(rollout, value_clip):
    """Values and advantages are those of the parameters that acted; the loss is taken at others, as in later epochs."""
    config = adapted("ppo", value_clip=value_clip)
    rollout = on_policy(MODEL, PARAMS, rollout)
    data = jax.jit(lambda: ppo.normalised(ppo.prepare(PARAMS, rollout, model=MODEL, config=config)))()
    later = PARAMS | {"network": jax.tree.map(lambda a, b: a + 0.3 * b, PARAMS["network"], OTHER["network"])}

    def loss(network):
        total, judged = ppo.loss(later | {"network": network}, data, model=MODEL, config=config)
        return total, ppo.describe(judged, data, config=config)

    seen = see(later, rollout)
    stated = paper_losses.ppo(seen, see(PARAMS, rollout), rollout, config)
    assert 0.1 < stated.facts["policy"] < stated.facts["outside"] < 0.9, "some ratios are cut, some outside are not"
    if value_clip is not None:
        assert 0.05 < stated.facts["value"] < 0.9
    report = compare(loss, later, rollout, stated)
    np.testing.assert_allclose(report["clip_fraction"], stated.facts["outside"], rtol=1e-4)
    log_ratio = (seen.logp - rollout.extras["behaviour_logp"])[rollout.valid == 1]
    np.testing.assert_allclose(report["approx_kl"], (np.exp(log_ratio) - 1 - log_ratio).mean(), rtol=1e-3)


def test_appo_as_in_sample_factory_clips_the_ratio_to_the_behaviour_and_the_value(rollout):
    config = ALGORITHMS["appo"]
    stated = paper_losses.appo(see(PARAMS, rollout), see(PARAMS, rollout), rollout, config)
    assert 0.1 < stated.facts["policy"] < stated.facts["outside"] and 0.05 < stated.facts["value"] < 0.95
    loss = lambda network: appo.loss(PARAMS | {"network": network}, (), rollout, model=MODEL, config=config)
    report = compare(loss, PARAMS, rollout, stated)
    np.testing.assert_allclose(report["clip_fraction"], stated.facts["outside"], rtol=1e-4)


def test_later_passes_of_appo_keep_the_targets_and_advantages_of_the_first(rollout):
    """As PPO's epochs do: steps are shuffled one by one, so nothing can be traced anew."""
    config = ALGORITHMS["appo"]
    evaluated = jax.jit(MODEL.evaluate)(PARAMS, rollout)
    data = ppo.normalised(appo.prepare(evaluated, PARAMS, (), rollout, model=MODEL, config=config))
    later = PARAMS | {"network": jax.tree.map(lambda a, b: a + 0.3 * b, PARAMS["network"], OTHER["network"])}

    def loss(network):
        piece = ppo.steps_of(data)
        total, judged = ppo.loss(later | {"network": network}, piece, model=MODEL, config=config)
        return total, ppo.describe(judged, piece, config=config)

    stated = paper_losses.appo(see(later, rollout), see(PARAMS, rollout), rollout, config)
    assert 0.1 < stated.facts["policy"] < stated.facts["outside"] and 0.05 < stated.facts["value"] < 0.95
    compare(loss, later, rollout, stated)


def test_appo_with_a_target_policy_clips_the_ratio_to_the_target(rollout):
    config = ALGORITHMS["appo-target"]
    slow = jax.tree.map(lambda a, b: a + 0.3 * b, PARAMS["network"], OTHER["network"])
    seen, target = see(PARAMS, rollout), see(PARAMS | {"network": slow}, rollout)
    stated = paper_losses.appo_target(seen, target, rollout, config)
    assert 0.1 < stated.facts["policy"] < stated.facts["outside"]
    loss = lambda network: appo.loss(PARAMS | {"network": network}, slow, rollout, model=MODEL, config=config)
    report = compare(loss, PARAMS, rollout, stated)
    np.testing.assert_allclose(report["clip_fraction"], stated.facts["outside"], rtol=1e-4)
