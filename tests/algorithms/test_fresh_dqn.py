"""A DQN without replay: rollouts as transitions, and the epsilons of asynchronous Q-learning."""

from __future__ import annotations

import numpy as np
import pytest

from rookery import envs
from rookery.algorithms.dqn import DQN, epsilons, transitions
from rookery.data import columns
from rookery.types import Batch, Rollout

T, B, GAMMA = 6, 5, 0.9


def rollout() -> Rollout:
    """Episodes that end, are cut, and go on; observation[t, b] = 10 t + b."""
    rng = np.random.default_rng(0)
    zeros = np.zeros((T, B), np.float32)
    discount, valid = zeros + 1, zeros + 1
    discount[2, 0], valid[3, 0] = 0, 0  # terminated, then the row that resets
    valid[4, 1] = 0  # cut before row 4
    discount[5, 2] = 0
    observation = (10 * np.arange(T + 1)[:, None] + np.arange(B)).astype(np.float32)[..., None]
    return Rollout(
        observation=observation, action=rng.integers(0, 2, (T, B)).astype(np.int32),
        reward=rng.normal(size=(T, B)).astype(np.float32), discount=discount, valid=valid, extras={}, memory=(),
        version=np.zeros((T, B), np.int32), stream=(), step=(),
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 3, T, 20])
def test_rollouts_become_the_transitions_that_a_table_would_make_of_them(n: int) -> None:
    whole = rollout()
    total, discount, span = columns.n_step(
        reward=np.clip(whole.reward, -1, 1), discount=whole.discount, valid=whole.valid, gamma=GAMMA, n=n, count=T
    )
    folded = transitions(
        Batch(whole._replace(discount=whole.discount * GAMMA), np.arange(B), ()), n=n, reward_clip=1.0
    )  # fmt: skip
    kept = whole.valid.reshape(-1) > 0
    np.testing.assert_allclose(folded.rollout.reward[0][kept], total.reshape(-1)[kept], rtol=1e-6)
    np.testing.assert_allclose(folded.rollout.discount[0][kept], discount.reshape(-1)[kept], rtol=1e-6)
    after = (10 * (np.arange(T)[:, None] + span) + np.arange(B)).reshape(-1)
    assert (folded.rollout.observation[0, :, 0] == whole.observation[:-1, :, 0].reshape(-1)).all()
    assert (folded.rollout.observation[1, :, 0][kept] == after[kept]).all()
    assert (folded.rollout.valid[0] == whole.valid.reshape(-1)).all()
    assert (folded.rollout.action[0] == whole.action.reshape(-1)).all()
    assert (np.asarray(folded.weight).reshape(T, B) == np.arange(B)).all(), "a weight is that of its column"


def test_mixed_epsilons_are_annealed_to_the_papers_values_in_its_shares() -> None:
    config = DQN(exploration="mixed", epsilon_steps=100)
    assert (epsilons(config, np.arange(7), 7, 0) == 1).all()
    last = epsilons(config, np.arange(1000), 1000, 100)
    shares = {value: (last == np.float32(value)).mean() for value in (0.1, 0.01, 0.5)}
    assert shares == pytest.approx({0.1: 0.4, 0.01: 0.3, 0.5: 0.3}, abs=0.01)
    few = epsilons(config, np.arange(4), 4, 100)
    assert len(set(few.tolist())) == 3, "few environments have all of them"
    assert (epsilons(config, np.array([2]), 4, 100) == few[2]).all(), "whoever asks"
    half = epsilons(config, np.arange(4), 4, 50)
    np.testing.assert_allclose(half, (1 + few) / 2, rtol=1e-6)


@pytest.mark.parametrize("options", [{"gradient_steps": 2}, {"replay": {"selector": "prioritized"}}])
def test_what_needs_a_table_is_refused_without_one(options: dict) -> None:
    from rookery.run.config import resolve

    config = resolve("async-dqn", env="CartPole-v1", **options)
    with pytest.raises(ValueError, match="--fresh learns from each rollout once"):
        config.algorithm.build(envs.spec_of("CartPole-v1"))
