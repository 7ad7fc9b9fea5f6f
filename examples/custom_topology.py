"""A topology of your own: every batch is learned from several times, and parameters are sent once for all of them.

    python examples/custom_topology.py, or rookery train impala --topology examples/custom_topology.py:Reuse --env CartPole-v1

        ┌────────────parameters, once for E updates──────────┐
        ▼                                                    │
    collector × C ──rollout [T, B/C]──▶ queue (1 batch) ──▶ learner: E updates on each batch

Data is up to E − 1 updates old, so the algorithm must correct for that (V-trace does): one that cannot is refused.
`plan` declares what is shown, spawned and counted; `Launched` spawns it, on threads or on Ray, and replaces what is lost. The
loop is all that is new; where nobody waits it is `Pipeline(Launched(job, plan, snapshot), meters).run()`, as in ActorLearner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import rookery
from rookery.algorithms.vtrace import VTrace
from rookery.ranges import Count, Workers
from rookery.topologies.job import TICK_SECONDS, Job, Progress
from rookery.topologies.launch import Launched
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Node, Plan
from rookery.topologies.wiring import envs_each, loop
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.collector import Collector
from rookery.workers.learning.learners import AnyLearner


@dataclass(frozen=True, kw_only=True)
class Reuse:
    overlaps: ClassVar[bool] = False  # collectors wait while the learner learns
    num_envs: Count = 16
    collectors: Workers = 1
    epochs: Count = 4  # updates on each batch

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        fresh = not agent.needs.whole_episodes and agent.needs.table is None
        return None if fresh else "it learns from whole episodes or a replay, not from fresh rollouts: use Evolution or Sync"

    def steps_per_update(self, algorithm: Any) -> float:
        return self.num_envs * algorithm.rollout_length / self.epochs

    def max_lag(self) -> int:
        return self.epochs - 1

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        each = envs_each(self.num_envs, self.collectors, 1)
        collectors = Node(name="collector", most=self.collectors, hosted=True, worker=Collector, envs=each)
        nodes, edges = loop(agents[MAIN], spec, collectors, columns=each, writers=self.collectors, parts=self.collectors,
                            ahead=1, slots=1, prefetch=0, shard_ahead=0, when_full="collectors wait")  # fmt: skip
        return Plan((Node(name="environment", most=self.num_envs), collectors, *nodes), edges, facts={})

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            plan = self.plan(job.agents, job.spec)
            parts, meters = Launched(job, plan, snapshot), Meters.of(plan, snapshot)
            seat, fleet, queue = parts.seats[MAIN], parts.fleets["collector"], parts.tables["queue"]
            while True:
                while (taken := queue.take()) is None:
                    fleet.tend()
                    while (who := fleet.next()) is not None and (part := queue.claim()) is not None:
                        fleet.ask(who, part, Collector.collect, part.rollout)
                    ready, _ = job.runtime.wait(fleet.waiting(), fleet.within(TICK_SECONDS))
                    for part, rollout in fleet.take(ready):
                        if rollout is None:
                            queue.abandon(part)  # its collector is lost: whoever is asked next writes there
                        else:
                            queue.commit(part)
                            meters.collected(rollout)
                    yield meters.progress(parts, snapshot=None)  # a sign of life; what is half done cannot be saved
                for _ in range(self.epochs):
                    learned = seat.learner.call(AnyLearner.learn, taken.batch)
                    while not job.runtime.wait([learned], TICK_SECONDS)[0]:
                        yield meters.progress(parts, snapshot=None)
                    meters.learned(update := learned.result())
                meters.moved("batches")
                queue.release(taken.slot)
                seat.publish(update, meters)  # counts the edge "parameters"
                yield meters.progress(parts, snapshot=lambda: parts.snapshot(meters))
        finally:
            job.runtime.close()


def main(total_steps: int = 30_000, runs: str = "runs") -> dict[int, rookery.Result]:
    algorithm = VTrace(rollout_length=64, learning_rate=3e-3, value_steps=1, rmsprop_epsilon=0.01)
    results = {}
    for epochs in (1, 4):
        topology = Reuse(num_envs=32, collectors=2, epochs=epochs)
        results[epochs] = rookery.train(algorithm, env="CartPole-v1", topology=topology, total_steps=total_steps, runs=runs)
        print("{} × {env_steps:,} steps: return {return_mean:.0f}".format(epochs, **results[epochs].metrics))
    return results


if __name__ == "__main__":
    main()
