"""TensorBoard is an extra: clear when it is missing, harmless when it fails."""

import logging
import math
import sys

import pytest

from rookery.run.tensorboard import MissingExtra, TensorBoard, require_tensorboard


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
    board.write({"return_mean": 12.5, "episodes": 3, "loss/policy": math.nan, "eval": None, "name": "x"}, env_steps=640)
    last = events(tmp_path / "tb")[-1]
    assert last.step == 640
    assert {value.tag: value.simple_value for value in last.summary.value} == {"return_mean": 12.5, "episodes": 3.0}
    board.close()
    board.write({"x": 1.0}, 1)
    board.close()


def test_a_missing_package_is_an_error_with_the_remedy_only_when_asked_for(tmp_path, monkeypatch):
    remedy = r"pip install 'rookery\[tensorboard\]'"
    monkeypatch.setattr("rookery.run.tensorboard.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=remedy):
        require_tensorboard(wanted=True)
    require_tensorboard(wanted=False)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(MissingExtra, match=remedy):
        TensorBoard(tmp_path)


def test_a_failing_disk_is_one_warning(tmp_path, monkeypatch, caplog):
    pytest.importorskip("tensorboardX")
    board = TensorBoard(tmp_path)

    def fail(event):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board._writer, "write_event", fail)
    with caplog.at_level(logging.WARNING):
        for step in range(50):
            board.write({"x": 1.0}, step)
        board.close()
    assert len(caplog.records) == 1 and "training goes on" in caplog.text


def test_a_directory_that_cannot_be_made_is_one_warning(tmp_path, caplog):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    board = TensorBoard(tmp_path / "file" / "tb")
    board.write({"x": 1.0}, 1)
    board.close()
    assert len(caplog.records) == 1
