"""What cannot be done is refused with status 2, the reason and the nearest right thing, before anything is made."""

import pytest

REFUSED = {
    "a command": (["tran"], ["no command 'tran'", "'train'"]),
    "a system": (["train", "impla", "--env", "CartPole-v1"], ["no system 'impla'", "'impala'"]),
    "an environment": (["train", "ppo", "--env", "CartPol-v1"], ["no environment 'CartPol-v1'", "'CartPole-v1'"]),
    "no environment": (["train", "ppo"], ["which environment?", "--env ID"]),
    "no system": (["train"], ["SYSTEM", "impala"]),
    "an option": (["train", "ppo", "--env", "CartPole-v1", "--learning-rat", "1"], ["--learning-rat", "--learning-rate"]),
    "a nested option": (["train", "ppo", "--env", "identity", "--network.cor", "lstm"], ["--network.core"]),
    "a choice": (["train", "ppo", "--env", "CartPole-v1", "--network.core", "lstn"], ["'lstn'", "'lstm'"]),
    "a number": (["train", "ppo", "--env", "CartPole-v1", "--seed", "x"], ["--seed", "'x'"]),
    "a number out of range": (["train", "ppo", "--env", "identity", "--total-steps", "0"], ["--total-steps 0", "at least 1"]),
    "environments that cannot be shared": (
        ["train", "ppo", "--env", "CartPole-v1", "--num-envs", "7", "--collectors", "2"], ["--num-envs 7", "--num-envs 6"]
    ),
    "fewer environments than workers": (
        ["train", "a3c", "--env", "identity", "--num-envs", "4"], ["16 workers", "--num-envs 16"]
    ),
    "minibatches that do not divide": (
        ["train", "ppo", "--env", "CartPole-v1", "--minibatches", "7"], ["7 equal minibatches", "--minibatches 4"]
    ),
    "minibatches of sequences": (
        ["train", "ppo", "--env", "catch", "--network.core", "lstm", "--num-envs", "2", "--minibatches", "4"],
        ["2 sequences", "--minibatches 2"],
    ),
    "a network that cannot be": (
        ["train", "ppo", "--env", "identity", "--network.core", "lstm", "--network.heads", "separate"], ["two memories"]
    ),
    "an environment's option": (["train", "ppo", "--env", "identity", "--env-options", "symbls=4"], ["'symbls'", "symbols"]),
    "an option of gymnasium's": (
        ["train", "ppo", "--env", "CartPole-v1", "--env-options", "foo=1"], ["CartPole-v1 cannot be made with foo=1"]
    ),
    "an option without a value": (["train", "ppo", "--env", "identity", "--env-options", "symbols"], ["NAME=VALUE"]),
    "evaluation without episodes": (
        ["train", "ppo", "--env", "identity", "--stop-eval-return", "1", "--eval-episodes", "0"], ["--eval-episodes"]
    ),
    "a run's name": (["train", "ppo", "--env", "identity", "--run", "a/b"], ["'a/b'", "--runs"]),
    "a topology": (["train", "dqn", "--env", "identity", "--topology", "actor-leaner"], ["'actor-learner'", "gossip"]),
    "a topology that does not go with it": (
        ["train", "ppo", "--env", "identity", "--topology", "actor-learner"], ["PPO", "ActorLearner", "use Sync"]
    ),
    "a list": (["list", "sytems"], ["'systems'"]),
    "an option of list": (["list", "envs", "--jsn"], ["'--jsn'", "'--json'"]),
    "eval of nothing": (["eval"], ["which run?"]),
    "eval of no run": (["eval", "nix"], ["no run 'nix'", "rookery train"]),
    "recording nothing": (["record"], ["which run?", "--out FILE"]),
    "recording no run": (["record", "nix", "--out", "x"], ["no run 'nix'"]),
    "demonstrations": (["train", "r2d3", "--env", "deep-sea"], ["--demonstrations FILE", "rookery record RUN"]),
    "resume of nothing": (["resume"], ["which run?"]),
    "resume of no run": (["resume", "nix"], ["no run 'nix'"]),
    "a system to show": (["show", "ppoo"], ["'ppo'"]),
}  # fmt: skip


@pytest.mark.parametrize("words, said", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_request_says_why_and_what_is_near_and_leaves_nothing(rookery, words, said):
    answer = rookery(*words)
    assert answer.status == 2, answer
    for part in said:
        assert part in answer.err, answer.err
    assert "Traceback" not in answer.err and not answer.out
    assert rookery.files == []


def test_a_missing_extra_is_refused_before_a_directory_is_made(rookery, monkeypatch):
    monkeypatch.setattr("rookery.run.boards.find_spec", lambda name: None)
    answer = rookery("train", "ppo", "--env", "identity", "--tensorboard")
    assert answer.status == 2 and "pip install 'rookery[tensorboard]'" in answer.err and rookery.files == []


def test_an_error_that_is_not_the_users_keeps_its_traceback(rookery, monkeypatch):
    def broken(*args, **kwargs):
        return [] + ()

    monkeypatch.setattr("rookery.networks.network.actor_critic", broken)
    monkeypatch.setattr("rookery.algorithms.actor_critic.actor_critic", broken)
    with pytest.raises(TypeError):
        rookery("train", "ppo", "--env", "identity")
    assert rookery.files == []


def test_every_error_of_the_users_has_a_status_of_its_own():
    from rookery.commands import status
    from rookery.envs import EnvironmentFailed
    from rookery.run.checkpoint import CheckpointError, StorageError

    errors = [KeyError("ours"), EnvironmentFailed("raised", 0), CheckpointError("damaged"), StorageError("full")]
    assert [status.status_of(error) for error in errors] == [1, 3, 5, 6]
