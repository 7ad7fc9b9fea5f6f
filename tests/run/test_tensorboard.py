"""TensorBoard is an extra: clear when it is missing, and its file holds what was told."""

import math
import sys

import pytest

from rookery.run import boards
from rookery.run.boards import MissingExtra
from rookery.run.tensorboard import TensorBoard


def events(directory):
    """Read an event file: 8 bytes of length, 4 of checksum, the event, 4 of checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in directory.glob("events*"):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def test_scalars_reach_the_event_file_at_once(tmp_path):
    pytest.importorskip("tensorboardX")
    board = TensorBoard(tmp_path / "tb")
    board.write({"rollout/return_mean": 12.5, "rollout/episodes": 3, "loss/policy": math.nan, "eval/x": None}, 640)
    last = events(tmp_path / "tb")[-1]
    assert last.step == 640
    assert {value.tag: value.simple_value for value in last.summary.value} == {
        "rollout/return_mean": 12.5, "rollout/episodes": 3.0
    }  # fmt: skip
    board.close()
    board.write({"x": 1.0}, 1)
    board.close()


def test_options_are_a_table_of_text(tmp_path):
    pytest.importorskip("tensorboardX")
    TensorBoard(tmp_path, config={"algorithm": {"learning_rate": 0.001}, "odd": "a|b"}).close()
    (value,) = [value for event in events(tmp_path) for value in event.summary.value]
    assert value.metadata.plugin_data.plugin_name == "text" and value.tag.startswith("config")
    text = value.tensor.string_val[0].decode()
    assert "| algorithm.learning_rate | 0.001 |" in text and "a\\|b" in text


def test_a_missing_package_is_an_error_with_the_remedy_only_when_asked_for(tmp_path, monkeypatch):
    remedy = r"pip install 'rookery\[{}\]'"
    monkeypatch.setattr(boards, "find_spec", lambda name: None)
    for extra in ("tensorboard", "wandb"):
        with pytest.raises(MissingExtra, match=f"--{extra} needs .*{remedy.format(extra)}"):
            boards.require(tensorboard=extra == "tensorboard", wandb=extra == "wandb")
    boards.require(tensorboard=False, wandb=False)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(MissingExtra, match=remedy.format("tensorboard")):
        TensorBoard(tmp_path)
