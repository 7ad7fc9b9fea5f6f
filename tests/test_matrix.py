"""Algorithm × topology: every cell that is allowed is built and run, every other is refused with what would be right."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from metrics_page import undocumented

from rookery import systems
from rookery.run import listing
from rookery.run.assemble import assemble
from rookery.run.config import Config, ConfigError, resolve
from rookery.run.trainer import Trainer

ALGORITHMS = {entry.algorithm.split(":")[1]: entry.algorithm_class for entry in systems.SYSTEMS.values()}
ON_POLICY, OFF_POLICY = ("PPO", "A2C", "PG"), ("VTrace", "APPO")
REPLAYED = ("DDPG", "TD3", "SAC", "QTOpt")  # critics, and most of them actors, from replay
CONTINUOUS = ("DDPG", "TD3", "QTOpt")
RIGHT: dict[str, tuple[str, ...]] = {  # by hand: what `refuses` must come to
    "Sync": (*ON_POLICY, *OFF_POLICY, *REPLAYED, "DQN", "R2D2"),
    "ActorLearner": (*OFF_POLICY, *REPLAYED, "DQN", "R2D2"),
    "AsyncGradients": ("A2C", "PG", *OFF_POLICY, "DQN"),  # a DQN with --fresh
    "ParameterServer": ("A2C", "PG", *OFF_POLICY, *REPLAYED, "DQN", "R2D2"),
    "Gossip": ("A2C", "PG", *OFF_POLICY, "DQN"),  # likewise
    "Anakin": (*ON_POLICY, *OFF_POLICY, *REPLAYED, "DQN"),
    "Evolution": ("ES", "ARS"),
    "TwoLearners": ("SAC", "DQN"),  # from images, with contrastive steps
    "BellmanUpdaters": ("QTOpt",),
}
CELLS = [(algorithm, topology) for topology in RIGHT for algorithm in ALGORITHMS]
SMALL: dict[str, Any] = {
    "num_envs": 4, "rollout_length": 4, "minibatches": 2, "epochs": 1, "batch_size": 8, "sequence_length": 4, "burn_in": 4,
    "n_step": 2, "population": 4, "max_episode_steps": 20, "workers": 2, "peers": 2, "eval_episodes": 0, "updates_per_call": 2,
    "best": 1, "samples": 8, "elites": 2, "updaters": 2,
}  # fmt: skip
REPLAY = {"capacity": 400, "min_size": 8, "samples_per_insert": 2.0}


def cell(algorithm: str, topology: str, **options: Any) -> Config:
    """The smallest that is one, on an environment that every topology can drive."""
    made, driven = ALGORITHMS[algorithm]()(), systems.load_topology(topology)()
    names = {f.name for part in (made, driven) for f in dataclasses.fields(part)} | {"eval_episodes"}
    small = {name: value for name, value in SMALL.items() if name in names}
    if "network" in names:
        small["network"] = {"hidden": (8,)} | ({"core": "lstm", "core_size": 8} if algorithm == "R2D2" else {})
    if "replay" in names:
        small["replay"] = REPLAY | ({"min_size": 2} if algorithm == "R2D2" else {})
    if "update_ratio" in names:  # its ratio is counted in gradient steps
        small |= {"update_ratio": 0.25, "gradient_steps": 1, "replay": {"capacity": 400, "min_size": 8}}
    if algorithm == "DQN" and topology in ("AsyncGradients", "Gossip"):
        small["fresh"] = True
    if algorithm in ("SAC", "DQN") and topology == "TwoLearners":
        small |= {"views": {"kind": "shift"}, "contrastive_every": 1, "env_options": {"rows": 8, "columns": 8}}
    env = "jax:Pendulum-v1" if algorithm in CONTINUOUS else "jax:catch"
    return resolve(made, env=env, topology=driven, **small | options)


@pytest.mark.parametrize("algorithm, topology", [c for c in CELLS if c[0] in RIGHT[c[1]]])
def test_what_is_allowed_runs(algorithm: str, topology: str, tmp_path: Any) -> None:
    with Trainer.from_config(cell(algorithm, topology, runs=str(tmp_path))) as trainer:
        while (progress := trainer.advance()).updates < 3 or not progress.version:
            assert progress.env_steps < 20_000, "it collects and does not learn"
        declared = {edge.name for edge in trainer.plan.edges}
        assert set(progress.items) <= declared, "what a run moves is what `rookery show` declares"
        if trainer.agent.needs.table is None:  # else data is as old as the replay
            assert progress.lag_max <= trainer.config.topology.max_lag()
        trainer._log(trainer.seconds)
        row = trainer.run.metrics.last()
        assert set(row) >= set(progress.report) and not undocumented("metrics.jsonl", row), "docs/metrics.md says what it is"


@pytest.mark.parametrize("algorithm, topology", [c for c in CELLS if c[0] not in RIGHT[c[1]]])
def test_what_cannot_be_right_is_refused_with_what_would_be(algorithm: str, topology: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)(cannot drive|may learn from data).*: use \w+"):
        assemble(cell(algorithm, topology))


@pytest.mark.parametrize("topology", ["AsyncGradients", "ParameterServer", "Gossip", "Anakin"])
def test_what_has_no_learner_to_share_refuses_learners_and_devices(topology: str) -> None:
    for options in ({"learners": 2}, {"devices": 2}):
        with pytest.raises(ConfigError, match=f"{topology} has none: use Sync"):
            assemble(cell("A2C", topology, **options))


def test_the_matrix_that_is_listed_is_what_topologies_refuse() -> None:
    assert {*RIGHT} == {*systems.TOPOLOGIES}
    rows = {row.pop("algorithm"): row for row in listing.matrix()}
    for (algorithm, topology), is_right in {cell: cell[0] in RIGHT[cell[1]] for cell in CELLS}.items():
        assert (rows[algorithm][topology] != "-") == is_right, (algorithm, topology)
    for entry in systems.SYSTEMS.values():
        assert entry.name in rows[entry.algorithm.split(":")[1]][entry.topology.split(":")[1]].split()
