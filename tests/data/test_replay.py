"""Replay between collectors and learner: every item of every batch is what a loop over the whole history says it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery import spaces
from rookery.data import columns, memory
from rookery.data.chunks import INCARNATIONS
from rookery.data.config import ReplayConfig, TableSpec
from rookery.data.replay import Replay, batch_specs, check_memory, table_for
from rookery.envs.options import PoolOptions
from rookery.envs.pools.adapted import adapted_spec
from rookery.trees import ArraySpec, tree_leaves
from rookery.types import Needs, Rollout

T, B, STACK, GAMMA = 6, 3, 4, 0.9


def specs(side: int = 2, length: int = T, width: int = B) -> Rollout:
    of = lambda dtype, *shape: ArraySpec(shape, np.dtype(dtype))
    f = lambda *shape: of(np.float32, length, width, *shape)
    return Rollout(
        observation={"image": of(np.uint8, length + 1, width, STACK, side, side), "n": of(np.int32, length + 1, width)},
        action=of(np.int32, length, width), reward=f(), discount=f(), valid=f(), extras={"q": f()},
        memory=(of(np.float32, width, 5),), version=of(np.int32, length, width), stream=of(np.int64, width),
        step=of(np.int64, width),
    )  # fmt: skip


class World:
    """Plays episodes of random length in B streams and remembers every row of them."""

    def __init__(self, seed: int = 0, episode: int = 9) -> None:
        self.random, self.episode = np.random.default_rng(seed), episode
        self.rows: list[list[dict]] = [[] for _ in range(B)]
        self.stacks = [np.zeros((STACK, 2, 2), np.uint8) for _ in range(B)]
        self.now = [self.next_row(b, first=True) for b in range(B)]
        self.step = 0

    def next_row(self, b: int, first: bool) -> dict:
        frame = self.random.integers(1, 255, (2, 2)).astype(np.uint8)
        self.stacks[b] = np.concatenate([(0 if first else 1) * self.stacks[b][1:], frame[None]])
        return {"image": self.stacks[b].copy(), "n": len(self.rows[b]), "first": first}

    def play(self, out: Rollout) -> Rollout:
        out.stream[:], out.step[:] = np.arange(B) * INCARNATIONS, self.step
        for b in range(B):
            for t in range(T):
                row = self.now[b]
                out.observation["image"][t, b], out.observation["n"][t, b] = row["image"], row["n"]
                over = bool(self.rows[b]) and self.rows[b][-1].get("over", False)
                ends = not over and self.random.random() < 1 / self.episode
                row["over"] = ends
                row["valid"] = float(not over)
                row["discount"] = float(not (ends and self.random.random() < 0.5))
                row["reward"], row["action"] = float(self.random.normal()), int(self.random.integers(5))
                row["td"] = float(self.random.random())
                out.action[t, b], out.reward[t, b], out.valid[t, b] = row["action"], row["reward"], row["valid"]
                out.discount[t, b], out.version[t, b] = row["discount"], self.step // T
                self.rows[b].append(row)
                self.now[b] = self.next_row(b, first=over)
            out.observation["image"][T, b], out.observation["n"][T, b] = self.now[b]["image"], self.now[b]["n"]
            out.memory[0][b] = 1000 * b + self.step
        self.step += T
        return out

    def priorities(self) -> np.ndarray:
        """[T, B] of the rollout that was played last."""
        return np.array([[self.rows[b][self.step - T + t]["td"] for b in range(B)] for t in range(T)])


def replay(table: TableSpec | None = None, *, collectors: int = 1, seed: int = 0, **config) -> Replay:
    options = {"capacity": 400, "min_size": 10, "samples_per_insert": 4.0, "stack": STACK}
    table = table or TableSpec(ReplayConfig(), batch_size=16, n_step=3)
    table = table._replace(config=ReplayConfig(**options | config))
    return Replay(specs(), table, discount=GAMMA, collectors=collectors, writers=2, slots=2, seed=seed)


class Expected(NamedTuple):
    reward: float
    discount: float
    image: np.ndarray
    n: int


def expected_transition(world: World, b: int, step: int, n: int, clip: float | None = None) -> Expected:
    total, product, at = 0.0, 1.0, step
    rows = world.rows[b]
    while at < step + n and rows[at]["valid"]:
        reward = rows[at]["reward"] if clip is None else max(-clip, min(clip, rows[at]["reward"]))
        total, product, at = total + product * reward, product * GAMMA * rows[at]["discount"], at + 1
    after = rows[at] if at < len(rows) else world.now[b]
    return Expected(total, product, after["image"], after["n"])


@pytest.mark.parametrize("n, clip, capacity", [(1, None, 400), (3, None, 400), (5, 0.5, 120), (8, None, 4000)])
def test_every_transition_is_that_of_the_history(n, clip, capacity):
    world, seen = World(n), set()
    subject = replay(TableSpec(ReplayConfig(), batch_size=16, n_step=n, reward_clip=clip), capacity=capacity)
    for _ in range(150):
        part = subject.claim()
        assert part is not None
        world.play(part.rollout)
        subject.commit(part)
        while (taken := subject.take()) is not None:
            rollout = taken.batch.rollout
            assert rollout.reward.shape == (1, 16) and (rollout.valid == 1).all() and (taken.batch.weight == 1).all()
            for i in range(16):
                b, step = int(rollout.stream[i] // INCARNATIONS), int(rollout.step[i])
                row, wanted = world.rows[b][step], expected_transition(world, b, step, n, clip)
                assert row["valid"] and step + n <= world.step
                np.testing.assert_array_equal(rollout.observation["image"][0, i], row["image"])
                np.testing.assert_array_equal(rollout.observation["image"][1, i], wanted.image)
                assert rollout.observation["n"][:, i].tolist() == [step, wanted.n]
                assert rollout.action[0, i] == row["action"] and rollout.version[0, i] == step // T
                np.testing.assert_allclose([rollout.reward[0, i], rollout.discount[0, i]], wanted[:2], rtol=1e-5, atol=1e-6)
                seen.add((b, step))
            subject.release(taken.slot)
    made = {(b, s) for b in range(B) for s in range(world.step - n + 1) if world.rows[b][s]["valid"]}
    assert subject.table.limiter.inserts == len(made)
    assert len(subject.table) <= capacity and len(seen) > 0.7 * len(made) and seen <= made
    assert abs(subject.table.limiter.samples / len(made) - 4.0) < 0.3


def test_sequences_start_every_rollout_with_the_memory_of_that_time_and_may_cross_episodes():
    spec = TableSpec(ReplayConfig(), batch_size=8, sequence_length=3 * T, burn_in=T, eta=0.9)
    subject, world = replay(spec, selector="prioritized", exponent=1.0, samples_per_insert=2.0, capacity=360), World(1)
    crossed = 0
    for _ in range(60):
        part = subject.claim()
        assert part is not None
        world.play(part.rollout)
        subject.commit(part, world.priorities())
        table = subject.table
        for slot in np.flatnonzero(table._live & (table._times == 0))[-3:]:
            stream, step = (int(x[0]) for x in subject.store.origin(table._row[slot : slot + 1]))
            rows = world.rows[stream // INCARNATIONS][step + T : step + 3 * T]
            errors = [row["td"] for row in rows if row["valid"]]
            np.testing.assert_allclose(table._priority[slot], 0.9 * max(errors) + 0.1 * np.mean(errors), rtol=1e-5)
        while (taken := subject.take()) is not None:
            rollout = taken.batch.rollout
            assert rollout.reward.shape == (3 * T, 8) and rollout.observation["n"].shape == (3 * T + 1, 8)
            for i in range(8):
                b, step = int(rollout.stream[i] // INCARNATIONS), int(rollout.step[i])
                rows = [*world.rows[b][step : step + 3 * T + 1], world.now[b]][: 3 * T + 1]
                assert step % T == 0 and (rollout.memory[0][i] == 1000 * b + step).all()
                for t, row in enumerate(rows):
                    np.testing.assert_array_equal(rollout.observation["image"][t, i], row["image"])
                for t, row in enumerate(rows[:-1]):
                    wanted = (row["action"], row["valid"], np.float32(GAMMA) * np.float32(row["discount"]))
                    assert (rollout.action[t, i], rollout.valid[t, i], rollout.discount[t, i]) == wanted
                crossed += min(row["valid"] for row in rows[:-1]) == 0
            subject.release(taken.slot, np.full(8, 0.5))
    assert crossed > 10 and subject.table.limiter.inserts == 58 * B


def test_priorities_come_from_the_rows_and_go_back_from_the_learner():
    subject, world = replay(selector="prioritized", exponent=1.0, beta=1.0, samples_per_insert=1.0, error_buffer=1e6), World()
    for _ in range(8):
        part = subject.claim()
        assert part is not None
        world.play(part.rollout)
        subject.commit(part, world.priorities())
    table = subject.table
    slots = np.flatnonzero(table._live)
    streams, steps = subject.store.origin(table._row[slots])
    given = [world.rows[int(s) // INCARNATIONS][int(t)]["td"] for s, t in zip(streams, steps)]
    np.testing.assert_allclose(table._priority[slots], given, rtol=1e-6)
    taken = subject.take()
    assert taken is not None
    drawn = table._priority[taken.batch.key & 0xFFFFFFFF]
    weights = (1 / drawn) / (1 / drawn).max()
    np.testing.assert_allclose(taken.batch.weight, weights, rtol=1e-5)
    subject.release(taken.slot, np.full(16, 0.25))
    assert (table._priority[taken.batch.key & 0xFFFFFFFF] == 0.25).all()


def test_a_stream_with_lost_rows_makes_no_item_across_the_gap_and_none_with_an_unknown_stack():
    subject, world = replay(samples_per_insert=100.0, error_buffer=1e6), World(episode=10**9)
    gap = 0
    for turn in range(12):
        rollout = world.play(subject._parts[0])
        if turn == 5:
            gap = world.step
            continue
        subject.insert(rollout)
    _, steps = subject.store.origin(subject.table._row[subject.table._live])
    expected = {*range(gap - T - 2), *range(gap + STACK - 1, world.step - 2)}
    assert set(steps.tolist()) == expected
    taken = subject.take()
    assert taken is not None
    for i in range(16):
        row = world.rows[int(taken.batch.rollout.stream[i] // INCARNATIONS)][int(taken.batch.rollout.step[i])]
        np.testing.assert_array_equal(taken.batch.rollout.observation["image"][0, i], row["image"])


def test_the_limiter_makes_collectors_and_learner_wait_and_says_why():
    subject, world = replay(min_size=60, samples_per_insert=2.0, error_buffer=52.0), World(episode=10**9)
    assert subject.take() is None
    assert "60 more inserts before the next sample (0 of min_size 60)" in str(subject.waiting())
    parts = 0
    while (part := subject.claim()) is not None:
        world.play(part.rollout)
        subject.commit(part)
        parts += 1
    assert parts == 5 and "more samples before the next insert" in str(subject.waiting())
    first, second = subject.claim(), subject.take()
    assert first is None and second is not None
    subject.release(second.slot)


def test_a_claim_counts_what_other_collectors_are_about_to_bring():
    subject, world = replay(collectors=2, min_size=30, samples_per_insert=1.0, error_buffer=52.0), World(episode=10**9)
    for _ in range(3):
        subject.insert(world.play(subject._parts[0]))  # 48 items: there is room for one rollout of 18, not for two
    first = subject.claim()
    assert first is not None and len(subject._claimed) == 1 and subject.claim() is None
    subject.abandon(first)
    assert subject.claim() is not None


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
@pytest.mark.parametrize("sequence", [0, 2 * T])
def test_a_restored_replay_goes_on_bit_for_bit(selector, sequence):
    spec = TableSpec(ReplayConfig(), batch_size=16, n_step=3, sequence_length=sequence, anneal_batches=50)
    one, world = replay(spec, selector=selector, capacity=300), World(3)
    for _ in range(40):
        one.insert(world.play(one._parts[0]), world.priorities())
        while (taken := one.take()) is not None:
            one.release(taken.slot, np.abs(taken.batch.rollout.reward[0]))
    other = replay(spec, selector=selector, capacity=300, seed=9)
    other.restore(one.snapshot())
    for _ in range(40):
        rollout = world.play(one._parts[0])
        for subject in (one, other):
            subject.insert(rollout, world.priorities())
        while (mine := one.take()) is not None:
            theirs = other.take()
            assert theirs is not None
            for a, b in zip(tree_leaves(mine.batch), tree_leaves(theirs.batch)):
                np.testing.assert_array_equal(a, b)
            for subject, taken in ((one, mine), (other, theirs)):
                subject.release(taken.slot, np.abs(taken.batch.rollout.reward[0]))
        assert other.take() is None


def test_a_table_that_is_too_large_to_save_is_filled_anew():
    subject, world = replay(save_megabytes=0, save_files=False), World()
    for _ in range(20):
        subject.insert(world.play(subject._parts[0]))
    other = replay()
    other.restore(subject.snapshot())
    assert len(other.table) == 0 and other.take() is None
    other.insert(world.play(subject._parts[0]))


def test_100k_atari_transitions_with_stack_4_take_little_more_than_their_frames():
    shapes = specs(side=84, length=16, width=16)._replace(memory=())
    config = ReplayConfig(capacity=100_000, stack=4)
    needs = Needs(16, 0.99, table=TableSpec(config, batch_size=32, n_step=3))
    assert 100_000 * 84 * 84 < check_memory(needs, shapes, num_envs=16) <= 1.1 * 100_000 * 84 * 84
    subject = table_for(needs, shapes, collectors=1, in_flight=1, parts=1, slots=1, prefetch=0, seed=0)
    assert subject.store.nbytes <= 1.1 * 100_000 * 84 * 84
    rollout = subject._parts[0]
    rollout.valid[:] = rollout.discount[:] = 1.0
    rollout.stream[:] = np.arange(16) * INCARNATIONS
    for step in range(0, 112_000 // 16, 16):
        rollout.step[:] = step
        subject.insert(rollout)
    assert len(subject.table) >= 99_000


def test_a_table_that_does_not_fit_into_the_machine_is_refused_before_it_is_made(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    4000000 kB\n")
    assert memory.available_bytes(tmp_path) == 4_096_000_000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("5\n")
    assert memory.available_bytes(tmp_path) == 4_096_000_000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1005\n")
    assert memory.available_bytes(tmp_path) == 1000
    needs = Needs(T, GAMMA, table=TableSpec(ReplayConfig(capacity=10**12), batch_size=4))
    with pytest.raises(ValueError, match=r"a replay of 1,000,000,000,000 steps needs .* lower --replay.capacity"):
        check_memory(needs, specs(), num_envs=B)


def test_a_replay_smaller_than_what_it_must_hold_is_refused():
    with pytest.raises(ValueError, match="raise --replay"):
        replay(capacity=50, min_size=60)


def test_without_a_table_collectors_and_learner_meet_at_a_queue():
    needs = Needs(T, GAMMA)
    queue = table_for(needs, specs(), collectors=1, in_flight=1, parts=2, slots=1, prefetch=0, seed=0)
    assert type(queue).__name__ == "Queue"
    assert batch_specs(needs, specs(), 2).reward.shape == (T, 2 * B)


def test_stacks_of_a_real_atari_game_are_rebuilt_exactly():
    """The pool says how a stack starts an episode (zeros), and the table relies on it."""
    pytest.importorskip("ale_py")
    from rookery import envs

    pool = envs.make("ALE/Pong-v5", 2, repeat_action_probability=0.0, max_frames=80)
    try:
        now, length, of = pool.reset(3), 24, lambda dtype, *shape: ArraySpec(shape, np.dtype(dtype))
        row = lambda dtype: of(dtype, length, 2)
        shapes = Rollout(
            of(np.uint8, length + 1, 2, 4, 84, 84), row(np.int32), row(np.float32), row(np.float32), row(np.float32), {}, (),
            row(np.int32), of(np.int64, 2), of(np.int64, 2),
        )  # fmt: skip
        table = TableSpec(ReplayConfig(capacity=500, min_size=10, stack=4, samples_per_insert=8.0), batch_size=64, n_step=3)
        subject = Replay(shapes, table, discount=GAMMA, collectors=1, writers=1, slots=1, seed=0)
        history, random, episodes = [], np.random.default_rng(0), 0
        for turn in range(5):
            part = subject.claim()
            assert part is not None
            rollout = part.rollout
            rollout.stream[:], rollout.step[:] = np.arange(2) * INCARNATIONS, turn * length
            for t in range(length):
                rollout.observation[t] = now.observation
                history.append(np.array(now.observation))
                pool.send(random.integers(0, 6, 2))
                now = pool.recv()
                rollout.reward[t], rollout.discount[t], rollout.valid[t] = now.reward, 1.0 - now.terminated, 1.0 - now.first
                episodes += int(now.first.sum())
            rollout.observation[length] = now.observation
            subject.commit(part)
            while (taken := subject.take()) is not None:
                got = taken.batch.rollout
                for i, (stream, step) in enumerate(zip(got.stream, got.step)):
                    np.testing.assert_array_equal(got.observation[0, i], history[step][stream // INCARNATIONS])
                subject.release(taken.slot)
        assert episodes >= 4
    finally:
        pool.close()


def test_the_frames_that_a_pool_stacks_are_stored_once_unless_they_are_no_stack():
    image, vector = gs.Box(0, 255, (8, 9, 3), np.uint8), gs.Box(-1, 1, (8, 9), np.float32)
    spec = lambda space, frames: adapted_spec(spaces.spec_of(space, gs.Discrete(2), ""), PoolOptions(frame_stack=frames))
    assert columns.frames_of(spec(image, 3)) == 3 and columns.frames_of(spec(image, 1)) == 0
    assert columns.frames_of(spec(gs.Box(-1, 1, (5,), np.float32), 3)) == 0, "vectors are small"
    assert columns.frames_of(spec(gs.Dict(a=image, b=gs.Box(0, 1, (4,), np.float32)), 3)) == 3
    assert columns.frames_of(spec(gs.Dict(a=vector, b=gs.MultiBinary((3, 8, 9))), 3)) == 0, "bits are not stacked, and look so"
    table = TableSpec(ReplayConfig(), batch_size=4, frames=3)
    assert table.stack == 3 and table._replace(config=ReplayConfig(stack=0)).stack == 0
