"""Names that people bring along from stable-baselines3, CleanRL, Sample Factory and RLlib, and what they are called here.

Options are answered and not taken: a name that is nearly ours often counts something else (SB3's `batch_size` of PPO is a
minibatch, `n_steps` a rollout, `target_update_interval` counts steps). Names of systems are taken where only the spelling
differs (PPO, Ape-X, REINFORCE); what is not there yet is said, with what does the same kind of work today.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Counterpart(NamedTuple):
    """What an option of another library is here."""

    ours: tuple[str, ...]  # the first that the system has is named; "env_options.x": an option of the environment
    note: str = ""


# their names | ours, the likeliest first | what else must be known
_ROWS = """
gamma discount_factor | discount |
lr alpha step_size learning_rates | learning_rate |
lr_schedule anneal_lr lr_decay use_linear_lr_decay | anneal | linear, to zero over the planned run
total_timesteps timesteps n_timesteps train_for_env_steps num_timesteps stop_timesteps max_steps | total_steps |
train_for_seconds time_total_s | seconds |
stop_iters training_iterations num_updates | total_updates |
stop_reward reward_threshold episode_reward_mean | stop_return |
n_steps num_steps rollout | rollout_length n_step | steps of each environment in a rollout
rollout_fragment_length recurrence unroll_length batch_T | rollout_length | steps of each environment in a rollout
nstep n_step_returns | n_step rollout_length |
n_envs num_vec_envs num_envs_per_worker num_envs_per_env_runner | num_envs | of all collectors together
num_workers num_rollout_workers num_env_runners n_actors | collectors workers | --env-processes steps environments in processes
batch_size | minibatches rollouts_per_batch population | how many of them in an epoch, not their size
mini_batch_size minibatch_size sgd_minibatch_size | minibatches batch_size | how many per epoch, not their size
train_batch_size train_batch_size_per_learner | num_envs batch_size | num_envs x rollout_length rows make a batch
nminibatches num_minibatches num_batches_per_epoch | minibatches |
n_epochs update_epochs num_sgd_iter num_epochs noptepochs | epochs |
ent_coef entropy_coef entropy_coeff exploration_loss_coeff beta_entropy | entropy_cost |
vf_coef value_coef vf_loss_coeff value_loss_coeff critic_coef | value_cost |
clip_range clip_coef clip_param ppo_clip_ratio cliprange clip_ratio | clip |
clip_range_vf ppo_clip_value vf_clip_param clip_vloss | value_clip |
max_grad_norm grad_clip grad_norm_clipping gradient_clip | max_gradient_norm |
lambda lambda_ lam | gae_lambda trace_lambda |
gae_lambda | trace_lambda |
vtrace_rho vtrace_clip_rho_threshold | rho_bar |
vtrace_c vtrace_clip_pg_rho_threshold | c_bar |
rms_prop_eps | rmsprop_epsilon |
adam_eps | adam_epsilon |
buffer_size memory_size replay_buffer_size | replay.capacity | in environment steps
learning_starts num_steps_sampled_before_learning_starts prefill_steps | replay.min_size | items in the table
train_freq train_frequency training_intensity replay_ratio | replay.samples_per_insert | how often each item is sampled
prioritized_replay prioritized | replay.selector | --replay.selector prioritized
prioritized_replay_alpha per_alpha | replay.exponent |
prioritized_replay_beta per_beta | replay.beta |
target_update_interval target_network_update_freq target_network_frequency target_update_freq | target_period | in updates
double_q | double |
start_e initial_epsilon exploration_initial_eps | epsilon | all actions are random at first, then this share
end_e final_epsilon exploration_final_eps | epsilon |
exploration_fraction epsilon_timesteps | epsilon_steps | in environment steps
v_min v_max vmin vmax | value_range | two numbers: from, to
n_atoms num_quantiles | num_atoms |
net_arch policy_kwargs fcnet_hiddens encoder_mlp_layers hidden_sizes hidden_size | network.hidden | sizes of the layers
activation_fn fcnet_activation nonlinearity | network.activation |
use_lstm use_rnn rnn_type recurrent | network.core | lstm or gru
lstm_cell_size lstm_hidden_size rnn_size | network.core_size |
encoder_conv_architecture conv_filters features_extractor_class | network.encoder |
actor_critic_share_weights vf_share_layers share_features_extractor | network.heads | shared or separate
log_std_init initial_stddev | network.initial_log_std |
normalize normalize_observations normalize_input norm_obs | normalise_observations |
normalize_rewards normalize_reward normalize_returns norm_reward | normalise_rewards |
clip_rewards clip_reward reward_clipping | reward_clip |
env_id environment gym_id task | env |
env_kwargs env_config | env_options | NAME=VALUE, as many as you like
n_stack num_stack framestack env_framestack | env_options.frame_stack |
frameskip frame_skip env_frameskip | env_options.frame_skip |
exp_name experiment experiment_name run_name | run |
train_dir log_dir log_folder local_dir storage_path logdir save_path | runs |
tensorboard_log | tensorboard | a switch: events go into the run's directory
track with_wandb use_wandb | wandb |
eval_freq evaluation_interval | eval_every | in updates
n_eval_episodes evaluation_duration num_eval_episodes | eval_episodes |
save_freq checkpoint_freq checkpoint_frequency save_every_sec | checkpoint_every | in updates
keep_checkpoints keep_checkpoints_num num_to_keep | keep |
save_milestones_sec keep_every | milestones | how many of them in the whole run
restart_behavior load_checkpoint resume_from restore | resume | --resume auto, or `rookery resume RUN`
num_seeds | seeds | 5: seeds 0 to 4
num_learners | learners |
num_gpus num_devices | devices | JAX takes what there is
"""

# What has no option here, and why.
_WITHOUT = {
    "device": "JAX takes the accelerator that is there; JAX_PLATFORMS=cpu keeps to the processor",
    "use_gpu cuda": "JAX takes the accelerator that is there; JAX_PLATFORMS=cpu keeps to the processor",
    "verbose": "a run shows how it goes; --json is quiet",
    "normalize_advantage norm_adv": "PPO always normalises the advantage",
    "use_gae": "--gae-lambda 1 is the plain return",
    "target_kl kl_coeff kl_target kl_loss_coeff": "nothing here is bound by a divergence; lower --learning-rate or --epochs",
    "tau": "target networks are copied every --target-period updates, not averaged",
    "torch_deterministic": "synchronous systems repeat bit by bit with the same --seed",
    "capture_video save_video": "`rookery video RUN` plays a policy and films it",
    "use_sde": "exploration by a state-dependent noise is not there",
    "framework": "it is JAX",
}


def _table() -> dict[str, list[Counterpart]]:
    found: dict[str, list[Counterpart]] = {}
    for row in _ROWS.strip().splitlines():
        theirs, ours, note = (part.strip() for part in row.split("|"))
        for name in theirs.split():
            found.setdefault(name, []).append(Counterpart(tuple(ours.split()), note))
    for names, note in _WITHOUT.items():
        for name in names.split():
            found.setdefault(name, []).append(Counterpart((), note))
    return found


OPTIONS: Mapping[str, list[Counterpart]] = _table()


def option(name: str, known: Collection[str], *, flags: bool, owner: str) -> str | None:
    """Counterpart an option of another library that is none of `known`, with ours; None where nobody calls anything so.

    flags: it was typed, so names are written as flags; owner: the system that was asked for."""
    plain = name.replace("-", "_").lower()
    if name in known or plain not in OPTIONS:
        return None
    shown = _as_flag if flags else _as_argument
    asked = shown(name)
    for answer in OPTIONS[plain]:
        if not answer.ours:
            return f"{asked} is no option: {answer.note}"
        for ours in answer.ours:
            place, _, inner = ours.partition(".")
            if place == "env_options" and inner:
                return f"{asked} is an option of the environment: {shown('env_options')} {inner}=4"
            found = next((there for there in (ours, inner) if there in known), None)  # inner: in the group that it is in
            if found is not None:
                note = f" ({answer.note})" if answer.note and ours == answer.ours[0] else ""
                return f"{asked} is {shown(found)} here{note}"
    first = OPTIONS[plain][0].ours[0]
    return f"{asked} would be {shown(first)} here, but {owner} has no such option"


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _as_argument(name: str) -> str:
    group, _, inner = name.partition(".")
    return f'{group}={{"{inner}": ...}}' if inner else name


# ------------------------------------------------------------------------------------------------------------- systems

# Spellings: letters and digits alone, in lower case -> the system
_SPELLINGS = {
    "apex": "apex-dqn", "dqnapex": "apex-dqn", "reinforce": "pg", "vpg": "pg", "policygradient": "pg", "vtrace": "impala",
    "torchbeast": "impala", "ddqn": "dqn", "doubledqn": "dqn", "asyncppo": "appo", "samplefactory": "sample-factory",
    "samplefactory2": "sample-factory", "openaies": "es", "evolutionstrategies": "es", "seedrl": "seed",
    "rainbowdqn": "rainbow", "purejaxrl": "anakin-ppo",
    "ppoatari": "ppo", "ppocontinuousaction": "ppo", "dqnatari": "dqn", "anakin": "anakin-ppo",
    "saccontinuousaction": "sac", "sacatari": "sac", "td3continuousaction": "td3", "ddpgcontinuousaction": "ddpg",
    "d4pg": "apex-dpg", "a3clstm": "a3c", "maskableppo": "ppo", "ppomaskable": "ppo",
}  # fmt: skip

_CONTINUOUS = "for continuous actions there are sac, td3, ddpg, apex-dpg and qt-opt from replay, and ppo"
_REUSE = "it is sac with many gradient steps for each environment step: --update-ratio 20 --layer-norm, or --critics 10 as well"
_PLANNING = "for boards and games there are ppo and anakin-ppo (in JAX), for Atari's also rainbow, r2d2 and impala"
_OFFLINE = "from recorded episodes and the environment together learns r2d3 (--demonstrations)"
_MANY = "several agents in one environment are not there yet either"
_VALUES = "for returns as distributions there is rainbow (C51: --num-atoms), and dqn with --num-atoms 51"
_TRUST = "what is nearest is ppo, whose clip is there for the same reason"
_ABSENT = {
    "tqc mpo awac": ("sac", _CONTINUOUS), "droq crossq redq": ("sac", _REUSE),
    "muzero alphazero efficientzero mctx gumbelmuzero": ("ppo", _PLANNING),
    "dreamer dreamerv2 dreamerv3 planet tdmpc tdmpc2 mbpo": (
        "ppo", "no system learns a model; without one there are ppo, impala and r2d2"
    ),
    "cql iql bc marwil crr bcq decisiontransformer td3bc": ("r2d3", _OFFLINE),
    "qrdqn c51 iqn fqf": ("rainbow", _VALUES),
    "trpo acktr acer npg": ("ppo", _TRUST),
    "qmix mappo ippo vdn maddpg coma": ("ppo", _MANY),
    "her gail airl ngu agent57 rnd ppornd": (
        "r2d2", "r2d2 and r2d3 explore by a ladder of epsilons, and have a memory"
    ),
    "recurrentppo ppolstm ppoatarilstm": ("ppo", "it is ppo with a core: --network.core lstm"),
    "pqn": ("dqn", "without a replay there is async-dqn, with one dqn and anakin-dqn"),
}  # fmt: skip
_ABSENT_BY_NAME = {name: told for names, told in _ABSENT.items() for name in names.split()}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def spelt(name: str, systems: Collection[str]) -> str | None:
    """Return the system that is meant by another spelling of its name; None where none is."""
    letters = _letters(name)
    return next((ours for ours in systems if _letters(ours) == letters), None) or _SPELLINGS.get(letters)


def absent(name: str, env: str | None = None) -> str | None:
    """Say that a well-known algorithm is not there yet, and what does its work; None where it is not known either."""
    told = _ABSENT_BY_NAME.get(_letters(name))
    if told is None:
        return None
    system, instead = told
    verb = "is not there by that name" if instead.startswith("it is") else "is not there yet"
    return f"{name} {verb}: {instead}. rookery train {system} --env {env or 'ID'}"
