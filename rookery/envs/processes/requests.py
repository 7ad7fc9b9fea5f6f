"""Number the requests to environments, and tell which are in flight, answered, or have no worker to answer them.

Every request has a ticket, a number that the worker writes back into shared memory after everything else. An answer without
its ticket does not exist, so the half-written step of a worker that was killed is never read. While a worker is replaced,
its environments show blank rows: `first`, no reward and an earlier first observation, which no transition leads to.

Arrays in shared memory alone: which processes there are, and how they are woken, is not known here.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from rookery.envs.gym_envs import shorten
from rookery.envs.pools.pool import derive_seed
from rookery.envs.processes.shared_memory import POLL_SECONDS, RESET, STEP, Board
from rookery.trees import tree_leaves, tree_map
from rookery.types import Array, PyTree, TimeStep


class Requests:
    """The pool's side of a `Board`, one row per environment."""

    def __init__(self, board: Board, num_envs: int, seed: int) -> None:
        self.board, self.num_envs, self.seed = board, num_envs, seed
        self.present = np.ones(num_envs, bool)  # its worker is there
        self.in_flight = np.zeros(num_envs, bool)  # sent to, and not yet received from
        self.orders = np.zeros(num_envs, np.uint8)  # for the next request: STEP, RESET or REBUILD
        self.plain = False  # every environment is there and has only to step: the quick path
        self._blank = np.zeros(num_envs, bool)  # it shows a blank row
        self._firsts: PyTree = None  # a first observation of each, for blank rows
        self._ticket = 0

    # ------------------------------------------------------------------------------------------------- asking

    def order(self, env: int, order: int) -> None:
        """Order a reset or a new environment with the next request, from the seed that belongs to its incarnation."""
        self.board.seed[env] = derive_seed(self.seed, env, int(self.board.incarnation[env]))
        self.orders[env], self.plain = order, False

    def order_resets(self, seed: int) -> None:
        """Order a reset of every environment, in its first incarnation."""
        self.seed = seed
        self.board.incarnation[:] = 0
        for env in range(self.num_envs):
            self.order(env, RESET)

    def reincarnate(self, env: int, order: int) -> None:
        """Order the next incarnation of an environment."""
        self.board.incarnation[env] += 1
        self.order(env, order)

    def issue(self, rows: Any) -> None:
        """Ask some environments for their next answer, with a new ticket; those without a worker show a blank row."""
        self._ticket += 1
        self.in_flight[rows] = True
        if self.plain:
            self.board.want[rows] = self._ticket
        else:
            self._issue_orders(np.arange(self.num_envs)[rows])

    def _issue_orders(self, ids: np.ndarray) -> None:
        """Ask where some are to be reset or rebuilt, or are not there, or were so the last time."""
        board = self.board
        board.order[ids] = self.orders[ids]
        there, absent = ids[self.present[ids]], ids[~self.present[ids]]
        self.orders[there] = STEP
        board.want[there] = self._ticket
        self._show_blank(absent)
        self.plain = not (self.orders.any() or board.order.any()) and bool(self.present.all())

    # ------------------------------------------------------------------------------------------------ answers

    def answered(self, rows: Any) -> np.ndarray:
        """Return which of the rows have the answer to their last request: [n] bool."""
        return self.board.done[rows] == self.board.want[rows]

    def poll(self, rows: Any) -> bool:
        """Return whether all answers are there. If only some are, the others are near: they are looked for again and again
        for a moment, because not to fall asleep is cheaper than to be woken."""
        until = 0.0
        while True:
            answered = self.answered(rows)
            if answered.all():
                return True
            now = time.perf_counter()
            if until == 0.0:
                until = now + POLL_SECONDS if answered.any() else now
            if now >= until:
                return False
            os.sched_yield()

    def under_way(self, ids: np.ndarray, stepping: int) -> tuple[int, str]:
        """Return which of these environments a worker was at when it died, and name it with its step and action.

        stepping: the one that it said it was stepping; where that has answered, the first that has not is next."""
        owing, board = ids[~self.answered(ids)], self.board
        env = stepping if stepping in owing else int(owing[0])
        action = shorten(str(tree_map(lambda leaf: leaf[env], board.action)))
        step = board.steps[env] + (env != stepping)  # counted when it begins
        return env, f"environment {env} (incarnation {board.incarnation[env]}), step {step}, action {action}"

    def view(self, part: slice, ids: Array) -> TimeStep:
        """Return some rows as they are, and will be: views of the shared memory."""
        board = self.board
        seen = tree_map(lambda leaf: leaf[part], board.observation)
        return TimeStep(ids, seen, board.reward[part], board.terminated[part], board.truncated[part], board.first[part])

    def copy(self) -> TimeStep:
        """Return a copy of all rows."""
        board = self.board
        columns = (board.observation, board.reward, board.terminated, board.truncated, board.first)
        return TimeStep(np.arange(self.num_envs, dtype=np.int32), *tree_map(np.copy, columns))

    def keep_firsts(self) -> None:
        """Remember what the environments show now, for blank rows."""
        self._firsts = tree_map(np.copy, self.board.observation)

    def restore(self, seed: int, incarnation: Array, last: dict[str, Any]) -> None:
        """Show the rows of a snapshot; nothing is ordered and nothing in flight."""
        self.seed, self.board.incarnation[:] = seed, incarnation
        self.orders[:], self.in_flight[:], self.plain = STEP, False, False
        shown = self.view(slice(0, self.num_envs), ())
        tree_map(np.copyto, tuple(shown)[1:], tuple(last[name] for name in TimeStep._fields[1:]))
        self.keep_firsts()

    # ----------------------------------------------------------------------------------------- workers come and go

    def lose(self, ids: np.ndarray) -> None:
        """Note that the worker of these is gone: a whole answer may still be received, a blank row stands for any other."""
        self.present[ids], self.plain = False, False
        lost = ids[~self.answered(ids)]
        self.board.failed[ids] = 0
        self._show_blank(lost)
        self.board.done[lost] = self.board.want[lost]
        for env in ids.tolist():
            self.reincarnate(env, RESET)

    def regain(self, ids: np.ndarray) -> None:
        """Note that the worker of these is there again. What is in flight is received as it is: a blank row."""
        back = ids[~self.in_flight[ids]]
        self.present[back], self._blank[back] = True, False

    def void(self, ids: np.ndarray) -> None:
        """Take the answers back, so that whoever receives is told that their worker is gone."""
        self.board.done[ids] = -1

    def _show_blank(self, ids: np.ndarray) -> None:
        fresh = ids[~self._blank[ids]]
        if not len(fresh):
            return
        self._blank[fresh] = True
        board = self.board
        board.reward[fresh], board.terminated[fresh], board.truncated[fresh], board.first[fresh] = 0, False, False, True
        for to, source in zip(tree_leaves(board.observation), tree_leaves(self._firsts)):
            to[fresh] = source[fresh]
