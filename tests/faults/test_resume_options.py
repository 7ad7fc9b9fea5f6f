"""No option of `resume` ruins a run: it is refused, with both values and nothing changed, or the run goes on with it.

Generated from the declarations: another value for every option that `rookery resume RUN --help` shows, of every algorithm and
topology. A few are drawn by a seed; all of them, in about half an hour:

    ROOKERY_FAULT_COUNT=1000 pytest tests/faults/test_resume_options.py
"""

import dataclasses
import os
import random
import shutil
import types
import typing
from pathlib import Path

import pytest
from small_runs import contents, half_trained, typed

from rookery import systems
from rookery.run import config

COUNT, SEED = int(os.environ.get("ROOKERY_FAULT_COUNT", 4)), 14
REPLAY = {"replay": {"capacity": 1000, "min_size": 50}}
SYSTEMS = {  # every algorithm and every topology
    "ppo": {"rollout_length": 8, "minibatches": 2},
    "dqn": REPLAY,
    "a2c": {}, "pg": {"rollout_length": 8}, "impala": {"rollout_length": 8}, "appo": {"rollout_length": 8, "minibatches": 2},
    "r2d2": {"replay": {"capacity": 1000, "min_size": 10}, "total_steps": 2000},
    "anakin-ppo": {
        "env": "jax:catch", "rollout_length": 8, "minibatches": 2, "num_envs": 4, "updates_per_call": 2, "total_steps": 2000,
    },
    "sac": REPLAY, "td3": {"env": "Pendulum-v1", **REPLAY}, "ddpg": {"env": "Pendulum-v1", **REPLAY},
    "qt-opt": {"env": "Pendulum-v1", **REPLAY}, "async-curl-sac": {"env": "pixel-reach", **REPLAY},
    "a3c": {"workers": 2}, "gala": {"peers": 2}, "gorila": {**REPLAY, "workers": 2},
    "es": {"population": 4, "max_episode_steps": 8, "total_steps": 1000},
    "ars": {"population": 4, "best": 1, "max_episode_steps": 8, "network": {"hidden": ()}, "total_steps": 1000},
}  # fmt: skip
SPECIAL = {  # what a type does not tell
    "run": "other", "runs": "elsewhere", "address": "127.0.0.1:1", "demonstrations": "nothing", "value_range": "-1.0 1.0",
    "total_steps": "3000", "seconds": "1000", "stop_return": "1000", "stop_eval_return": "1000",
}  # fmt: skip
ELSEWHERE = {"--runtime"}  # tests/runtime/test_ray_training.py resumes a run on Ray


def another(name, kind, value):
    """A legal value that is not `value`, as it is typed."""
    if name in SPECIAL:
        return SPECIAL[name].split()
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(arg for arg in kind.__args__ if arg is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        return [next(str(choice) for choice in kind.__args__ if choice != value)]
    if kind is bool:
        return ["False" if value else "True"]
    if kind is float:  # most are shares
        return [str(value / 2 if value else 0.5)]
    if kind is int:
        return [str(2 * value if value else 1)]
    if kind is str:
        return ["another"]
    assert typing.get_origin(kind) is tuple, (name, kind)
    return [str(2 * number) for number in value] or ["4"]


def options_of(part, prefix=""):
    hints = typing.get_type_hints(type(part))
    for field in dataclasses.fields(part):
        value, kind = getattr(part, field.name), hints[field.name]
        if kind is typing.Any:  # what no command line can say, as a function
            continue
        if dataclasses.is_dataclass(value):
            yield from options_of(value, f"{field.name}.")
            continue
        flag, words = f"{prefix}{field.name.replace('_', '-')}", another(field.name, kind, value)
        if kind is bool:  # tyro's flags
            yield [f"--{prefix}{'' if words == ['True'] else 'no-'}{field.name.replace('_', '-')}"]
        else:
            yield [f"--{flag}", *words]


def cases():
    """Every option once: those of a run with the first system, those of an algorithm or a topology where it comes first."""
    yield from (("ppo", words) for words in (["--env", "catch"], ["--topology", "actor-learner"]))
    yield from (("ppo", words) for words in (["--env-options", "symbols=5"], ["--env-options", "frame_stack=2"]))
    seen = set()
    for system, given in SYSTEMS.items():
        cfg = config.resolve(system, env="identity", **{name: value for name, value in given.items() if name != "env"})
        for part in (cfg.run, cfg.algorithm, cfg.topology):
            if type(part) not in seen:
                seen.add(type(part))
                yield from ((system, words) for words in options_of(part) if words[0] not in ELSEWHERE)


CASES = list(cases())
KNOWN = [  # those that ruined runs once
    ("ppo", ["--network.hidden", "32", "32"]), ("ppo", ["--num-envs", "64"]), ("ppo", ["--groups", "2"]),
    ("ppo", ["--network.core", "lstm"]),
]  # fmt: skip
CHOSEN = CASES if len(CASES) <= COUNT else random.Random(SEED).sample([c for c in CASES if c[0] in ("ppo", "dqn")], COUNT)


def name(value):
    return value if isinstance(value, str) else " ".join(value)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """system -> its run, made when it is first asked for; to be copied."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def run(system):
        if system not in made:
            made[system] = half_trained(root, system, **SYSTEMS[system])
        return made[system]

    return run


@pytest.mark.parametrize("system, words", KNOWN + CHOSEN, ids=name)
def test_a_run_goes_on_and_is_evaluated_whatever_it_was_resumed_with(runs, tmp_path, system, words):
    run = Path(shutil.copytree(runs(system), tmp_path / "runs" / system))
    before = contents(run)
    asked = typed(tmp_path, "resume", system, *words)
    assert asked.status in (0, 2), asked
    if asked.status == 2:
        assert contents(run) == before, "a refusal changes nothing"
        assert asked.err.startswith(("rookery: ", "╭")) and "Traceback" not in asked.err, asked.err
    more = str(2 * config.from_dict(run_config(run)).run.total_steps) if asked.status == 0 else None
    again = typed(tmp_path, "resume", system, *(["--total-steps", more] if more else []))
    assert again.status == 0, (asked, again)
    played = typed(tmp_path, "eval", system, "--episodes", "1")
    assert played.status == 0, (asked, played)


def run_config(run):
    from rookery.run.directory import Run

    return Run.open(run).config["config"]


@pytest.mark.parametrize("system, words", KNOWN, ids=name)
def test_what_contradicts_the_checkpoint_is_refused_with_both_values(runs, system, words):
    asked = typed(runs(system).parents[1], "resume", str(runs(system)), *words)
    saved = {"--network.hidden": "[8]", "--num-envs": "4", "--groups": "1", "--network.core": "none"}[words[0]]
    assert asked.status == 2 and f"(the checkpoint's: {saved})" in asked.err and words[0] in asked.err, asked
    assert "Traceback" not in asked.err


def test_every_option_of_every_system_has_a_case():
    flags = {words[0].replace("--no-", "--").replace(".no-", ".") for _, words in CASES}
    for system in systems.SYSTEMS:
        cfg = config.resolve(system, env="identity")
        for part in (cfg.run, cfg.algorithm, cfg.topology):
            wanted = {words[0].replace("--no-", "--").replace(".no-", ".") for words in options_of(part)}
            assert wanted <= flags | ELSEWHERE, wanted - flags
