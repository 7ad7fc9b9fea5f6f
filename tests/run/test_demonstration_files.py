"""Demonstrations on disk and from a scripted expert: read back as written, damage found, spaces kept apart."""

from __future__ import annotations

import numpy as np
import pytest

import rookery
from rookery import demonstrations
from rookery.data.demonstrations import WrongDemonstrations
from rookery.envs.toys import TOYS
from rookery.run import checkpoint
from rookery.trees import tree_leaves

TOY = TOYS["deep-sea"]()


def expert(now):
    at = now.observation.reshape(len(now.first), -1).argmax(axis=1)
    return TOY.right(at // TOY.size, at % TOY.size)


def test_an_expert_is_played_written_and_read_back(tmp_path):
    played = demonstrations.play("deep-sea", expert, episodes=3)
    assert [len(episode.reward) for episode in played] == [10] * 3
    assert all(len(episode.observation) == 11 and episode.discount.tolist() == [1.0] * 9 + [0.0] for episode in played)
    written = demonstrations.write(tmp_path / "demos", played, env="deep-sea")
    assert written.return_mean == pytest.approx(TOY.optimal_return)
    found = demonstrations.read(tmp_path / "demos")
    assert found.digest == written.digest and found.spaces == written.spaces and found.env == "deep-sea"
    for one, two in zip(found.episodes, written.episodes, strict=True):
        for a, b in zip(tree_leaves(tuple(one)), tree_leaves(tuple(two)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_trees_and_episodes_of_different_lengths_come_back_in_their_places(tmp_path):
    def look(now):  # the right answer of masked
        return np.where(now.observation["action_mask"], now.observation["scores"], -1).argmax(axis=1)

    long, short = (demonstrations.play("masked", look, episodes=2, env_options={"length": n}) for n in (8, 3))
    demonstrations.write(tmp_path / "demos", [*long, *short], env="masked")
    found = demonstrations.read(tmp_path / "demos")
    assert [len(episode.reward) for episode in found.episodes] == [8, 8, 3, 3]
    for one, two in zip(found.episodes, [*long, *short], strict=True):
        for leaf in ("action_mask", "scores"):
            np.testing.assert_array_equal(one.observation[leaf], two.observation[leaf])
        np.testing.assert_array_equal(one.action, two.action)


def test_a_flipped_bit_and_a_checkpoint_of_something_else_are_refused(tmp_path):
    path = tmp_path / "demos"
    demonstrations.write(path, demonstrations.play("deep-sea", expert, episodes=1), env="deep-sea")
    data = bytearray((path / "arrays-000.bin").read_bytes())
    data[100] ^= 1
    (path / "arrays-000.bin").write_bytes(data)
    with pytest.raises(checkpoint.CheckpointError, match="digest"):
        demonstrations.read(path)
    checkpoint.save(tmp_path / "other", {"x": 1}, meta={})
    with pytest.raises(WrongDemonstrations, match="rookery record RUN"):
        demonstrations.read(tmp_path / "other")


def test_a_run_refuses_demonstrations_that_are_absent_unused_or_of_other_spaces(tmp_path):
    options = {"runs": str(tmp_path / "runs")}
    with pytest.raises(ValueError, match=r"needs --demonstrations FILE: `rookery record RUN .* --out FILE`"):
        rookery.Trainer("r2d3", env="deep-sea", **options)
    with pytest.raises(ValueError, match="nothing of that name"):
        rookery.Trainer("r2d3", env="deep-sea", demonstrations=str(tmp_path / "nix"), **options)
    path = str(tmp_path / "demos")
    demonstrations.write(path, demonstrations.play("deep-sea", expert, episodes=1), env="deep-sea")
    with pytest.raises(ValueError, match=r"\(10, 10\).*there and .*\(8, 8\).* here"):
        rookery.Trainer("r2d3", env="deep-sea", env_options={"size": 8}, demonstrations=path, **options)
    with pytest.raises(ValueError, match="--demo-ratio"):
        rookery.Trainer("r2d2", env="deep-sea", demonstrations=path, **options)
    assert not (tmp_path / "runs").exists()
