"""Where two algorithms must agree, they do: on fresh data all of them are the same policy gradient."""

import jax
import numpy as np
import pytest
from algorithm_cases import (
    NETWORK,
    SPEC,
    adapted,
    assert_trees_close,
    batch_of,
    gradient_of,
    model_of,
    on_policy,
    random_params,
    random_rollout,
    random_state,
    with_plain_steps,
)

from rookery import ops
from rookery.algorithms import a2c, actor_critic, ppo, vtrace
from rookery.networks import NetworkConfig

MODEL = model_of()
PARAMS = random_params(MODEL, seed=3)
NETWORK_PARAMS = PARAMS["network"]


@pytest.fixture
def fresh(rng, monkeypatch):
    """A rollout that PARAMS themselves might have made; what agents built from now on learn is minus their gradient."""
    with_plain_steps(monkeypatch)
    return on_policy(MODEL, PARAMS, random_rollout(rng))


def test_vtrace_on_fresh_data_with_lambda_one_is_a2cs_n_step_gradient(fresh):
    """The whole gradient: policy, value and entropy; whatever the bars are, as long as they are at least 1. A2C's is that of a
    mean over the valid rows, V-trace's that of a sum, for which valid rows count for the whole batch."""
    expected, _ = gradient_of(adapted("a2c", gae_lambda=1.0), PARAMS, fresh)
    expected = jax.tree.map(lambda x: fresh.valid.size * x, expected)
    got, report = gradient_of(adapted("vtrace", trace_lambda=1.0, rho_bar=1.3, c_bar=1.1), PARAMS, fresh)
    np.testing.assert_allclose(report["rho"], 1.0, rtol=1e-5)
    assert_trees_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["appo", "appo-target"])
def test_appo_on_fresh_data_is_ppos_gradient_with_the_same_lambda(fresh, name):
    """Ratios are 1, so nothing is clipped, and V-trace's targets and advantages are GAE's."""
    expected, _ = gradient_of(adapted("ppo", gae_lambda=0.95), PARAMS, fresh)
    slow = NETWORK_PARAMS if name == "appo-target" else ()
    got, report = gradient_of(adapted(name, trace_lambda=0.95), PARAMS, fresh, slow=slow)
    assert report["clip_fraction"] == 0
    assert_trees_close(got, expected, rtol=1e-3, atol=1e-5)


def test_passes_of_appo_on_fresh_data_are_ppos(fresh):
    """Two epochs of three minibatches, of single steps: the same six steps, and the batch counts once. The target is the
    policy that acted, so that V-trace's weights are 1, while the ratio of the objective moves with every step."""
    several = dict(epochs=2, minibatches=3, max_gradient_norm=0.3, clip=0.01)
    expected, ppos = gradient_of(adapted("ppo", gae_lambda=0.95, **several), PARAMS, fresh)
    agent = adapted("appo-target", trace_lambda=0.95, **several).build(SPEC)
    state = random_state(agent, params=PARAMS, slow=NETWORK_PARAMS)
    learned = jax.jit(agent.learn)(state, batch_of(fresh), ops.random.key(1))
    got = jax.tree.map(lambda old, new: old - new, NETWORK_PARAMS, learned.state.params["network"])
    assert int(learned.state.updates) == 1
    assert ppos["clip_fraction"] > 0.1 and 0 < ppos["gradient_clipped"] < 1, "what is clipped is clipped in both"
    assert_trees_close(got, expected, rtol=1e-3, atol=1e-5)


def test_ppo_with_one_epoch_of_one_minibatch_is_a2c_where_advantages_are_already_standard(fresh):
    """The whole gradient is the same for rewards that make GAE's advantages have mean 0 and standard deviation 1 over the
    valid rows: ratios are 1, values have not moved, so no clip is active, and normalisation changes nothing."""
    lam, valid = 0.95, fresh.valid
    _, values = jax.jit(MODEL.forward)(PARAMS, fresh.observation, (), actor_critic.first_rows(valid))
    values = np.asarray(values, np.float64)
    wanted = np.random.default_rng(5).normal(size=valid.shape)
    kept = wanted[valid == 1]
    wanted = valid * (wanted - kept.mean()) / kept.std()
    later = np.concatenate([wanted[1:], np.zeros_like(wanted[:1])])
    reward = wanted - fresh.discount * lam * later + values[:-1] - fresh.discount * values[1:]
    rollout = fresh._replace(reward=(reward * valid).astype(np.float32))
    expected, _ = gradient_of(adapted("a2c", gae_lambda=lam), PARAMS, rollout)
    got, report = gradient_of(adapted("ppo", gae_lambda=lam), PARAMS, rollout)
    assert report["clip_fraction"] == 0 and abs(report["approx_kl"]) < 1e-6
    assert_trees_close(got, expected, rtol=1e-3, atol=2e-5)


def test_the_order_of_columns_does_not_matter_to_a_single_minibatch(fresh):
    """Steps are shuffled, and with a network without memory each is a column of its own."""
    order = np.random.default_rng(0).permutation(fresh.valid.shape[1])
    shuffled = jax.tree.map(lambda x: x[:, order], fresh)
    one, _ = gradient_of(adapted("ppo"), PARAMS, fresh)
    other, _ = gradient_of(adapted("ppo"), PARAMS, shuffled)
    assert_trees_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["vtrace", "a2c"])
def test_a_gradient_over_chunks_of_columns_is_that_of_the_whole_batch(rng, monkeypatch, name):
    """With memory, so that every field of a rollout is cut; chunks hold different numbers of valid rows."""
    with_plain_steps(monkeypatch)
    network = NetworkConfig(hidden=(8,), core="gru", core_size=5)
    params = random_params(model_of(network=network), seed=4)
    memory = (rng.normal(size=(6, 5)).astype(np.float32),)
    rollout = random_rollout(rng, memory=memory)
    assert len({float(rollout.valid[:, [b, b + 1]].sum()) for b in (0, 2, 4)}) > 1
    algorithm = adapted(name, network=network)
    expected, whole = gradient_of(algorithm, params, rollout)
    calls, module = [], {"vtrace": vtrace, "a2c": a2c}[name]
    monkeypatch.setattr(module, "chunks_for", lambda spec, batch: calls.append(batch) or 3)
    got, report = gradient_of(algorithm, params, rollout)
    assert calls, "the number of chunks is asked for"
    assert_trees_close(got, expected, rtol=1e-4, atol=1e-6)
    assert_trees_close(report, whole, rtol=1e-4, atol=1e-6)


def test_the_sequences_of_a_recurrent_ppo_are_shuffled_together_with_their_memory(rng, monkeypatch):
    with_plain_steps(monkeypatch)
    network = NetworkConfig(hidden=(8,), core="lstm", core_size=5)
    model, config = model_of(network=network), adapted("ppo", network=network)
    params = random_params(model, seed=6)
    rollout = random_rollout(rng, memory=tuple(rng.normal(size=(6, 5)).astype(np.float32) for _ in range(2)))

    def in_order(network):
        whole = params | {"network": network}
        data = jax.lax.stop_gradient(ppo.prepare(whole, rollout, model=model, config=config))
        return ppo.loss(whole, ppo.normalised(data), model=model, config=config)

    expected, _ = jax.jit(jax.grad(in_order, has_aux=True))(params["network"])
    got, _ = gradient_of(config, params, rollout)
    assert_trees_close(got, expected, rtol=1e-3, atol=1e-5)


def test_columns_that_do_not_fill_the_minibatches_are_refused_with_the_option_to_change(rng):
    agent = adapted("ppo", minibatches=4, network=NETWORK).build(SPEC)
    state = random_state(agent)
    with pytest.raises(ValueError, match=r"54 columns cannot be cut into 4 .*--minibatches"):
        jax.eval_shape(agent.learn, state, batch_of(random_rollout(rng)), ops.random.key(0))
