"""config.json is as it was written, or that is found: no flipped bit, cut or edit makes another config of it in silence.

The config is also in every checkpoint, so a run whose config.json is damaged is evaluated and resumed all the same.

    ROOKERY_FAULT_COUNT=30000 pytest tests/faults/test_config_flips.py
"""

import json
import os
import random
import shutil
import warnings

import pytest
from small_runs import typed

from rookery.run import checkpoint, config
from rookery.run.directory import ConfigDamaged, Run, RunError
from rookery.run.records import sealed
from rookery.run.resuming import ConfigRecovered, config_of

COUNT, SEED = int(os.environ.get("ROOKERY_FAULT_COUNT", 3000)), 14


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def answer(run):
    """found, recovered, or the config that was believed."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            read = config_of(Run.open(run))
        except RunError as error:
            return "found" if error.exit_code == 5 else f"status {error.exit_code}: {error}"
    return "recovered" if [str(w.message) for w in told if w.category is ConfigRecovered] else read


def test_every_flipped_bit_is_found_and_the_config_comes_from_the_checkpoint(run):
    path, original = run / "config.json", (run / "config.json").read_bytes()
    saved = json.loads(original)["config"]
    assert answer(run) == saved, "as written, it is used without a word"
    bits, seen = random.Random(SEED).sample(range(8 * len(original)), min(COUNT, 8 * len(original))), []
    for bit in bits:
        path.write_bytes(flipped(original, bit))
        seen.append(answer(run))
        row = Run.list(run.parent)[0]
        assert (row.system, row.env) == ("?", "?"), "nor is it listed"
    assert seen == ["recovered"] * len(bits)
    with pytest.warns(ConfigRecovered, match=r"config.json does not match its digest.*copy of the config in update-0+2 is"):
        assert config_of(Run.open(run)) == saved


def test_without_a_copy_every_flipped_bit_is_an_error_of_status_5(run):
    shutil.rmtree(run / "checkpoints")
    path, original = run / "config.json", (run / "config.json").read_bytes()
    for bit in random.Random(SEED + 1).sample(range(8 * len(original)), COUNT // 10):
        path.write_bytes(flipped(original, bit))
        assert answer(run) == "found"
    asked = typed(run.parents[1], "eval", "a2c")
    assert asked.status == 5 and "No checkpoint holds a copy" in asked.err and "Traceback" not in asked.err, asked


@pytest.mark.parametrize("damage", [
    lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[]",
    lambda text: text.replace('"num_envs"', '"num_env"'), lambda text: text + " ",
    lambda text: text.replace("rookery train", "rookery train  "), lambda text: "[" * 100_000,
    lambda text: text.replace('"seed": 0', '"seed": 0, "seed": 1'),
], ids=["cut", "empty", "a list", "a key", "a blank", "the command", "deep", "twice"])  # fmt: skip
def test_whatever_else_was_done_to_it_is_found(run, damage):
    path = run / "config.json"
    text = path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    assert answer(run) == "recovered"


def test_a_damaged_config_is_told_of_and_mended_by_resuming(run):
    path = run / "config.json"
    original = path.read_bytes()
    path.write_bytes(flipped(original, 8 * original.index(b"total_steps") + 3))
    root = run.parents[1]
    played = typed(root, "eval", "a2c", "--episodes", "1")
    assert played.status == 0 and "copy of the config in update-0000000002 is used" in played.err, played
    assert path.read_bytes() != original
    assert typed(root, "resume", "a2c").status == 0
    mended, before = (json.loads(data)["config"] | {"machine": None} for data in (path.read_bytes(), original))
    assert mended == before
    played = typed(root, "eval", "a2c", "--episodes", "1")
    assert played.status == 0 and played.err == ""


def test_the_best_policy_and_every_checkpoint_hold_the_config(run):
    typed(run.parents[1], "resume", "a2c", "--eval-every", "1", "--eval-episodes", "1")
    saved = json.loads((run / "config.json").read_bytes())["config"]
    assert saved["run"]["eval_every"] == 1
    for path in (run / "checkpoints/best", checkpoint.newest(run / "checkpoints")[0]):
        assert checkpoint.read_meta(path)["config"] == saved


# ------------------------------------------------------------------------------------------------- names and versions


@pytest.mark.parametrize("part, key, near", [
    ("run", "total_step", "total_steps"), ("algorithm", "learning_rat", "learning_rate"), ("topology", "num_env", "num_envs"),
])  # fmt: skip
def test_a_name_that_no_option_has_is_an_error_with_the_nearest(run, part, key, near):
    saved = config_of(Run.open(run))
    saved[part][key] = saved[part].pop(near)
    with pytest.raises(config.ConfigError, match=rf"no option '{key}'. Did you mean '{near}'"):
        config.from_dict(saved)


def test_a_name_inside_a_group_or_beside_them_is_one_too(run):
    saved = config_of(Run.open(run))
    saved["algorithm"]["network"]["hiden"] = saved["algorithm"]["network"].pop("hidden")
    with pytest.raises(config.ConfigError, match=r"NetworkConfig has no option 'hiden'. Did you mean 'hidden'"):
        config.from_dict(saved)
    with pytest.raises(config.ConfigError, match=r"no option 'sistem'. Did you mean 'system'"):
        config.from_dict(config_of(Run.open(run)) | {"sistem": "ppo"})


def test_the_first_format_is_read_and_its_digest_checked(run):
    path = run / "config.json"
    described = json.loads(path.read_bytes())
    old = described | {"format": 1, "digest": _digest(described["config"])}
    path.write_text(json.dumps(old, indent=2))
    assert answer(run) == described["config"]
    old["config"]["run"]["seed"] = 5
    path.write_text(json.dumps(old, indent=2))
    assert answer(run) == "recovered"


def test_a_later_format_is_told_apart_from_damage(run):
    described = {name: value for name, value in Run.open(run).config.items() if name != "digest"}
    (run / "config.json").write_bytes(sealed(described | {"format": 9, "versions": {"rookery": "7.0"}}))
    with pytest.raises(RunError, match=r"written by rookery 7.0. Install that version") as refused:
        config_of(Run.open(run))
    assert not isinstance(refused.value, ConfigDamaged)


def _digest(value):
    import hashlib

    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
