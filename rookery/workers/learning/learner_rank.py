"""A LearnerRank: one of N processes that learn together, each from its columns of a batch (jax.distributed; gloo on CPU).

All ranks make every call alike. Together they are one Learner on a mesh of all their devices (see mesh.py): the state is the
same in each, and what one of them says of an update is what one learner on the whole batch would say.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.data import arrays
from rookery.trees import tree_map
from rookery.types import Agent, Batch, PyTree, Rollout
from rookery.workers.learning.learner import Learner, Update

HOST = "ROOKERY_HOST"  # the address of this machine, where a runtime knows it; else only this machine is reached
DETERMINISTIC = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")  # would happen again, with any peers


class PeerLost(RuntimeError):
    """Another rank did not take part in an update: it is gone, or cannot be reached."""


class BatchShare(NamedTuple):
    """The columns of a rollout that a rank learns from."""

    start: int
    stop: int


class LearnerRank:
    """A Learner in a process group. No jax before `join`, which decides on devices: agents hold arrays and come later."""

    def __init__(self) -> None:
        self._number, self._count = 0, 1
        self._learner: Learner | None = None
        self._columns: Rollout | None = None

    def address(self) -> str:
        """Find a free port for jax's coordinator, which the first rank runs."""
        host = os.environ.get(HOST, "127.0.0.1")
        with socket.socket() as free:
            free.bind((host, 0))
            return f"{host}:{free.getsockname()[1]}"

    def join(self, address: str, number: int, count: int, devices: tuple[int, ...] | None) -> None:
        """Join the process group. devices: which of this machine's are its own; None: all that it sees."""
        self._number, self._count = number, count
        if count == 1:
            return
        _listen_only_at(os.environ.get(HOST, "127.0.0.1"))
        jax.distributed.initialize(
            address, count, number, local_device_ids=devices, cluster_detection_method="deactivate",
            coordinator_bind_address=address, initialization_timeout=120,
        )  # fmt: skip

    def begin(
        self, agent: Agent, seed: int, devices: int, version: int, snapshot: PyTree | None, shares_slow: bool = False
    ) -> PyTree:
        """Resume from a snapshot, as `version`: numbers that were published before are not used again.

        -> the parameters, of the first rank. shares_slow: its updates bring a copy of what is slow along."""
        agent = agent if self._number == 0 else agent._replace(inspect=None)  # one looks for all
        shares_slow = shares_slow and self._number == 0
        self._learner = Learner(agent, seed=seed, snapshot=snapshot, devices=devices, shares_slow=shares_slow)
        self._learner.version = max(version, self._learner.version)
        return self._plain(self._learner.params)

    def warm_up(self, specs: Rollout) -> None:
        """Compile the update. specs: of the columns of this rank."""
        assert self._learner is not None
        self._columns = arrays.allocate(specs)
        self._together(self._learner.warm_up, specs)

    def learn(
        self, rollouts: Sequence[Rollout | None], shares: Sequence[BatchShare], weight: np.ndarray, discount: float
    ) -> Update:
        """Make an update together. shares: this rank's columns of each rollout (None: a lost one); discount: multiplied in."""
        assert self._learner is not None
        rollout = rollouts[0]
        if len(rollouts) > 1 or discount != 1.0 or rollout is None:
            rollout = self._joined(rollouts, shares, discount)
        update: Update = self._together(self._learner.learn, Batch(rollout, weight, ()))
        if self._number:
            return update._replace(params=None, report={}, priorities=None)
        priorities = None if update.priorities is None else np.asarray(update.priorities)
        return update._replace(params=self._plain(update.params), slow=self._plain(update.slow), priorities=priorities)

    def _joined(self, rollouts: Sequence[Rollout | None], shares: Sequence[BatchShare], discount: float) -> Rollout:
        """Join the columns, copied once. Those of a rollout that was lost with its machine are no transitions."""
        assert self._columns is not None
        to = 0
        for rollout, share in zip(rollouts, shares):
            place = arrays.columns(self._columns, slice(to, to + share.stop - share.start))
            to += share.stop - share.start
            if rollout is None:
                tree_map(lambda x: x.fill(0), place)
            else:
                tree_map(np.copyto, place, arrays.columns(rollout, slice(*share)))
        self._columns.discount[:] *= np.float32(discount)
        return self._columns

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters by name; every rank is told."""
        assert self._learner is not None
        self._learner.tune(values)

    def inspect(self) -> dict[str, float]:
        """Compute the health metrics on this rank's columns alone, without a collective."""
        assert self._learner is not None
        return self._learner.inspect()

    def slow(self) -> PyTree:
        assert self._learner is not None
        return self._plain(self._learner.slow())

    def snapshot(self) -> PyTree:
        assert self._learner is not None
        return self._learner.snapshot()

    def close(self) -> None:
        pass  # what jax does when it leaves a group waits for the others; whoever made this process ends it

    def _plain(self, params: PyTree) -> PyTree:
        return jax.tree.map(np.asarray, params) if self._number == 0 else None

    def _together(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a collective computation; PeerLost where it breaks off because another rank is gone."""
        try:
            return function(*args)
        except jax.errors.JaxRuntimeError as error:
            if self._count == 1 or str(error).startswith(DETERMINISTIC):
                raise
            raise PeerLost(str(error)[:400]) from None


def _listen_only_at(host: str) -> None:
    """Make Gloo listen at `host` alone, not at whatever the machine's name stands for; jax has no option for it."""
    with contextlib.suppress(ImportError, AttributeError):
        from jaxlib import _jax

        if not isinstance(_jax.make_gloo_tcp_collectives, functools.partial):
            _jax.make_gloo_tcp_collectives = functools.partial(_jax.make_gloo_tcp_collectives, hostname=host)
