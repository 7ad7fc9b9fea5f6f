"""Answer the requests in shared memory by stepping Gymnasium environments, ticket by ticket.

In a worker process this is the whole work; in the pool's own process it steps a share of the environments while the workers
step theirs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from rookery.envs.gym_envs import AnswerRows, Broken, GymEnvs, each
from rookery.envs.processes.shared_memory import FAILED, NOT_FINITE, REBUILD, RESET, Board
from rookery.trees import tree_map


def said(error: BaseException) -> str:
    """Return what an error says: its own words where a promise was broken, else its type as well."""
    return str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"


class StepServer:
    """Serve the requests to the environments of one process."""

    def __init__(
        self, gym_envs: GymEnvs, board: Board, index: int, *, tell_failure: Callable[[int, str], None],
        tell_note: Callable[[str], None], tell_clipped: Callable[[int], None],
    ) -> None:  # fmt: skip
        """index: the row of `Board.now` in which it says which environment it is stepping."""
        self._tell_clipped, self._clipped = tell_clipped, 0
        self.gym_envs, self.board, self.ids = gym_envs, board, np.array(gym_envs.ids)
        self._tell_failure, self._tell_note = tell_failure, tell_note
        self._answer = AnswerRows(
            gym_envs.observation, board.observation, board.reward, board.terminated, board.truncated, board.first, start=0
        )
        self._want, self._done = _part(board.want, self.ids), _part(board.done, self.ids)
        self._parts: dict[tuple[int, int, int], tuple[list[int], Any]] = {}
        self._failed = False  # was there a failure in the last answers?
        gym_envs.now = memoryview(board.now)[index : index + 1]
        gym_envs.steps = memoryview(board.steps)

    def is_wanted(self) -> bool:
        """Return whether a request waits for its answer."""
        return bool((self._want() != self._done()).any())

    def serve(self) -> bool:
        """Answer the oldest request; False if there is none."""
        want = self._want()
        pending = (want != self._done()).nonzero()[0]
        if not len(pending):
            return False
        tickets = want[pending]
        ticket = int(tickets.min())  # who asked first is served first
        if ticket != tickets.max():
            pending = pending[tickets == ticket]
        self._answer_to(*self._part(pending), ticket)
        return True

    def _part(self, pending: np.ndarray) -> tuple[list[int], Any]:
        """Return the environments and their rows, a slice where they lie side by side; the usual ones are remembered."""
        key = (int(pending[0]), int(pending[-1]), len(pending))
        if key in self._parts:
            return self._parts[key]
        rows = self.ids[pending]
        ids = rows.tolist()
        if ids[-1] - ids[0] + 1 != len(ids):
            return ids, rows
        self._parts[key] = ids, slice(ids[0], ids[-1] + 1)
        return self._parts[key]

    def _answer_to(self, ids: list[int], where: Any, ticket: int) -> None:
        board = self.board
        asked = ids
        failures: list[tuple[int, str, int]] = []
        if board.order[where].any():
            asked, failures = self._prepare(ids)
        if asked:
            mine = where if asked is ids else np.array(asked)
            actions = each(tree_map(lambda leaf: leaf[mine].copy(), board.action), range(len(asked)))
            code = lambda kind: NOT_FINITE if kind == "not finite" else FAILED
            failures += [(f.env_id, f.report(), code(f.kind)) for f in self.gym_envs.advance(asked, actions, self._answer)]
        if failures or self._failed:
            self._failed = bool(failures)
            board.failed[where] = 0
            for env, report, what in failures:
                board.failed[env] = what
                self._tell_failure(env, report)
        while self.gym_envs.notes:
            self._tell_note(self.gym_envs.notes.pop(0))
        if self.gym_envs.clipped != self._clipped:
            self._tell_clipped(self.gym_envs.clipped - self._clipped)
            self._clipped = self.gym_envs.clipped
        board.done[where] = ticket  # last: from here on the answer counts

    def _prepare(self, ids: list[int]) -> tuple[list[int], list[tuple[int, str, int]]]:
        """Reseed and rebuild what was ordered; those that could not be made are failures."""
        made: list[int] = []
        failures: list[tuple[int, str, int]] = []
        gym_envs = self.gym_envs
        for env in ids:
            order, what = self.board.order[env], (env, int(self.board.incarnation[env]), int(self.board.seed[env]))
            gym_envs.now[0] = env
            try:
                if order == RESET:
                    gym_envs.reseed(*what)
                elif order == REBUILD:
                    gym_envs.rebuild(*what)
                made.append(env)
            except (Exception, SystemExit) as error:
                report = f"{gym_envs.place(env)}: it cannot be made: {said(error)}\n{traceback.format_exc()}"
                failures.append((env, report, FAILED))
        return made, failures


def _part(column: np.ndarray, ids: np.ndarray) -> Any:
    """Return a function that reads the rows of a column: a view where they lie side by side, else a copy each time."""
    if ids[-1] - ids[0] + 1 == len(ids):
        view = column[ids[0] : ids[-1] + 1]
        return lambda: view
    return lambda: column[ids]
