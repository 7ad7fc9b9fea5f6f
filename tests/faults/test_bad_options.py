"""Nonsense is refused with status 2, every option of it named, before anything is made; over every option of every system.

A few of the random ones here. As many as were promised:

    ROOKERY_FAULT_COUNT=200 python -m pytest tests/faults/test_bad_options.py
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import subprocess
import sys
import time
import typing
from typing import Any, NamedTuple

import pytest

from rookery import ranges, systems
from rookery.ranges import Range
from rookery.run import config, options
from rookery.run.assemble import assemble

COUNT = int(os.environ.get("ROOKERY_FAULT_COUNT", "10"))


class Option(NamedTuple):
    names: tuple[str, ...]  # of the field, and of the group that it is in
    kind: Any
    allowed: Range | None

    @property
    def flag(self) -> str:
        return "--" + ".".join(self.names).replace("_", "-")

    @property
    def whole(self) -> bool:
        return "int" in str(self.kind)

    def given(self, value: Any) -> dict[str, Any]:
        """As `resolve` takes it."""
        value = (value, value) if "tuple" in str(self.kind) else value
        return {self.names[0]: value if len(self.names) == 1 else {self.names[1]: value}}


def options_of(part: Any, prefix: tuple[str, ...] = ()) -> list[Option]:
    found, hints = [], typing.get_type_hints(type(part), include_extras=True)
    for field in dataclasses.fields(part):
        if dataclasses.is_dataclass(inner := getattr(part, field.name)):
            found += options_of(inner, (*prefix, field.name))
        else:
            found.append(Option((*prefix, field.name), hints[field.name], ranges.range_of(hints[field.name])))
    return found


def env_of(system: str) -> str:
    return "jax:catch" if system.startswith("anakin") else "identity"


def all_options(system: str) -> list[Option]:
    cfg = config.resolve(system, env=env_of(system))
    return [option for part in (cfg.algorithm, cfg.topology, cfg.run) for option in options_of(part)]


def outside(option: Option) -> list[float]:
    """Numbers of its type that are not in its range."""
    allowed = option.allowed
    assert allowed is not None
    tried = [-1, 0, 10**9, 10**30, allowed.least - 1, allowed.most + 1, allowed.above, allowed.below]
    found = [int(value) for value in tried if math.isfinite(value)]
    floats: list[float] = [] if option.whole else [math.nan, math.inf, -math.inf, *map(float, found)]
    return [value for value in (floats or found) if value not in allowed]


@pytest.mark.parametrize("system", systems.SYSTEMS)
def test_every_number_has_a_range_and_what_is_outside_is_refused_by_name(system):
    for option in all_options(system):
        is_number = any(word in str(option.kind) for word in ("int", "float"))
        assert (option.allowed is not None) == is_number, f"{option.flag} of {system} is a {option.kind}"
        for value in outside(option) if is_number else ():
            with pytest.raises(config.ConfigError) as refused:
                config.resolve(system, env=env_of(system), **option.given(value))
            assert f"{option.flag} {value}" in str(refused.value) and str(option.allowed) in str(refused.value)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(config.ConfigError) as refused:
        config.resolve("dqn", env="identity", discount=2, epsilon=7, seconds=math.nan, num_envs=10**9, replay={"capacity": 0})
    for said in ("5 options", "--discount 2", "--epsilon 7", "--seconds nan", "--num-envs 1000000000", "--replay.capacity 0"):
        assert said in str(refused.value), refused.value


def test_a_file_and_an_algorithm_made_in_python_are_held_to_the_same_ranges():
    from rookery.algorithms.ppo import PPO

    with pytest.raises(config.ConfigError, match=r"--clip -1.0: it must be more than 0"):
        config.resolve(PPO(clip=-1), env="identity")
    saved = config.resolve("ppo", env="identity").to_dict()
    saved["algorithm"]["network"]["hidden"] = [64, 0]
    with pytest.raises(config.ConfigError, match=r"--network.hidden 64 0: it must be at least 1"):
        config.from_dict(saved)


def nonsense(seed: int) -> tuple[str, list[str], list[str]]:
    """A system, words for it, and the options that must be named."""
    draw = random.Random(seed)
    system = draw.choice([*systems.SYSTEMS])
    chosen = draw.sample([option for option in all_options(system) if option.allowed], draw.randint(1, 4))
    words = []
    for option in chosen:
        value = str(draw.choice(outside(option)))
        words += [option.flag, *([value] * (2 if "tuple" in str(option.kind) else 1))]
    return system, words, [option.flag for option in chosen]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_nonsense_is_refused_with_the_name_of_each_option(seed):
    system, words, flags = nonsense(seed)
    base = config.resolve(system, env=env_of(system))
    with pytest.raises(config.ConfigError) as refused:
        options.parse("rookery train", words, base)
    assert refused.value.exit_code == 2
    assert [flag for flag in flags if flag not in str(refused.value)] == [], (words, refused.value)


WORDS = ("", "x", "-", "1.5", "1e400", "0x10", "--", "None", "[1]", "٣", "1 2", "nan")


@pytest.mark.parametrize("seed", range(COUNT))
def test_words_that_are_no_numbers_never_end_in_a_traceback(seed, capsys):
    draw = random.Random(seed)
    system = draw.choice([*systems.SYSTEMS])
    option = draw.choice([option for option in all_options(system) if option.allowed])
    word = draw.choice(WORDS)
    try:
        options.parse("rookery train", [option.flag, word], config.resolve(system, env=env_of(system)))
    except SystemExit as left:
        assert left.code == 2 and option.flag in capsys.readouterr().err
    except config.ConfigError as error:
        assert option.flag in str(error) or option.flag.split(".")[0] in str(error)
    else:
        assert word in ("None", "٣", "--") or not option.whole, (option.flag, word)  # -- ends a list that may be empty


@pytest.mark.parametrize("seed", range(COUNT))
def test_the_ends_of_a_range_work_or_are_refused_with_a_reason(seed):
    draw = random.Random(seed)
    system = draw.choice([*systems.SYSTEMS])
    picked = draw.sample([option for option in all_options(system) if option.allowed], 2)
    asked: dict[str, Any] = {}
    for option in picked:
        ends = [end for end in (option.allowed.least, option.allowed.most) if math.isfinite(end)] or [1]
        asked = systems.merged(asked, option.given(draw.choice(ends) if option.whole else float(draw.choice(ends))))
    try:
        assemble(config.resolve(system, env=env_of(system), **asked))
    except config.ConfigError as error:
        assert str(error)


COMBINATIONS = {
    "a replay smaller than a rollout": ("dqn", {"replay": {"capacity": 10}}, "--replay.capacity 10: one rollout has"),
    "a warm-up that never ends": ("dqn", {"replay": {"min_size": 10**6}}, "--replay.min-size 1000000"),
    "one that never ends on a device": ("anakin-dqn", {"replay": {"min_size": 10**6}}, "--replay.min-size 1000000"),
    "a batch that never is": ("dqn", {"batch_size": 10**6}, "--batch-size"),
    "batches that never are": ("r2d2", {"batch_size": 10**6}, "--batch-size"),
    "a buffer that blocks": ("dqn", {"replay": {"error_buffer": 1.0}}, "--replay.error-buffer"),
    "returns longer than sequences": ("r2d2", {"n_step": 21}, "--n-step 21"),
    "a sequence that is cut": ("r2d2", {"burn_in": 3}, "--sequence-length"),
    "sampled more often than it is kept": (
        "dqn", {"replay": {"max_times_sampled": 1}}, "--replay.max-times-sampled 1"
    ),
    "a range that goes down": ("rainbow", {"value_range": (2.0, -1.0)}, "--value-range 2 -1"),
    "only demonstrations": ("r2d2", {"demo_ratio": 1.0}, "--demo-ratio 1.0: it must be at least 0 and less than 1"),
    "rollouts larger than memory": ("ppo", {"rollout_length": 10**6, "num_envs": 10**6}, "GB of memory"),
    "a network larger than memory": ("ppo", {"network": {"hidden": (65_536,) * 12}}, "use a smaller network"),
}


@pytest.mark.parametrize("system, asked, said", COMBINATIONS.values(), ids=COMBINATIONS.keys())
def test_numbers_that_do_not_go_together_are_refused_with_the_reason(system, asked, said):
    with pytest.raises(config.ConfigError) as refused:
        assemble(config.resolve(system, env=env_of(system), **asked))
    assert said in str(refused.value)


def test_numbers_may_be_written_with_an_exponent():
    base = config.resolve("ppo", env="identity")
    cfg, _ = options.parse("rookery train", ["--total-steps", "1e5", "--network.hidden", "3.2e1", "8"], base)
    assert cfg.run.total_steps == 100_000 and type(cfg.run.total_steps) is int and cfg.algorithm.network.hidden == (32, 8)
    with pytest.raises(SystemExit):
        options.parse("rookery train", ["--total-steps", "1e-1"], base)


def test_the_command_answers_before_it_makes_anything(tmp_path):
    words = ["train", "ppo", "--env", "CartPole-v1", "--num-envs", "1000000000", "--clip", "-1", "--network.hidden", "0"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "rookery.cli", *words], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 2 and "Traceback" not in done.stderr and not done.stdout, done
    assert done.stderr.startswith("rookery: 3 options cannot be so:") and done.stderr.count("\n--") == 3
    assert [*tmp_path.iterdir()] == [] and time.monotonic() - begin < 30, "a second or two when the machine is free"
