"""EvolutionFleet: the learner and the workers of an evolution, and the assignment of shares of the population to workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import numpy as np

from rookery.data import arrays
from rookery.runtime.fleet import Fleet
from rookery.runtime.interface import Handle
from rookery.runtime.roster import Life, Roster, Terms
from rookery.topologies.job import Job, Published
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Node
from rookery.trees import ArraySpec, tree_map
from rookery.types import Agent, Episode, PyTree, Rollout
from rookery.workers.acting.evolution_worker import EvolutionWorker, Generation, Score, Shares, digest, kept_specs
from rookery.workers.learning.learner import Learner, Update


class EvolutionFleet:
    """Assigns shares, gathers scores, broadcasts generations. All of it belongs to the driver's thread."""

    def __init__(
        self, job: Job, meters: Meters, shares: Shares, node: Node, *, backups: bool, snapshot: PyTree | None
    ) -> None:
        if job.devices > 1:
            raise ValueError(f"--devices {job.devices}: an update is made of returns, not of a batch to share; use --workers")
        self.job, self.meters, self.shares, self._backups = job, meters, shares, backups
        self._make_pool = functools.partial(job.make_pool, node.envs, node.groups)
        state = snapshot["policies"][MAIN] if snapshot else None
        self.learner = job.runtime.spawn(Learner, job.agent, seed=job.seed, snapshot=state, name="learner", role="learner")
        self.params, self.version = self.learner.call(Learner.published).result()
        self._digest = digest(self.params)
        patience = job.runtime.patience
        terms = Terms(least=node.span[0], most=node.most, call_deadline=patience, start_deadline=patience)
        self.fleet = Fleet(job.runtime, "worker", Roster(terms), self._worker)
        self._asked: list[tuple[Life, int]] = []  # who evaluates what for this generation
        self.stale = self.apart = 0
        self.ask({})
        self.learner.call(Learner.warm_up, generation_specs(job.agent, shares.number * shares.size))

    def _worker(self, life: Life) -> Handle[EvolutionWorker]:
        """Spawn a worker with the learner's newest state; generations after that are broadcast to it."""
        self.meters.moved("parameters")
        return self.job.runtime.spawn(
            EvolutionWorker, self.job.agent, self._make_pool, seed=self.job.seed, shares=self.shares,
            state=self.learner.call(Learner.snapshot).result(), env_restarts=self.job.env_restarts,
            name=f"worker-{life.place}", role="worker",
        )  # fmt: skip

    def ask(self, scores: dict[int, Score]) -> None:
        """Assign to every idle worker a share that nobody evaluates or, as a backup, one that others still owe."""
        self.fleet.tend()
        while (who := self.fleet.next()) is not None:
            open_ = [share for share in range(self.shares.number) if share not in scores]
            owed = {share: sum(share == other for _, other in self._asked) for share in open_}
            share = min(open_, key=owed.__getitem__, default=None)
            if share is None or (owed[share] and (not self._backups or owed[share] > 1)):
                return
            self._asked.append((who, share))
            self.fleet.call(who, (who, share, self.version), EvolutionWorker.evaluate, self.version, share)

    def answers(self, scores: dict[int, Score], seconds: float) -> bool:
        """Wait for the first worker that is done or made, and process all that are. False: nothing has happened."""
        ready, _ = self.job.runtime.wait(self.fleet.waiting(), self.fleet.within(seconds))
        for (who, share, version), score in self.fleet.take(ready):
            if version == self.version:
                self._asked.remove((who, share))
            if score is None:  # its worker is gone: somebody else evaluates the share
                continue
            if score.generation != self.version or share in scores:
                self.stale += 1
                self.meters.moved("scores")
            elif score.digest != self._digest:  # this copy was rounded otherwise: it is given the learner's
                self.apart += 1
                self.meters.moved("scores")
                self.meters.moved("parameters")
                self.fleet.tell_one(who, EvolutionWorker.restore, self.learner.call(Learner.snapshot).result())
            else:
                scores[share] = score
        return bool(ready)

    def count(self, scores: dict[int, Score]) -> Generation:
        """Join the scores of a generation, in the order of its members, and count its steps and episodes."""
        order = np.argsort(np.concatenate([self.shares.members(share) for share in range(self.shares.number)]))
        parts = [scores[share] for share in range(self.shares.number)]
        total, length, ended = (
            np.concatenate([getattr(p, name) for p in parts])[order] for name in ("total", "length", "ended")
        )
        extras = jax.tree.map(lambda *x: np.concatenate(x, 1)[:, order], *(part.extras for part in parts))
        meters = self.meters
        finished = [Episode(int(i), float(total[i]), int(length[i])) for i in np.flatnonzero(ended)]
        meters.moved("scores", len(parts))  # here, so that the counters are always those of whole generations
        meters.finished += finished
        meters.episodes += len(finished)
        meters.env_steps += int(length.sum())
        meters.count_incidents([failure for part in parts for failure in part.incidents])
        for phase in ("env", "inference", "transfer"):
            meters.seconds[phase] = meters.seconds.get(phase, 0.0) + sum(part.seconds[phase] for part in parts)
        self._steps = int(length.sum())
        return Generation(self.version, total, length, extras)

    def tell(self, generation: Generation) -> None:
        self.meters.moved("generations", self.fleet.tell(EvolutionWorker.learn, self.job.runtime.put(generation)))

    def learned(self, update: Update) -> None:
        self.params, self.version, self._digest = update.params, update.version, digest(update.params)
        self._asked.clear()
        same = {"staleness_mean": 0.0, "staleness_max": 0.0, "sample_reuse": 1.0}  # under the names of every topology
        report = update.report | same | {"scores_dropped": float(self.stale), "copies_mended": float(self.apart)}
        self.meters.learned(update._replace(report=report, trained_steps=self._steps))

    @property
    def policies(self) -> dict[str, Published]:
        return {MAIN: Published(self.params, self.version)}

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters of the learner and of every worker's copy, between two generations."""
        self.learner.call(Learner.tune, values).result()
        self.fleet.tell(EvolutionWorker.tune, values)
        self.params, self.version = self.learner.call(Learner.published).result()
        self._digest = digest(self.params)

    def workers(self) -> dict[str, int]:
        roster = self.fleet.roster
        working = roster.count("working", "leaving")
        return {"workers": working, "workers_lost": roster.lost_workers, "shares_lost": roster.lost_calls}

    def inspect(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> PyTree:
        """Save the learner. What is being evaluated is left out: a resumed run evaluates it again, with the same result."""
        return {"policies": {MAIN: self.learner.call(Learner.snapshot).result()}, "meters": self.meters.snapshot()}


def generation_specs(agent: Agent, population: int) -> Rollout:
    """Derive the shapes of the one row that `learn` is given."""
    kept = tree_map(lambda spec: arrays.aligned_zeros(spec.shape, spec.dtype), kept_specs(agent, population))
    row = Generation(0, np.zeros(population, np.float32), np.zeros(population, np.int32), kept).batch().rollout
    return tree_map(lambda x: ArraySpec(x.shape, x.dtype), row)
