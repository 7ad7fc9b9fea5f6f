"""Boards: numbers in groups, and whatever they raise is told of once and stops nothing."""

import json
import logging
import sys
from types import SimpleNamespace

import pytest
from waiting import wait_for

import rookery
from rookery.run.boards import Boards, MissingExtra, grouped
from rookery.run.config import ConfigError, resolve
from rookery.run.wandb_board import WandbBoard

SMALL = {"num_envs": 4, "rollout_length": 4, "network": {"hidden": (4,)}, "eval_episodes": 2, "env": "identity"}


class Fails:
    """Raises at the third call."""

    def __init__(self):
        self.calls = []

    def write(self, values, step):
        self.calls.append((values, step))
        if len(self.calls) == 3:
            raise RuntimeError("the service is down")

    def close(self):
        raise OSError("gone")


def test_a_board_that_raises_is_told_of_once_and_the_others_go_on(caplog):
    said, fails, works = [], Fails(), Fails()
    works.calls = [None] * 5  # beyond its third call
    boards = Boards(said.append)
    boards.add("A", lambda: fails)
    boards.add("B", lambda: works)
    boards.add("C", lambda: 1 / 0)
    with caplog.at_level(logging.WARNING):
        for step in range(6):
            boards.write({"x/y": 1.0}, step)
    assert len(fails.calls) == 3 and len(works.calls) == 5 + 6
    assert [line.split()[0] for line in said] == ["C", "A"] and "the service is down" in said[1]
    assert len(caplog.records) == 2 and "training goes on" in caplog.text
    boards.close()
    assert "OSError: gone" in said[-1] and not boards


def test_an_extra_that_is_missing_is_the_users_to_mend():
    def missing():
        raise MissingExtra("pip install it")

    with pytest.raises(MissingExtra):
        Boards().add("A", missing)


def test_names_are_grouped_and_what_is_no_number_or_told_elsewhere_is_left_out():
    row = {
        "seconds": 1.5, "env_steps": 640, "total_steps": 1000, "updates": 10, "return_mean": 2.0, "eval_return_mean": 3.0,
        "entropy": 0.5, "loss/q": 0.1, "health/dead_units": 0.0, "time/env": 0.5, "rss_mb": 100.0, "rss_mb/4711": 50.0,
        "collectors": 2, "my/thing": 7.0, "eta_seconds": None, "name": "x", "policy_lag_mean": 0.0, "return_mean/seed_1": 4.0,
    }  # fmt: skip
    assert grouped(row, {"collectors": 2}) == {
        "time/seconds": 1.5, "time/env_steps": 640, "time/updates": 10, "rollout/return_mean": 2.0, "train/entropy": 0.5,
        "loss/q": 0.1, "health/dead_units": 0.0, "time/env": 0.5, "system/rss_mb": 100.0, "system/collectors": 2,
        "my/thing": 7.0, "train/policy_lag_mean": 0.0, "rollout/return_mean_seed_1": 4.0,
    }  # fmt: skip


def test_a_project_without_its_board_is_refused():
    with pytest.raises(ConfigError, match=r"--wandb-project x .* needs --wandb"):
        resolve("a2c", env="identity", wandb_project="x")


def test_a_run_is_in_wandb_offline_with_its_evaluations_and_the_numbers_of_a_callback(tmp_path, monkeypatch):
    """Really: what wandb's own file of the run holds is read back."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = lambda event: event.trainer.log({"my/number": 7.0})
    asked = SMALL | {"runs": str(tmp_path), "run": "r", "wandb": True, "wandb_project": "tests"}
    result = rookery.train("a2c", **asked, total_steps=64, log_every=16, on_step=log)
    (place,) = (tmp_path / "r" / "wandb").glob("offline-run-*")
    file = next(place.glob("*.wandb"))
    wait_for(lambda: any("eval/return_mean" in row for row in map(history, read(file))))  # its service may still write
    records = list(read(file))
    (run,) = [record.run for record in records if record.HasField("run")]
    assert run.project == "tests" and run.display_name == "r"
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["system"] == "a2c" and config["run"]["log_every"] == 16, "numbers stay numbers"
    rows = [history(record) for record in records if record.HasField("history")]
    assert rows[-1]["eval/return_mean"] == result.metrics["eval_return_mean"]
    told = [row for row in rows if "rollout/return_mean" in row]
    assert len(told) >= 4 and told[-1]["env_steps"] >= 64 and told[-1]["my/number"] == 7.0 and "loss/policy" in told[-1]


@pytest.mark.parametrize("mode, account, then", [
    ("online", False, "offline"), ("online", True, None), ("offline", False, None)
])  # fmt: skip
def test_without_an_account_wandb_is_offline_and_nobody_is_asked(tmp_path, monkeypatch, mode, account, then):
    asked, said = {}, []

    def init(**how):
        asked.update(how)
        offline = mode == "offline" or how["mode"] == "offline"
        return SimpleNamespace(define_metric=lambda *a, **k: None, offline=offline, dir=f"{tmp_path}/x/files", url="https://there")

    def login(*, prompt, verify):
        assert not prompt and mode == "online"
        return account

    fake = SimpleNamespace(
        init=init, login=login, Settings=dict, setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode=mode))
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", fake)
    WandbBoard(tmp_path / "r", project="p", run_id="1", config={}, say=said.append)
    assert asked["mode"] == then and asked["id"] == "1" and asked["resume"] == "allow"
    assert said == ["W&B: https://there"] if account else f"wandb sync {tmp_path}/x" in said[0]
    assert ("wandb login" in said[0]) == (then == "offline")


def read(path):
    """Read wandb's file: 7 bytes, then blocks of 32 KiB with parts of records: 4 of checksum, 2 of length, 1 of kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # too little for a head
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        found = (found if kind in (3, 4) else b"") + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole, or its last part
            yield Record.FromString(found)


def history(record):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
