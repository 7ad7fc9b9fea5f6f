"""Every field of a rollout against a script: environment i, episode e, step s is what observation, reward and ends tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collecting import collect

from rookery.data import arrays
from rookery.data.chunks import INCARNATIONS
from rookery.testing import SPEC, ScriptedPool, Slot, counting_agent
from rookery.testing import assert_same_rollout as same
from rookery.testing import counting_params as params
from rookery.testing import dirty_rollout as dirty
from rookery.testing import scripted_observation as shown
from rookery.testing import scripted_step as play
from rookery.trees import tree_leaves
from rookery.types import BATCH_MAJOR, Agent, Rollout
from rookery.workers.acting.collector import Collector
from rookery.workers.acting.shapes import rollout_specs

B, T = 4, 3
AGENT = counting_agent(T, return_discount=0.5)
PREVIOUS = counting_agent(T, previous=True)


def collector(agent: Agent = AGENT, *, groups: int = 1, savable: bool = True, **options: Any) -> Collector:
    made = Collector(agent, lambda: ScriptedPool(B, groups, savable=savable), **options)
    made.publish(params(), 0)
    return made


# ------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_every_row_tells_what_was_seen_done_and_given(groups: int) -> None:
    worker = collector(groups=groups)
    slots = [Slot(env, 0, 0, False) for env in range(B)]
    since_reset, returns = [0] * B, [0.0] * B
    resets = 0
    for i, (rollout, env_steps) in enumerate((c.rollout, c.env_steps) for c in collect(worker, 8)):
        assert env_steps == int(rollout.valid.sum())
        for env in range(B):
            assert rollout.memory["count"][env] == since_reset[env]
            assert (rollout.memory["wide"][env] == 7.0 + since_reset[env]).all()
            assert rollout.stream[env] == env * INCARNATIONS and rollout.step[env] == i * T
            for t in range(T):
                seen = shown(slots[env])
                action = int(seen[0] + seen[2]) % 4
                assert rollout.observation[t, env].tolist() == seen
                assert rollout.action[t, env] == action
                assert rollout.extras["count"][t, env] == since_reset[env]
                assert rollout.extras["seen"]["b"][t, env].tolist() == seen and rollout.extras["seen"]["a"][t, env] == seen[1]
                slots[env], reward, terminated, _, first = play(slots[env], action)
                assert rollout.reward[t, env] == np.float32(reward)
                assert rollout.discount[t, env] == (0.0 if terminated else 1.0)
                assert rollout.valid[t, env] == (0.0 if first else 1.0)
                returns[env] = 0.0 if first else 0.5 * returns[env] + reward
                assert rollout.extras["discounted_return"][t, env] == np.float32(returns[env])
                since_reset[env] = 0 if first else since_reset[env] + 1
                resets += first
            assert rollout.observation[T, env].tolist() == shown(slots[env])
    assert resets > 20, "the script ends episodes often, also at the edges of rollouts"


def test_the_last_observation_of_an_episode_is_in_the_stream() -> None:
    rows = np.concatenate([c.rollout.observation[:T] for c in collect(collector(), 8)])
    valid = np.concatenate([c.rollout.valid for c in collect(collector(), 8)])
    for env in range(B):
        stream = [tuple(int(x) for x in row) for row in rows[:, env]]
        for t in np.flatnonzero(valid[:, env] == 0):
            _, episode, step = stream[t]
            last = next(s for s in range(1, 9) if play(Slot(env, episode, s - 1, False), 0)[0].ended)
            assert step == last and (t + 1 == len(stream) or stream[t + 1] == (env, episode + 1, 0))


def test_a_rollout_that_starts_at_a_first_observation_starts_with_new_memory() -> None:
    found = 0
    for c in collect(collector(), 12):
        starts = c.rollout.observation[0, :, 2] == 0
        assert (c.rollout.memory["count"][starts] == 0).all() and (c.rollout.memory["wide"][starts] == 7).all()
        assert (c.rollout.memory["count"][~starts] > 0).all()
        found += int(starts.sum())
    assert found > 8


@pytest.mark.parametrize("groups", [1, 2])
def test_the_previous_action_and_reward_are_those_before_and_zero_at_a_first_observation(groups: int) -> None:
    rollouts = [c.rollout for c in collect(collector(PREVIOUS, groups=groups), 8)]
    action, reward = (np.concatenate([getattr(r, name) for r in rollouts]) for name in ("action", "reward"))
    valid = np.concatenate([r.valid for r in rollouts])
    for i, rollout in enumerate(rollouts):
        seen = rollout.observation
        for t in range(T + 1):
            row = i * T + t
            for env in range(B):
                if row == 0 or valid[row - 1, env] == 0:
                    expected = (0, 0.0)
                else:
                    expected = (action[row - 1, env], reward[row - 1, env])
                assert (seen["previous_action"][t, env], seen["previous_reward"][t, env]) == expected
        assert seen["previous_reward"].dtype == np.float32 and seen["observation"].shape == (T + 1, B, 3)


def test_groups_do_not_change_the_data() -> None:
    one, two, four = (collect(collector(groups=groups), 6) for groups in (1, 2, 4))
    for a, b, c in zip(one, two, four):
        for other in (b, c):  # random draws are keyed by the decision, and a group is a decision of its own
            same(*(x.rollout._replace(extras={**x.rollout.extras, "drawn": ()}) for x in (a, other)))
            assert sorted(a.episodes) == sorted(other.episodes) and a.env_steps == other.env_steps


def test_draws_differ_between_steps_rollouts_groups_and_collectors_and_repeat_for_a_seed() -> None:
    def draws(**options: Any) -> list[float]:
        return np.concatenate([c.rollout.extras["drawn"] for c in collect(collector(**options), 4)]).reshape(-1).tolist()

    seen = draws(groups=2) + draws(index=1, num_workers=2, groups=2) + draws(seed=1, groups=2) + draws(incarnation=1)
    assert len(set(seen)) == len(seen)
    assert draws(groups=2, seed=5) == draws(groups=2, seed=5)


def test_episodes_are_those_that_ended_and_steps_add_up() -> None:
    collected = collect(collector(), 20)
    total = sum(float((c.rollout.reward * c.rollout.valid).sum()) for c in collected)
    finished = [episode for c in collected for episode in c.episodes]
    ends = sum(int((c.rollout.valid == 0).sum()) for c in collected)
    assert 0 <= len(finished) - ends <= B, "an episode that ended with the last row resets in the next rollout"
    assert sum(e.total_reward for e in finished) <= total
    assert sum(c.env_steps for c in collected) == 20 * T * B - ends
    assert sum(e.length for e in finished) <= sum(c.env_steps for c in collected)


def test_exploration_is_told_who_acts_and_how_much_all_collectors_have_played() -> None:
    worker = collector(index=1, num_workers=3)
    played = 0
    for c in collect(worker, 4):
        expected = np.arange(B, 2 * B) + 1000.0 * 3 * played
        assert (c.rollout.extras["explore"] == expected.astype(np.float32)).all()
        played += c.env_steps


# ------------------------------------------------------------------------------------------------- parameters


def test_parameters_are_read_at_the_start_of_a_rollout_and_the_newest_wins() -> None:
    worker = collector()
    worker.publish(params(2), 7)
    worker.publish(params(9), 6)  # late: an older version
    rollout = worker.collect().rollout
    assert (rollout.version == 7).all() and rollout.version.dtype == np.int32
    expected = (rollout.observation[:T, :, 0] + rollout.observation[:T, :, 2] + 2) % 4
    assert (rollout.action == expected).all()


def test_parameters_that_come_in_the_middle_of_a_rollout_wait_for_the_next() -> None:
    def publish(slot: Slot) -> None:
        worker.publish(params(1), 1)

    worker = Collector(AGENT, lambda: ScriptedPool(B, on_step=publish))
    worker.publish(params(0), 0)
    before, after = collect(worker, 2)
    assert (before.rollout.version == 0).all() and (after.rollout.version == 1).all()
    assert (before.rollout.action == (before.rollout.observation[:T, :, 0] + before.rollout.observation[:T, :, 2]) % 4).all()


def test_collecting_without_parameters_says_so() -> None:
    with pytest.raises(RuntimeError, match="publish"):
        Collector(AGENT, lambda: ScriptedPool(B)).collect()


def test_a_rollout_is_written_where_the_caller_says_and_nowhere_else() -> None:
    specs = rollout_specs(AGENT, SPEC, B)
    whole = dirty(arrays.widen(specs, 3 * B))
    worker = collector(groups=2)
    answer = worker.collect(arrays.columns(whole, slice(B, 2 * B)))
    for name, field in whole._asdict().items():
        for leaf in tree_leaves(field):
            columns = leaf if name in BATCH_MAJOR else np.moveaxis(leaf, 1, 0)
            assert (columns[:B] == 99).all() and (columns[2 * B :] == 99).all(), name
    same(answer.rollout, collector(groups=2).collect().rollout)


def test_what_process_makes_of_a_rollout_is_in_the_place_that_the_caller_gave() -> None:
    def process(params: Any, rollout: Rollout) -> tuple[Rollout, None]:
        extras = {**rollout.extras, "count": rollout.extras["count"] + 1}
        return rollout._replace(reward=rollout.reward * 10, extras=extras), None

    agent = counting_agent(T, process=process)
    out, plain = dirty(rollout_specs(agent, SPEC, B)), collector(counting_agent(T)).collect().rollout
    answer = collector(agent).collect(out).rollout
    assert (out.reward == plain.reward * 10).all() and (out.extras["count"] == plain.extras["count"] + 1).all()
    same(answer, out)


def test_closing_a_collector_closes_its_pool() -> None:
    pool = ScriptedPool(B)
    Collector(AGENT, lambda: pool).close()
    assert pool.closed == 1
