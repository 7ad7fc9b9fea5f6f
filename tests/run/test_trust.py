"""A config.json from a stranger names code, and nothing of it is imported; what this user's own runs wrote is found again."""

from __future__ import annotations

import json
import os
import stat
import warnings
from pathlib import Path

import pytest
from own_files import GRID, NETWORK, forgotten, write

from rookery.run import trust
from rookery.run.config import ConfigError, from_dict, resolve
from rookery.run.trust import NoSignature, NotTrusted

SPY = "import pathlib\n\npathlib.Path('imported').touch()\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write(tmp_path, grid_t=SPY + GRID, net_t=NETWORK)
    with forgotten():
        yield tmp_path


def saved_by_a_run(**given) -> dict:
    return json.loads(json.dumps(resolve("a2c", **{"env": "grid_t.py:GridEnv"} | given).to_dict()))


def told(config: dict, name: str = "r", **given) -> dict[str, str]:
    return trust.allowed(config, name, (), **given)


def test_the_key_is_made_once_random_and_for_this_user_alone(here):
    first = saved_by_a_run()
    key = trust.key_path()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(data := key.read_bytes()) == 32
    assert saved_by_a_run()["signature"] == first["signature"] and key.read_bytes() == data
    assert os.listdir(key.parent) == ["key"] and str(key) not in json.dumps(first) and data.hex() not in json.dumps(first)


def test_a_config_of_this_user_is_believed_and_a_plain_one_has_no_signature_and_makes_no_key(here):
    plain = resolve("a2c", env="identity").to_dict()
    assert "signature" not in plain and "references" not in plain and not trust.key_path().exists()
    assert told(plain) == {}
    assert told(saved_by_a_run()) == {"env": f"{here}/grid_t.py:GridEnv"}
    assert not Path("imported").exists(), "nor is anything imported to write or to check it"


CHANGED = {
    "another name": lambda config: config["references"].update(env="os:system"),
    "another id": lambda config: config.update(env="os:system"),
    "an option": lambda config: config["env_options"].update(size=4),
    "no signature": lambda config: config.pop("signature"),
    "another signature": lambda config: config.update(signature="0" * 64),
    "one of another type": lambda config: config.update(signature=7),
    "one part more": lambda config: config["references"].update(torso="os:system"),
    "a value": lambda config: config["references"].update({"algorithm.loss": "os:system"}),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED.keys())
def test_whatever_is_changed_nothing_that_it_names_is_imported(here, change):
    config = saved_by_a_run()
    change(config)
    with pytest.raises(NotTrusted, match=r"r names code: env .*rookery resume r --env .*`rookery resume r --trust`") as refused:
        told(config)
    assert refused.value.exit_code == 2 and not Path("imported").exists()
    assert told(config, trust=True)["env"], "but for who says so"


@pytest.mark.parametrize("env", ["os:system", "subprocess:run", "grid_t.py:GridEnv"])
def test_an_id_that_names_code_is_no_id_whatever_else_the_config_says(here, env):
    config = json.loads(json.dumps(resolve("a2c", env="identity").to_dict())) | {"env": env}
    with pytest.raises(NotTrusted, match=f"env '{env}'"):
        told(config)
    with pytest.raises(ConfigError, match="env of its own"):
        from_dict(config)
    for references in ({"env": 7}, [env], "x"):
        with pytest.raises(NotTrusted, match="its references are no names"):
            told(config | {"references": references})


def test_the_key_of_another_user_signs_nothing_here(here, monkeypatch):
    config = saved_by_a_run()
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "theirs"))
    assert not trust.is_signed(config) and not trust.key_path().exists(), "to look makes no key"
    saved_by_a_run()
    assert not trust.is_signed(config)


def test_a_key_that_others_may_read_or_that_is_too_short_is_not_used(here):
    config = saved_by_a_run()
    trust.key_path().chmod(0o640)
    with pytest.warns(NoSignature, match="others may read or write it.*chmod 600"):
        assert not trust.is_signed(config)
    trust.key_path().chmod(0o600)
    assert trust.is_signed(config)
    trust.key_path().write_bytes(b"short")
    assert not trust.is_signed(config)


def test_where_no_key_can_be_written_there_is_a_warning_and_the_names_are_asked_for(here, monkeypatch):
    (here / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "file"))
    with pytest.warns(NoSignature, match="cannot be signed, and resuming it will ask for them"):
        config = saved_by_a_run()
    assert "signature" not in config and config["references"]
    with warnings.catch_warnings(), pytest.raises(NotTrusted):
        warnings.simplefilter("error")  # it is said once
        told(config)


def test_parts_that_are_given_again_need_no_signature_and_the_others_do(here):
    config = saved_by_a_run(torso="net_t.py:small")
    del config["signature"]
    with pytest.raises(NotTrusted, match="names code: torso") as refused:
        trust.allowed(config, "r", {"env"})
    assert "GridEnv" not in str(refused.value)
    assert trust.allowed(config, "r", {"env", "torso"}) == {}
