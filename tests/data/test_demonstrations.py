"""Demonstrations: their stream is a loop over the episodes, their table keeps them, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import spaces
from rookery.data.config import ReplayConfig, TableSpec
from rookery.data.demonstrations import Played, WrongDemonstrations, check_spaces, gather, rollouts, row_count
from rookery.data.replay import Replay
from rookery.trees import ArraySpec, tree_map
from rookery.types import Rollout, Spec

SPEC = Spec(gs.Dict({"n": gs.Box(-1e6, 1e6, (2,), np.float32), "side": gs.Discrete(3)}), gs.Discrete(5), "made-up")
T, SEQUENCE, B = 3, 6, 2


def episode(number: int, length: int, *, cut: bool = False) -> Played:
    """Every value tells where it is from."""
    steps = np.arange(length + 1)
    n = np.stack([np.full(length + 1, 100 + number), steps], axis=1).astype(np.float32)
    discount = np.ones(length, np.float32)
    discount[-1] = float(cut)
    return Played({"n": n, "side": steps % 3}, (steps[:-1] + number) % 5, 1.0 + steps[:-1] + 10 * number, discount)


SHOWN = gather([episode(0, 4), episode(1, 1), episode(2, 7, cut=True)], SPEC)


def stream(previous: bool) -> list[dict]:
    """Two rounds of the rows, written one by one."""
    rows = []
    for _ in range(2):
        for played in SHOWN.episodes:
            for t in range(len(played.reward) + 1):
                last = t == len(played.reward)
                rows.append({
                    "n": played.observation["n"][t], "side": played.observation["side"][t],
                    "action": 0 if last else played.action[t], "reward": 0.0 if last else played.reward[t],
                    "discount": 1.0 if last else played.discount[t], "valid": float(not last),
                    "previous_action": played.action[t - 1] if t else 0, "previous_reward": played.reward[t - 1] if t else 0.0,
                })  # fmt: skip
    return rows


@pytest.mark.parametrize("previous", [False, True])
def test_the_stream_is_the_episodes_one_after_the_other_and_begins_again(previous):
    found = [*rollouts(SHOWN, length=T, ahead=SEQUENCE, previous=previous, memory=(), slot=7)]
    expected = stream(previous)
    assert len(found) * T == row_count(SHOWN, length=T, ahead=SEQUENCE) == 15 + SEQUENCE  # 12 steps and 3 rows between
    for number, rollout in enumerate(found):
        assert rollout.step.tolist() == [number * T] and rollout.stream.tolist() == [7 << 32]
        assert rollout.version.tolist() == [[-1]] * T  # no parameters acted: nothing to count a lag from
        seen = rollout.observation["observation"] if previous else rollout.observation
        for t in range(T + 1):
            row = expected[number * T + t]
            np.testing.assert_array_equal(seen["n"][t, 0], row["n"])
            assert seen["side"][t, 0] == row["side"]
            if previous:
                assert rollout.observation["previous_action"][t, 0] == row["previous_action"]
                assert rollout.observation["previous_reward"][t, 0] == row["previous_reward"]
            if t < T:
                for name in ("action", "reward", "discount", "valid"):
                    assert getattr(rollout, name)[t, 0] == row[name], (number, t, name)


def replay(*, capacity: int = 60, selector: str = "prioritized", ratio: float = 0.25, seed: int = 0) -> Replay:
    of = lambda dtype, *shape: ArraySpec(shape, np.dtype(dtype))
    scalar = lambda dtype=np.float32: of(dtype, T, B)
    zeros = lambda space: spaces.zeros(space, (B,))
    rows = lambda tree, length: tree_map(lambda x: of(x.dtype, length, *x.shape), tree)
    specs = Rollout(
        rows(zeros(SPEC.observation), T + 1), rows(zeros(SPEC.action), T), *(scalar() for _ in range(3)),
        {}, (of(np.float32, B, 4),), scalar(np.int32), of(np.int64, B), of(np.int64, B),
    )  # fmt: skip
    config = ReplayConfig(capacity=capacity, min_size=4, samples_per_insert=64.0, selector=selector)
    table = TableSpec(config, 32, sequence_length=SEQUENCE, burn_in=2, demo_ratio=ratio)
    return Replay(specs, table, discount=0.9, collectors=1, writers=1, slots=1, seed=seed, shown=SHOWN)


def fill(table: Replay, count: int, begin: int = 0) -> None:
    """Rollouts whose observations are negative, and so cannot be mistaken for a demonstration."""
    for number in range(begin, begin + count):
        part = table.claim()
        assert part is not None, table.waiting()
        rollout = part.rollout
        rollout.observation["n"][:] = -1.0
        rollout.valid[:] = rollout.discount[:] = 1.0
        rollout.memory[0][:] = 5.0
        rollout.stream[:], rollout.step[:] = np.arange(B) << 32, number * T
        table.commit(part)
        while (taken := table.take()) is not None:
            table.release(taken.slot, np.full(32, 0.5, np.float32))


def test_a_batch_has_its_share_of_demonstrations_and_each_is_a_piece_of_the_stream():
    table, expected, shown, drawn = replay(), stream(False), 0, 0
    fill(table, 6)
    for number in range(60):
        fill(table, 1, 6 + number)
    for number in range(30):
        part = table.claim()
        assert part is not None
        part.rollout.stream[:], part.rollout.step[:] = np.arange(B) << 32, (66 + number) * T
        part.rollout.observation["n"][:] = -1.0
        table.commit(part)
        while (taken := table.take()) is not None:
            rollout, mine = taken.batch.rollout, taken.batch.rollout.observation["n"][0, :, 0] > 0
            shown, drawn = shown + int(mine.sum()), drawn + len(mine)
            for b in np.flatnonzero(mine):
                start = int(rollout.step[b])
                assert not rollout.memory[0][b].any(), "a demonstration starts with the memory of a new episode"
                for t in range(SEQUENCE):
                    row = expected[start + t]
                    np.testing.assert_array_equal(rollout.observation["n"][t, b], row["n"])
                    assert rollout.reward[t, b] == row["reward"] and rollout.valid[t, b] == row["valid"]
                    np.testing.assert_allclose(rollout.discount[t, b], 0.9 * row["discount"])
            table.release(taken.slot, np.full(32, 0.5, np.float32))
    assert drawn > 2000 and abs(shown / drawn - 0.25) < 3 * np.sqrt(0.25 * 0.75 / drawn)
    assert table.metrics()["replay/demo_share"] == pytest.approx(0.25, abs=0.02)


def test_demonstrations_stay_while_what_is_collected_goes_and_have_priorities_of_their_own():
    table = replay(capacity=30)
    fill(table, 60)  # six times what it holds
    mixture = table._sampled
    agent, shown = mixture.tables
    assert len(shown) == 6 and shown.limiter.deletes == 0 and agent.limiter.deletes > 50
    assert set(shown._priority[shown._live]) <= {0.5, 1.0} and 0.5 in shown._priority  # as the learner said
    assert table.store.broken == 0


def test_a_restored_table_draws_what_the_one_that_was_saved_draws():
    one = replay()
    fill(one, 12)
    saved, two = one.snapshot(), replay(seed=0)
    two.restore(saved)
    for table in (one, two):
        fill(table, 1, 12)
    np.testing.assert_array_equal(one._sampled.drawn, two._sampled.drawn)
    a, b = (table._sampled.sample(8) for table in (one, two))
    assert a is not None and b is not None
    np.testing.assert_array_equal(a.keys, b.keys)


def test_demonstrations_of_other_spaces_are_refused_with_the_difference():
    other = Spec(gs.Dict({"n": gs.Box(-1e6, 1e6, (3,), np.float32), "more": gs.Discrete(2)}), gs.Discrete(5), "other")
    check_spaces(SHOWN, SPEC)
    with pytest.raises(WrongDemonstrations) as refused:
        check_spaces(SHOWN, other)
    said = str(refused.value)
    assert "(2,)" in said and "(3,)" in said and "made-up" in said and "other" in said
    assert "observation.side is Discrete(3) there and absent here" in said and "observation.more is absent there" in said
    assert "action is" not in said


WRONG = {
    "nothing": ([], "no episode"),
    "no step": ([episode(0, 4)._replace(reward=[])], "episode 0 has no step"),
    "a missing observation": (
        [episode(0, 4), episode(1, 4)._replace(reward=np.ones(5))],
        "episode 1: observation has the shape",
    ),
    "a NaN": ([episode(0, 4)._replace(reward=np.array([0, 1, np.nan, 0]))], "reward is not finite at step 2"),
    "a discount": ([episode(0, 4)._replace(discount=np.array([1, 1, 1, 2]))], "between 0"),
    "a missing leaf": ([episode(0, 4)._replace(observation={"n": np.zeros((5, 2))})], "observation.side"),
}


@pytest.mark.parametrize("episodes, said", WRONG.values(), ids=WRONG.keys())
def test_an_episode_that_cannot_be_right_is_refused_by_number(episodes, said):
    with pytest.raises(WrongDemonstrations, match=said):
        gather(episodes, SPEC)


def test_the_digest_is_that_of_the_contents():
    again = gather([episode(0, 4), episode(1, 1), episode(2, 7, cut=True)], SPEC)
    other = gather([episode(0, 4), episode(1, 1), episode(2, 7)], SPEC)
    assert SHOWN.digest == again.digest != other.digest and SHOWN.steps == 12
