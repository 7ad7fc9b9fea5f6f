"""A loss of the user's own is learned by in the place of an algorithm's; one that cannot be right is told in advance."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_cases import SPEC, adapted, assert_trees_close, batch_of, random_rollout, random_state

import rookery
from rookery import ops
from rookery.algorithms import a2c, pg, ppo, vtrace
from rookery.networks import NetworkConfig
from rookery.run import config, options
from rookery.run.config import ConfigError, resolve
from rookery.topologies.actor_learner import ActorLearner
from rookery.topologies.async_gradients import AsyncGradients
from rookery.workers.learning.nonfinite import NonFinite

OURS = {"a2c": a2c.loss, "pg": pg.loss, "vtrace": vtrace.loss, "ppo": ppo.loss}
SMALL = {"env": "identity", "num_envs": 4, "rollout_length": 4, "network": {"hidden": (4,)}, "eval_episodes": 0}


def updated(algorithm, rollout):
    agent = algorithm.build(SPEC)
    return jax.jit(agent.learn)(random_state(agent), batch_of(rollout), ops.random.key(0))


@pytest.mark.parametrize("name", OURS)
def test_the_algorithms_own_loss_handed_over_makes_the_same_update(name, rng):
    def same(params, rollout, *, model, config):
        total, told = OURS[name](params, rollout, model=model, config=config)
        return total, ppo.describe(told, rollout, config=config) if name == "ppo" else told

    given = {"value_steps": 1} if name in ("a2c", "vtrace") else {}
    rollout = random_rollout(rng)
    expected, found = (updated(adapted(name, loss=loss, **given), rollout) for loss in (None, same))
    assert_trees_close(expected.state.params, found.state.params, rtol=1e-6, atol=1e-7)
    assert set(found.report) == set(expected.report) | {"loss/same"}


@pytest.mark.parametrize("name", OURS)
def test_the_gradient_is_that_of_the_loss_that_was_given(name, rng):
    def only_value(params, rollout, *, model):
        out = model.evaluate(params, rollout) if name != "ppo" else ppo_value(params, rollout, model)
        return ops.masked_mean(jnp.square(out.value), jnp.ones_like(out.value))

    def ppo_value(params, piece, model):
        return ppo.Judged(None, None, model.forward(params, piece.observation, piece.memory, piece.first)[1])

    rollout = random_rollout(rng)
    state = random_state(adapted(name).build(SPEC))
    after = updated(adapted(name, loss=only_value), rollout)
    heads = [tree.params["network"]["heads"] for tree in (state, after.state)]
    jax.tree.map(np.testing.assert_array_equal, *(head["policy"] for head in heads))
    assert np.any(heads[0]["value"]["kernel"] != heads[1]["value"]["kernel"])
    assert np.isfinite(after.report["loss/only_value"])


WRONG = {
    "rows": (
        lambda p, r, *, model: model.evaluate(p, r).logp,
        r"lambda gives a loss of shape \(4, 4\), expected one number.*masked_mean",
    ),
    "nothing": (lambda p, r: None, "lambda gives a loss that is None"),
    "whole numbers": (lambda p, r: jnp.zeros((), int), "a loss of int32: a gradient needs a float"),
    "rows in the report": (
        lambda p, r, *, model: (0.0 * model.evaluate(p, r).value.sum(), {"value": model.evaluate(p, r).value}),
        r"lambda reports 'value' of shape \(4, 4\)",
    ),
    "no report": (lambda p, r: (jnp.zeros(()), 3.0), "gives a float beside its loss: a report is a dict"),
    "a missing key": (
        lambda p, r: r.extras["behaviour_logp"].mean(),
        "lambda asks for what is not there: 'behaviour_logp'. Rollout has observation, action.*VTrace keeps "
        "behaviour_logp",
    ),
    "a missing field": (
        lambda p, r: r.advantage.mean(),
        "'Rollout' object has no attribute 'advantage'. Rollout has observation",
    ),
    "another argument": (
        lambda p, r, model, temperature: 0.0,
        "a loss is called as lambda.*missing a required argument: 'temperature'",
    ),
    "no function": (3.0, "loss=3.0 is no function"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_loss_that_cannot_be_right_is_refused_before_a_run_is_made(case, tmp_path):
    loss, said = WRONG[case]
    with pytest.raises(ConfigError, match=said):
        rookery.train(a2c.A2C(loss=loss), runs=str(tmp_path), **SMALL)
    assert not list(tmp_path.iterdir())


def nan_after_a_while(params, rollout, *, model, config, limit):
    total, report = a2c.loss(params, rollout, model=model, config=config)
    return total + jnp.log(limit - total**2 - 10.0), report


def test_a_loss_that_is_not_a_number_is_named():
    with pytest.raises(NonFinite, match="update 1 was not applied: loss/nan_after_a_while became nan on finite data"):
        rookery.train(a2c.A2C(loss=partial(nan_after_a_while, limit=0.0)), total_updates=2, **SMALL)


def penalised(params, rollout, *, model, config):
    """Add to V-trace's loss the square of the logits."""
    total, report = vtrace.loss(params, rollout, model=model, config=config)
    size = ops.masked_mean(jnp.square(model.evaluate(params, rollout).outputs).sum(-1), ops.row_weights(rollout))
    return total + 0.1 * size, report | {"loss/size": size}


@pytest.mark.parametrize("topology", [None, AsyncGradients(num_envs=4, workers=2)])
def test_a_run_by_a_loss_of_ones_own_says_so_and_is_loaded_without_it(topology, tmp_path):
    given = SMALL | ({} if topology is None else {"topology": topology, "num_envs": 4})
    result = rookery.train("impala", loss=penalised, total_updates=3, runs=str(tmp_path), run="r", **given)
    assert "loss/size" in (tmp_path / "r" / "metrics.jsonl").read_text()
    saved = json.loads((tmp_path / "r" / "config.json").read_text())
    assert saved["config"]["custom"] == ["algorithm.loss"] and "penalised" in saved["config"]["algorithm"]["loss"]
    with pytest.raises(ConfigError, match=r"algorithm.loss of its own.*algorithm=\.\.\."):
        config.from_dict(saved["config"])
    policy = rookery.load(result.run)
    assert [policy(i)[0] for i in range(4)] == [result.policy(i)[0] for i in range(4)]
    with_it = rookery.load(result.run, algorithm=vtrace.VTrace(loss=penalised, network=NetworkConfig(hidden=(4,))))
    assert [with_it(i)[0] for i in range(4)] == [result.policy(i)[0] for i in range(4)]


def test_the_topology_stays_that_of_the_algorithm_and_options_are_checked_as_ever():
    assert isinstance(resolve(vtrace.VTrace(loss=penalised), env="identity").topology, ActorLearner)
    parsed, _ = options.parse("rookery", ["--learning-rate", "0.5"], resolve("a2c", env="identity", loss=a2c.loss))
    assert parsed.algorithm.loss is a2c.loss and parsed.algorithm.learning_rate == 0.5
    with pytest.raises(ConfigError, match="learning_rate"):
        resolve("impala", env="identity", loss=penalised, learning_rate="fast")
    with pytest.raises(ConfigError, match="dqn takes no loss of your own: a2c, pg, impala and ppo do"):
        resolve("dqn", env="identity", loss=penalised)
