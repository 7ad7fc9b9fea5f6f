"""Tickets and blank rows, on plain arrays: the worker's side is played by the test."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces as gs

from rookery.envs.processes import shared_memory
from rookery.envs.processes.requests import Requests
from rookery.envs.processes.shared_memory import REBUILD, RESET, STEP
from rookery.trees import tree_map

ALL = slice(0, 4)


@pytest.fixture
def requests() -> Requests:
    """Four environments that were reset and have answered; their first observations are 0, 1, 2, 3."""
    board = shared_memory.describe(gs.Box(-9, 9, (1,), np.float32), gs.Discrete(2), 4)
    made = Requests(tree_map(lambda spec: np.zeros(spec.shape, spec.dtype), board), 4, seed=3)
    made.order_resets(3)
    made.issue(ALL)
    answer(made, [0, 1, 2, 3])
    made.in_flight[:] = False
    made.keep_firsts()
    return made


def answer(requests: Requests, ids: list[int], add: float = 0.0) -> None:
    """What a worker does: it writes an answer, and the ticket last."""
    board = requests.board
    board.observation[ids, 0] = np.array(ids) + add
    board.reward[ids], board.first[ids] = add, add == 0
    board.done[ids] = board.want[ids]


def test_an_answer_counts_when_its_ticket_is_there_and_only_until_the_next_request(requests: Requests) -> None:
    requests.issue(slice(0, 2))
    assert requests.answered(ALL).tolist() == [False, False, True, True]
    assert requests.in_flight.tolist() == [True, True, False, False]
    requests.board.observation[0] = 7  # half written: no ticket
    assert not requests.answered(ALL)[0] and not requests.poll(slice(0, 2))
    answer(requests, [0, 1], add=0.5)
    assert requests.poll(ALL) and requests.view(slice(0, 2), ()).observation[:, 0].tolist() == [0.5, 1.5]


def test_orders_are_carried_out_once_and_then_the_quick_path_is_taken(requests: Requests) -> None:
    assert requests.board.order.tolist() == [RESET] * 4 and not requests.plain
    before = requests.board.seed.copy()
    requests.reincarnate(2, REBUILD)
    requests.issue(ALL)
    assert requests.board.order.tolist() == [STEP, STEP, REBUILD, STEP] and requests.board.incarnation.tolist() == [0, 0, 1, 0]
    assert (requests.board.seed != before).tolist() == [False, False, True, False], "a seed of its own"
    answer(requests, [0, 1, 2, 3])
    requests.issue(ALL)
    assert requests.board.order.tolist() == [STEP] * 4 and requests.plain
    answer(requests, [0, 1, 2, 3])
    requests.issue(slice(1, 3))
    assert requests.answered(ALL).tolist() == [True, False, False, True], "the quick path has tickets of its own, too"


def test_whole_answers_of_a_lost_worker_stay_and_blank_rows_stand_for_the_others(requests: Requests) -> None:
    requests.issue(ALL)
    answer(requests, [0, 2, 3], add=0.5)
    requests.board.observation[1] = 7
    requests.lose(np.array([0, 1]))
    assert requests.answered(ALL).all()
    shown = requests.copy()
    assert shown.observation[:, 0].tolist() == [0.5, 1.0, 2.5, 3.5], "an earlier first observation, nothing half written"
    assert shown.first.tolist() == [False, True, False, False] and shown.reward.tolist() == [0.5, 0.0, 0.5, 0.5]
    requests.in_flight[:] = False
    requests.issue(ALL)
    assert requests.answered(ALL).tolist() == [True, True, False, False], "nobody is there to be waited for"
    assert requests.copy().first.tolist()[:2] == [True, True] and not requests.plain


def test_a_worker_that_is_back_is_asked_after_its_blank_rows_were_received(requests: Requests) -> None:
    ids = np.array([0, 1])
    requests.lose(ids)
    requests.issue(ALL)
    requests.regain(ids)
    assert requests.present.tolist() == [False, False, True, True], "what is in flight is received as it is"
    requests.in_flight[:] = False
    requests.regain(ids)
    requests.issue(ALL)
    assert not requests.answered(ALL).any() and requests.board.order.tolist() == [RESET, RESET, STEP, STEP]
    requests.void(ids)
    assert not requests.answered(ids).any()


def test_the_environment_that_a_dead_worker_was_at_is_named(requests: Requests) -> None:
    requests.issue(ALL)
    answer(requests, [0], add=0.5)
    requests.board.steps[:] = 5
    assert requests.under_way(np.array([0, 1]), stepping=1) == (1, "environment 1 (incarnation 0), step 5, action 0")
    assert requests.under_way(np.array([0, 1]), stepping=0) == (1, "environment 1 (incarnation 0), step 6, action 0")
