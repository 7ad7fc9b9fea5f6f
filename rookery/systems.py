"""Every named system: an algorithm, a topology and the defaults that go with them. Imports neither jax nor the parts.

`PRESETS` holds what is known to work for environments, and for families of them. All that fit are taken, in the order of the
table, so that a family's stands before what is particular to some of it; whatever the user says comes on top. A preset is a
plain mapping of option names to values, and may hold options of the environment as well.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery import foreign_names, references


@dataclass(frozen=True)
class System:
    name: str
    algorithm: str  # "module:class" below rookery.algorithms
    topology: str  # "module:class" below rookery.topologies
    summary: str
    paper: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def algorithm_class(self) -> type:
        return _load("rookery.algorithms", self.algorithm)

    def topology_class(self) -> type:
        return _load("rookery.topologies", self.topology)


@dataclass(frozen=True)
class Preset:
    systems: tuple[str, ...]
    env: str  # a family, or a pattern of ids such as "HalfCheetah-v*"
    options: Mapping[str, Any]
    env_options: Mapping[str, Any] = field(default_factory=dict)  # for whichever pool: rookery.envs.options has those of all

    def fits(self, env: str) -> bool:
        """Return whether it is for this environment, whichever pool steps it."""
        id = _plain_id(env)
        family = FAMILIES.get(self.env)
        return fnmatch.fnmatchcase(id, self.env) if family is None else family.fullmatch(id) is not None


class UnknownSystem(ValueError):
    """There is no system, or no topology, of that name."""


# A greedy policy that was good for most of a run is not lost at its end: values are not taken from their own errors, and the
# last steps are small. (DQN on Acrobot: the greedy policy of its end at -460 without both, at -83 with them)
STEADY = {"double": True, "anneal": True}
# A share of random actions for each environment: no single one is right for every task. (DQN on LunarLander with 0.05
# everywhere learns to hover, then its replay holds nothing else: 2 after 500,000 steps)
LADDER = {"exploration": "ladder", "epsilon": 0.4}
# Random actions first, but briefly: who begins with few goes round in circles for ever where episodes have no limit of time
# (CliffWalking: -27,000), and who begins with many for a tenth of the run hovers. With 10,000 steps: -13, the best there is,
# and 223 on LunarLander after 300,000
BRIEFLY = {**LADDER, "exploration": "anneal-ladder", "epsilon_steps": 10_000}
ANNEALED = {"exploration": "anneal", "epsilon": 0.05}
# An actor-critic as its authors had it: short returns, one step of the value for each of the policy
PUBLISHED = {
    "rollout_length": 5, "gae_lambda": 1.0, "learning_rate": 7e-4, "anneal": True, "entropy_cost": 0.01, "value_steps": 1,
    "rmsprop_epsilon": 1e-5,
}
# A gradient of the published 5 rows of one environment is mostly noise on a board: A3C on the 10 x 5 catch is at 0.3 with 5
# rows and at 1.0 with 20 (one seed)
LONGER = {"rollout_length": None}
RAINBOW = {
    "double": True, "dueling": True, "noisy": True, "n_step": 3, "num_atoms": 51, "anneal": True,
    "replay": {"selector": "prioritized", "exponent": 0.5},
}
CURL = ("curl-sac", "async-curl-sac", "curl-rainbow")
CONTRASTIVE = {"views": {"kind": "shift"}, "contrastive_every": 1}
# An update of an encoder takes as long as many of a small network's: one gradient step each, on half the rows; images fill
# memory. Rewards of a pixel task say little at first, so the policy begins near to greedy, as CURL's
FROM_IMAGES = {
    "gradient_steps": 1, "batch_size": 128, "learning_rate": 1e-3, "initial_temperature": 0.1, "replay": {"capacity": 100_000},
}
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("ppo", "ppo:PPO", "sync:Sync", "proximal policy optimisation", "Schulman et al. 2017"),
        System("a2c", "a2c:A2C", "sync:Sync", "advantage actor-critic", "Mnih et al. 2016"),
        System("pg", "pg:PG", "sync:Sync", "plain policy gradient", "Williams 1992"),
        System("impala", "vtrace:VTrace", "actor_learner:ActorLearner", "V-trace actor-learner", "Espeholt et al. 2018",
               {"num_envs": 8, "groups": 1}),
        System("appo", "appo:APPO", "actor_learner:ActorLearner", "PPO's clip on V-trace targets", "Petrenko et al. 2020"),
        System("dqn", "dqn:DQN", "sync:Sync", "deep Q-learning from replay", "Mnih et al. 2015, van Hasselt et al. 2016",
               {**STEADY, **BRIEFLY}),
        System(
            "apex-dqn", "dqn:DQN", "actor_learner:ActorLearner", "DQN with a ladder of epsilons and priorities by collectors",
            "Horgan et al. 2018",
            {
                **LADDER, "double": True, "dueling": True, "n_step": 3, "rollout_length": 16, "batch_size": 128, "anneal": True,
                "replay": {"selector": "prioritized", "capacity": 200_000},
                "prefetch": 4,  # a small network's update takes less time than the driver may be away for
            },
        ),
        System("r2d2", "r2d2:R2D2", "actor_learner:ActorLearner", "recurrent Q-learning from sequences",
               "Kapturowski et al. 2019", {"num_envs": 16}),
        System("r2d3", "r2d2:R2D2", "actor_learner:ActorLearner", "R2D2 with demonstrations", "Paine et al. 2019",
               {"num_envs": 16, "demo_ratio": 1 / 256}),
        System(
            "rainbow", "dqn:DQN", "sync:Sync", "DQN with all that was added to it", "Hessel et al. 2018",
            RAINBOW,
        ),
        System("seed", "vtrace:VTrace", "actor_learner:ActorLearner", "V-trace with one policy beside the learner",
               "Espeholt et al. 2020", {"inference": "central", "num_envs": 8}),
        System("seed-r2d2", "r2d2:R2D2", "actor_learner:ActorLearner", "R2D2 with one policy beside the learner",
               "Espeholt et al. 2020", {"inference": "central", "num_envs": 16}),
        System("sample-factory", "appo:APPO", "actor_learner:ActorLearner", "APPO, one policy for environments in processes",
               "Petrenko et al. 2020", {"inference": "central"}),
        System("anakin-ppo", "ppo:PPO", "anakin:Anakin", "PPO and its environments as one program", "Hessel et al. 2021",
               {"rollout_length": 32}),
        System("anakin-dqn", "dqn:DQN", "anakin:Anakin", "DQN, its replay and its environments as one program",
               "Hessel et al. 2021", {"num_envs": 16, **STEADY}),
        System("a3c", "a2c:A2C", "async_gradients:AsyncGradients", "actor-critic by asynchronous gradients",
               "Mnih et al. 2016", {**PUBLISHED, **LONGER}),
        System(
            "async-dqn", "dqn:DQN", "async_gradients:AsyncGradients", "n-step Q-learning by asynchronous gradients, no replay",
            "Mnih et al. 2016",
            # without a replay a return is seen once: it must move values at once, and in many small steps
            {
                "fresh": True, "exploration": "mixed", "rollout_length": 8, "n_step": 8, "workers": 4, "num_envs": 4,
                "double": True, "error_clip": 100.0, "learning_rate": 2e-3, "anneal": True, "target_period": 200,
            },
        ),
        System("gala", "a2c:A2C", "gossip:Gossip", "actor-critics that gossip in a ring", "Assran et al. 2019",
               {**PUBLISHED, "learning_rate": 1.4e-3, "anneal": False, "num_envs": 16, "rmsprop_epsilon": 1e-10}),
        System(
            "gorila", "dqn:DQN", "parameter_server:ParameterServer", "DQN in bundles, parameters in shards", "Nair et al. 2015",
            {"max_staleness": 100, "outlier_deviations": 8.0, **STEADY},
        ),
        System("ddpg", "ddpg:DDPG", "sync:Sync", "deterministic policy gradients from replay", "Lillicrap et al. 2016"),
        System("td3", "td3:TD3", "sync:Sync", "DDPG with twin critics, smoothed targets and a policy that waits",
               "Fujimoto et al. 2018"),
        System("sac", "sac:SAC", "sync:Sync", "soft actor-critic with a learned temperature", "Haarnoja et al. 2018"),
        System("curl-sac", "sac:SAC", "sync:Sync", "SAC from images, with a contrastive loss for its encoder",
               "Srinivas et al. 2020", {**CONTRASTIVE, **FROM_IMAGES}),
        System("curl-rainbow", "dqn:DQN", "sync:Sync", "Rainbow from images, with a contrastive loss for its encoder",
               "Srinivas et al. 2020", {**RAINBOW, **CONTRASTIVE}),
        System("async-curl-sac", "sac:SAC", "two_learners:TwoLearners", "CURL whose contrastive learner works beside SAC's",
               "Srinivas et al. 2020, Mnih et al. 2016", {**CONTRASTIVE, **FROM_IMAGES}),
        System("anakin-sac", "sac:SAC", "anakin:Anakin", "SAC, its replay and its environments as one program",
               "Hessel et al. 2021", {"num_envs": 64}),
        System(
            "apex-dpg", "ddpg:DDPG", "actor_learner:ActorLearner", "DDPG with noise of each collector's own and priorities",
            "Horgan et al. 2018",
            {
                "n_step": 5, "exploration": "ladder", "noise": 0.1, "rollout_length": 16, "num_envs": 16, "prefetch": 4,
                "replay": {"selector": "prioritized", "remover": "prioritized"},
            },
        ),
        System("qt-opt", "qt_opt:QTOpt", "bellman_updaters:BellmanUpdaters",
               "Q-learning over continuous actions, labelled by Bellman updaters", "Kalashnikov et al. 2018",
               {"rollout_length": 4}),
        System("es", "es:ES", "evolution:Evolution", "evolution strategies: seeds and returns travel", "Salimans et al. 2017"),
        System("ars", "ars:ARS", "evolution:Evolution", "random search with linear policies", "Mania et al. 2018",
               {"population": 16, "num_envs": 8}),
    )
}

# Games that have ids without the prefix ALE/, here or in EnvPool; those with it are known by the prefix.
_GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling Boxing
Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction Enduro FishingDerby
Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman
NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders
StarGunner Surround Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon
"""
_GAME = "|".join(_GAMES.split())
FAMILIES = {
    "atari": re.compile(rf"ALE/\w+-v\d|\w+NoFrameskip-v[04]|({_GAME})(Deterministic)?-v[045]"),  # images: `-ram` is a vector
    "atari-raw": re.compile(rf"({_GAME})(Deterministic)?-v[04]"),  # of those, the ones that nobody scales, greys and stacks
    "minatar": re.compile(r"\w+-MinAtar|minatar-\w+|MinAtar/\w+-v\d"),  # gymnax's, pgx's and the authors' ids
}


def family_of(env: str) -> str | None:
    """Return the family that an environment's id belongs to: "atari" or "minatar"; None where it belongs to none."""
    return next((name for name, ids in FAMILIES.items() if ids.fullmatch(_plain_id(env))), None)


def _plain_id(env: str) -> str:
    """Return an id without who steps it, or where it is: no part of what an environment is."""
    if references.is_reference(env):
        return references.name_in(env)
    source, colon, id = env.partition(":")
    return id if colon and source in references.SOURCES else env


ATARI = {"reward_clip": "unit", "network": {"encoder": "nature"}, "total_steps": 10_000_000}
# V-trace as published, for clipped rewards and many environments
IMPALA = {
    "rollout_length": 20, "trace_lambda": 1.0, "learning_rate": 6e-4, "anneal": False, "entropy_cost": 0.01,
    "rmsprop_epsilon": 0.01,
}  # fmt: skip
AS_THEY_COME = {"normalise_observations": False, "normalise_rewards": False}
PRESETS: tuple[Preset, ...] = (
    # CartPole: many environments at once, because one numpy call steps them all; tuned for time, not for steps
    # (so few updates that running moments would still move in the last of them)
    Preset(("ppo",), "CartPole-v1", {
        "num_envs": 128, "rollout_length": 32, "epochs": 2, "minibatches": 8, "learning_rate": 3e-3, "discount": 0.98,
        "entropy_cost": 0.0, "total_steps": 300_000, **AS_THEY_COME,
    }),
    Preset(("a2c",), "CartPole-v1", {
        **PUBLISHED, "num_envs": 64, "rollout_length": 8, "learning_rate": 3e-3, "entropy_cost": 0.001, "total_steps": 500_000,
    }),
    Preset(("pg",), "CartPole-v1", {
        "num_envs": 64, "rollout_length": 32, "learning_rate": 5e-3, "entropy_cost": 0.01, "anneal": True,
        "total_steps": 1_000_000,
    }),
    Preset(("impala", "seed"), "CartPole-v1", {
        "num_envs": 64, "groups": 1, "rollout_length": 16, "trace_lambda": 1.0, "learning_rate": 3e-3, "value_steps": 1,
        "rmsprop_epsilon": 0.01, "total_steps": 800_000,
    }),
    Preset(("appo", "sample-factory"), "CartPole-v1", {
        "num_envs": 32, "groups": 1, "rollout_length": 32, "epochs": 2, "minibatches": 4, "learning_rate": 3e-3,
        "max_gradient_norm": 0.5, "discount": 0.98, "trace_lambda": 1.0, "entropy_cost": 0.0, "total_steps": 800_000,
    }),
    Preset(("dqn",), "CartPole-v1", {
        **AS_THEY_COME,
        "num_envs": 16, "rollout_length": 4, "learning_rate": 1e-3, "batch_size": 64, "gradient_steps": 8, "target_period": 100,
        "exploration": "anneal", "epsilon_steps": 10_000, "epsilon": 0.04, "double": True,
        "network": {"hidden": (128, 128), "activation": "relu"},
        "replay": {"capacity": 100_000, "samples_per_insert": 16.0}, "total_steps": 150_000,
    }),
    Preset(("rainbow",), "CartPole-v1", {
        **AS_THEY_COME,
        "num_envs": 16, "learning_rate": 1e-3, "batch_size": 64, "gradient_steps": 4, "target_period": 100,
        "value_range": (0.0, 100.0), "adam_epsilon": 1.5e-4, "network": {"hidden": (64, 64), "activation": "relu"},
        "replay": {"samples_per_insert": 16.0}, "total_steps": 150_000,
    }),
    Preset(("apex-dqn",), "CartPole-v1", {
        **AS_THEY_COME,
        "num_envs": 16, "groups": 1, "rollout_length": 8, "learning_rate": 1e-3, "batch_size": 256, "target_period": 100,
        "network": {"hidden": (64, 64), "activation": "relu"}, "replay": {"samples_per_insert": 32.0}, "total_steps": 300_000,
        "gradient_steps": 4,  # handing a batch over costs a tenth of what learning from it does
    }),
    # what is learned counts in updates: short sequences in small batches make one for every five steps
    Preset(("r2d2", "seed-r2d2"), "CartPole-v1", {
        "num_envs": 16, "groups": 1, "rollout_length": 5, "burn_in": 5, "sequence_length": 10, "batch_size": 16, "n_step": 5,
        "discount": 0.99, "learning_rate": 1e-3, "adam_epsilon": 1e-5, "target_period": 200,
        "network": {"hidden": (64,), "core": "lstm", "core_size": 32, "activation": "relu"},
        "replay": {"capacity": 100_000, "min_size": 200, "samples_per_insert": 16.0}, "total_steps": 150_000,
    }),
    Preset(("a3c",), "CartPole-v1", {
        "num_envs": 32, "workers": 2, "rollout_length": 16, "learning_rate": 2e-3, "entropy_cost": 0.001,
        "total_steps": 600_000,
    }),
    # without a replay every rollout is learned from once: many small ones, of long returns, and a rate that falls
    Preset(("async-dqn",), "CartPole-v1", {
        **AS_THEY_COME,
        "num_envs": 32, "workers": 2, "rollout_length": 8, "n_step": 8, "discount": 0.98, "learning_rate": 2e-3, "anneal": True,
        "target_period": 50, "error_clip": 100.0, "epsilon_steps": 100_000, "double": True, "total_steps": 1_000_000,
        "network": {"hidden": (128, 128), "activation": "relu"},
    }),
    Preset(("gala",), "CartPole-v1", {
        "num_envs": 64, "peers": 4, "rollout_length": 8, "learning_rate": 3e-3, "entropy_cost": 0.001, "anneal": True,
        "rmsprop_epsilon": 1e-5, "total_steps": 600_000,
    }),
    Preset(("es",), "CartPole-v1", {
        "population": 64, "num_envs": 32, "max_episode_steps": 500, "sigma": 0.1, "learning_rate": 0.05, "total_steps": 500_000,
        "network": {"hidden": (16,)},
    }),
    Preset(("ars",), "CartPole-v1", {
        "population": 16, "num_envs": 8, "max_episode_steps": 500, "sigma": 0.1, "learning_rate": 0.05, "total_steps": 300_000,
    }),
    # Pendulum: a plateau at -900 holds small perturbations. Half an episode shows the swing, and buys twice the generations;
    # all directions count, because the best returns are those of the pairs that start near the top
    Preset(("es",), "Pendulum-v1", {
        "population": 64, "num_envs": 32, "max_episode_steps": 100, "sigma": 0.5, "learning_rate": 0.1, "weight_decay": 0.0,
        "network": {"hidden": (16,)}, "total_steps": 2_000_000,
    }),
    Preset(("ars",), "Pendulum-v1", {
        "variant": "v2", "population": 64, "num_envs": 32, "max_episode_steps": 100, "sigma": 0.5, "learning_rate": 0.5,
        "network": {"hidden": (16,)}, "total_steps": 2_000_000,
    }),
    Preset(("ppo",), "LunarLander-v3", {
        "num_envs": 32, "rollout_length": 128, "epochs": 10, "minibatches": 32, "learning_rate": 5e-4, "discount": 0.999,
        "gae_lambda": 0.98, "total_steps": 1_500_000, **AS_THEY_COME,
    }),
    # actions that are mostly at their bounds swing the car to the top now and then; with smaller ones it learns to save fuel
    Preset(("ppo",), "MountainCarContinuous-v0", {"network": {"initial_log_std": 1.0}, "total_steps": 300_000}),
    # seven collectors, as the paper's robots; values are chances of success, so its loss is a cross-entropy between 0 and 1
    Preset(("qt-opt",), "grasping", {
        "num_envs": 7, "collectors": 7, "discount": 0.9, "value_range": (0.0, 1.0), "update_ratio": 0.5, "polyak": 0.01,
        "learning_rate": 1e-3, "network": {"encoder": "shallow", "hidden": (128,)}, "replay": {"capacity": 50_000},
        "total_steps": 15_000,
    }),
    # MuJoCo: the settings that the continuous-control details were collected for, over more environments
    Preset(("ppo",), "HalfCheetah-v*", {
        "num_envs": 16, "rollout_length": 128, "epochs": 10, "minibatches": 32, "learning_rate": 3e-4, "discount": 0.98,
        "gae_lambda": 0.92, "entropy_cost": 0.0, "network": {"initial_log_std": -1.0}, "total_steps": 1_000_000,
    }),
    Preset(("ppo",), "atari", {
        **ATARI, "num_envs": 16, "groups": 2, "rollout_length": 128, "epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4,
        "clip": 0.1, "value_clip": 0.1,
    }),
    # the value's error counts half its square, as in the code of A2C's and GALA's authors
    Preset(("a2c",), "atari", {**ATARI, **PUBLISHED, "num_envs": 16, "groups": 2, "value_cost": 1.0}),
    Preset(("gala",), "atari", {
        **ATARI, "num_envs": 64, "peers": 4, "anneal": True, "value_cost": 1.0, "rmsprop_epsilon": 1e-5,
    }),
    # four environments for each worker: a gradient of 5 rows costs nearly as much as one of 20
    Preset(("a3c",), "atari", {
        **ATARI, "network": {"encoder": "shallow"}, "rollout_length": 5, "num_envs": 16, "workers": 4, "value_cost": 1.0,
    }),
    # without a baseline the returns of a rollout must say which actions were good: long ones, and many
    Preset(("pg",), "atari", {
        **ATARI, "num_envs": 16, "groups": 2, "rollout_length": 128, "learning_rate": 2.5e-4, "anneal": True,
        "entropy_cost": 0.01,
    }),
    # a target of 10,000 steps' age, 20 steps an update; epsilons fall over 4 million frames
    Preset(("async-dqn",), "atari", {
        "num_envs": 16, "workers": 4, "rollout_length": 5, "n_step": 5, "double": False, "error_clip": 1.0,
        "reward_clip": 1.0, "network": {"encoder": "shallow"}, "learning_rate": 1e-4, "target_period": 500,
        "epsilon_steps": 1_000_000, "total_steps": 10_000_000,
    }),
    # four tables of 50,000 frames, kept singly, take 1.5 GB; the target is a copy of every 10,000 steps
    Preset(("gorila",), "atari", {
        "num_envs": 16, "workers": 4, "reward_clip": 1.0, "network": {"encoder": "nature"}, "learning_rate": 1e-4,
        "adam_epsilon": 1.5e-4, "target_period": 2_500, "epsilon": 0.1, "epsilon_steps": 1_000_000,
        "replay": {"stack": 4, "capacity": 50_000, "min_size": 5_000}, "total_steps": 10_000_000,
    }),
    # a member acts with a network of its own: 16 shallow ones take 45 MB. Without the papers' batch normalisation small
    # perturbations change no action. Games are cut: their first thousand steps tell members apart, and the longest would
    # hold up all others
    Preset(("es",), "atari", {
        "population": 64, "num_envs": 16, "max_episode_steps": 1_000, "sigma": 0.05, "network": {"encoder": "shallow"},
        "total_steps": 20_000_000,
    }),
    Preset(("ars",), "atari", {
        "variant": "v1-t", "population": 64, "best": 16, "num_envs": 16, "max_episode_steps": 1_000, "learning_rate": 0.01,
        "network": {"encoder": "shallow"}, "total_steps": 20_000_000,
    }),
    Preset(("dqn",), "atari", ANNEALED),
    # frames are kept singly: 200,000 steps take 1.5 GB
    Preset(("dqn", "rainbow", "curl-rainbow", "apex-dqn"), "atari", {
        "num_envs": 16, "groups": 2, "reward_clip": 1.0, "network": {"encoder": "nature"}, "epsilon_steps": 250_000,
        "target_period": 2_500,  # 10,000 steps; Rainbow 8,000
        "replay": {"stack": 4, "capacity": 200_000, "min_size": 10_000}, "total_steps": 10_000_000,
    }),
    Preset(("rainbow", "curl-rainbow"), "atari", {
        "value_range": (-10.0, 10.0), "learning_rate": 6.25e-5, "adam_epsilon": 1.5e-4, "target_period": 2_000,
    }),
    Preset(("apex-dqn",), "atari", {
        "batch_size": 512, "learning_rate": 6.25e-5, "adam_epsilon": 1.5e-7, "target_period": 2_500,
        "replay": {"samples_per_insert": 4.0},
    }),
    # over choices: a gradient step for four environment steps, as DQN's
    Preset(("sac", "curl-sac", "async-curl-sac"), "atari", {
        "num_envs": 16, "groups": 2, "reward_clip": 1.0, "network": {"encoder": "nature"}, "batch_size": 64,
        "update_ratio": 0.25, "gradient_steps": 4, "replay": {"stack": 4, "capacity": 200_000, "min_size": 10_000},
        "total_steps": 10_000_000,
    }),
    Preset(("r2d2", "seed-r2d2", "r2d3"), "atari", {
        "groups": 2, "rollout_length": 40, "burn_in": 40, "sequence_length": 80, "batch_size": 64, "discount": 0.997,
        "learning_rate": 1e-4, "adam_epsilon": 1e-3, "target_period": 2_500, "total_steps": 10_000_000,
        "network": {"encoder": "nature", "core": "lstm", "core_size": 512},
        "replay": {"stack": 4, "min_size": 500, "samples_per_insert": 4.0},
    }),
    Preset(("impala", "seed"), "atari", {**ATARI, **IMPALA, "num_envs": 32, "groups": 2}),
    Preset(("appo", "sample-factory"), "atari", {
        **ATARI, "learning_rate": 2.5e-4, "rollout_length": 20, "epochs": 2, "minibatches": 4, "clip": 0.1, "anneal": False,
        "entropy_cost": 0.003,
    }),
    # raw frames of 210 x 160 take five times the memory of 84 x 84
    Preset(tuple(SYSTEMS), "atari-raw", {}, env_options={"grayscale": True, "frame_stack": 4}),
    Preset(("dqn", "rainbow", "apex-dqn", "r2d2", "seed-r2d2", "r2d3", "sac", *CURL), "atari-raw", {
        "replay": {"capacity": 50_000},
    }),
    Preset(("gorila",), "atari-raw", {"replay": {"capacity": 12_500}}),
    # MinAtar: 10 x 10 x channels, which are read by its authors' network. The authors train a DQN for 5 million steps
    Preset(("ppo", "anakin-ppo"), "minatar", {
        "num_envs": 64, "rollout_length": 128, "epochs": 4, "minibatches": 8, "learning_rate": 1e-3,
        "network": {"encoder": "small"}, "total_steps": 10_000_000,
    }),
    Preset(("a2c",), "minatar", {
        **PUBLISHED, "num_envs": 64, "rollout_length": 8, "network": {"encoder": "small"}, "total_steps": 10_000_000,
    }),
    Preset(("impala",), "minatar", {
        **IMPALA, "num_envs": 64, "groups": 2, "anneal": True, "network": {"encoder": "small"}, "total_steps": 10_000_000,
    }),
    Preset(("dqn", "anakin-dqn", "rainbow"), "minatar", {
        "num_envs": 16, "target_period": 1_000, "epsilon_steps": 100_000, "network": {"encoder": "small"},
        "replay": {"min_size": 5_000}, "total_steps": 5_000_000,
    }),
    Preset(("dqn",), "minatar", ANNEALED),
    Preset(("rainbow",), "minatar", {"learning_rate": 2.5e-4}),
    Preset(("anakin-ppo",), "CartPole-v1", {
        "num_envs": 128, "rollout_length": 32, "epochs": 2, "minibatches": 8, "learning_rate": 3e-3, "discount": 0.98,
        "entropy_cost": 0.0, "total_steps": 500_000, **AS_THEY_COME,
    }),
    # returns of many steps, and a small replay, so that they are those of a policy much like today's: one-step returns and a
    # large one learn to balance the pole, and not to keep off the ends of the track 200 steps later
    Preset(("anakin-dqn",), "CartPole-v1", {
        **AS_THEY_COME,
        "num_envs": 16, "rollout_length": 4, "learning_rate": 1e-3, "anneal": True, "batch_size": 64, "gradient_steps": 8,
        "n_step": 10, "target_period": 40, "error_clip": 100.0, "epsilon_steps": 10_000, "epsilon": 0.04, "double": True,
        "network": {"hidden": (128, 128), "activation": "relu"}, "replay": {"capacity": 10_000, "samples_per_insert": 16.0},
        "updates_per_call": 100, "total_steps": 100_000,
    }),
    Preset(("gorila",), "CartPole-v1", {
        **AS_THEY_COME,
        "num_envs": 16, "workers": 2, "rollout_length": 4, "learning_rate": 1e-3, "anneal": True, "batch_size": 64,
        "n_step": 10, "target_period": 40, "error_clip": 100.0, "epsilon_steps": 10_000, "epsilon": 0.04, "double": True,
        "network": {"hidden": (128, 128), "activation": "relu"},
        "replay": {"capacity": 5_000, "min_size": 500, "samples_per_insert": 16.0}, "total_steps": 100_000,
    }),
)  # fmt: skip


def system(name: str, env: str | None = None) -> System:
    """Find the system of that name, however it is spelt (PPO, Ape-X); an error that suggests what is near otherwise."""
    found = name if name in SYSTEMS else foreign_names.spelt(name, SYSTEMS)
    if found is None:
        if (told := foreign_names.absent(name, env)) is not None:
            raise UnknownSystem(told)
        raise _unknown("system", name, SYSTEMS, "Systems")
    return SYSTEMS[found]


def _unknown(what: str, name: str, known: Mapping[str, Any], title: str) -> UnknownSystem:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownSystem(f"there is no {what} {name!r}.{hint} {title}: {', '.join(known)}.")


def defaults(name: str, env: str) -> dict[str, Any]:
    """Merge the system's own defaults with those of the presets that fit the environment."""
    return functools.reduce(merged, (options for _, options in origins(name, env)), {})


def origins(name: str, env: str) -> list[tuple[str, Mapping[str, Any]]]:
    """List where the defaults of a system come from, what comes on top last: (system or preset, options)."""
    presets = [(f"preset {preset.env}", preset.options) for preset in _fitting(name, env)]
    return [(f"system {name}", SYSTEMS[name].defaults), *presets]


def env_options(name: str, env: str) -> dict[str, Any]:
    """Collect the environment options that those presets hold."""
    return functools.reduce(merged, (preset.env_options for preset in _fitting(name, env)), {})


def _fitting(name: str, env: str) -> list[Preset]:
    return [preset for preset in PRESETS if name in preset.systems and preset.fits(env)]


def merged(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `more` on top of `options`; of a nested group (`network`, `replay`) only the values that `more` names."""
    both = {**options, **more}
    for name, value in options.items():
        if isinstance(value, dict) and isinstance(both[name], dict):
            both[name] = {**value, **both[name]}
    return both


def name_of(algorithm: Any) -> str:
    """Name the system that an algorithm of Rookery's is known by (PPO() -> "ppo"), else the class of the algorithm."""
    path = f"{type(algorithm).__module__}:{type(algorithm).__name__}".removeprefix("rookery.algorithms.")
    return next((entry.name for entry in SYSTEMS.values() if entry.algorithm == path), type(algorithm).__name__)


RUNTIMES = ("local", "ray")
TOPOLOGIES = {entry.topology.split(":")[1]: entry.topology for entry in SYSTEMS.values()}


def flag_of(class_name: str) -> str:
    """Convert a class name to what `--topology` takes: ActorLearner -> actor-learner."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", class_name).lower()


def topology_named(name: str) -> type:
    """Find the topology of that name on the command line; an error that suggests the nearest otherwise."""
    known = {flag_of(class_name): class_name for class_name in TOPOLOGIES}
    if name not in known:
        raise _unknown("topology", name, known, "Topologies")
    return load_topology(known[name])


def load_topology(class_name: str) -> type:
    """Load the topology of that name. Only names known here: a file never causes an import of anything else."""
    if class_name not in TOPOLOGIES:
        raise ValueError(f"there is no topology {class_name!r}: {', '.join(TOPOLOGIES)}")
    return _load("rookery.topologies", TOPOLOGIES[class_name])


def _load(package: str, path: str) -> type:
    module, name = path.split(":")
    return getattr(importlib.import_module(f"{package}.{module}"), name)
