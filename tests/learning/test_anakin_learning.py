"""PPO and DQN learn to catch in one compiled program, and PPO does not when the sign of its loss is flipped."""

from toy_runs import assert_learned, case, play, with_flipped_policy_loss

from rookery.algorithms import ppo

PPO_CASE = case(
    "anakin-ppo", "jax:catch", 0.9, num_envs=32, rollout_length=16, epochs=2, minibatches=2, learning_rate=5e-3,
    updates_per_call=8, total_steps=60_000,
)  # fmt: skip
DQN_CASE = case(
    "anakin-dqn", "jax:catch", 0.7, num_envs=16, rollout_length=4, batch_size=64, gradient_steps=4, learning_rate=2e-3,
    target_period=50, epsilon_steps=4_000, replay={"capacity": 20_000, "min_size": 512, "samples_per_insert": 8.0},
    updates_per_call=64, total_steps=60_000, network={"hidden": (32,), "activation": "relu"},
)  # fmt: skip


def test_ppo_learns_to_catch(tmp_path):
    assert_learned(PPO_CASE, play(PPO_CASE, tmp_path))


def test_dqn_learns_to_catch(tmp_path):
    assert_learned(DQN_CASE, play(DQN_CASE, tmp_path))


def test_ppo_does_not_learn_when_its_loss_is_turned_around(tmp_path, monkeypatch):
    with_flipped_policy_loss(monkeypatch, ppo)
    assert play(PPO_CASE, tmp_path, total_steps=20_000)["return_mean"] < -0.5
