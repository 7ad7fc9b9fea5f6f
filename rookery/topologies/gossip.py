"""Gossip: learners in a directed ring average their parameters with what their neighbour last sent (GALA, Assran et al. 2019).

    ┌──────────────────────────── parameters ────────────────────────────┐
    ▼                                                                    │
    peer 0 ──parameters──▶ peer 1 ──parameters──▶ …  ──parameters──▶ peer N − 1
    (environments, collector, learner: each its own rollouts [T, B/N], optimizer and parameters)

There is no centre. Before each rollout a peer takes the mean of its own parameters and its neighbour's newest, if there are
newer ones than it has mixed in; the newest wins, and nobody waits for a reader. A peer whose neighbour is more than
`max_staleness` steps behind it waits. With 0 the ring goes in lock-step, and the distance between peers that do not learn
shrinks by cos(π / N) with each step. A peer that is lost begins again with its neighbour's parameters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rookery.data import arrays
from rookery.ranges import Count, Natural, Workers
from rookery.runtime.fleet import Fleet
from rookery.runtime.roster import Life
from rookery.topologies.compatibility import rows_of, shipped_gradients
from rookery.topologies.job import TICK_SECONDS, Job, Progress, Published
from rookery.topologies.launch import fleet_counts, one_device, spawn_fleet
from rookery.topologies.meters import Meters
from rookery.topologies.plan import MAIN, Edge, Node, Plan
from rookery.topologies.staleness import Staleness
from rookery.topologies.wiring import envs_each, parameter_bytes
from rookery.types import Agent, PyTree, Spec
from rookery.workers.acting.shapes import rollout_specs
from rookery.workers.learning.parameter_shard import state_of
from rookery.workers.learning.peer import Peer, PeerStep


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """Learners without a centre: each averages with its neighbour in a ring."""

    overlaps: ClassVar[bool] = True
    num_envs: Count = 64
    """Environments in all."""
    peers: Workers = 4
    """Learners in the ring, each with its share of the environments."""
    groups: Workers = 1
    """Groups of environments per peer: one steps while the policy acts for another."""
    max_staleness: Natural = 8
    """Steps that a peer may be ahead of its neighbour before it waits; 0: lock-step."""

    def refuses(self, agent: Agent, spec: Spec) -> str | None:
        if (reason := shipped_gradients(agent, spec)) is not None:
            return reason
        if agent.needs.table is not None:
            return (
                "it learns from a replay, and these learners learn from what they have just played: use ParameterServer, "
                "whose bundles have a replay each"
            )
        return None

    def steps_per_update(self, algorithm: Any) -> float:
        return self.num_envs * rows_of(algorithm)  # an update is one of every peer

    def max_lag(self) -> int:
        return 0

    def plan(self, agents: Mapping[str, Agent], spec: Spec) -> Plan:
        agent, each = agents[MAIN], envs_each(self.num_envs, self.peers, self.groups, whose="peers")
        nbytes = arrays.nbytes(rollout_specs(agent, spec, each))
        edges = [Edge("rollouts", "peer", "peer", "request", nbytes, "learned from at once")]
        if self.peers > 1:
            waits = f"newest wins; waits beyond {self.max_staleness} steps" if self.max_staleness else "waits for each"
            edges.append(Edge("parameters", "peer", "peer", "newest", parameter_bytes(agent), f"to the next; {waits}"))
        return Plan(
            nodes=(
                Node(name="environment", most=self.num_envs),
                Node(name="peer", most=self.peers, hosted=True, worker=Peer, envs=each, groups=self.groups),
            ),
            edges=tuple(edges),
            facts={
                "steps per update": f"{self.num_envs * agent.needs.rollout_length:,} (one update of every peer)",
                "policy lag": "0",
                "staleness": f"a neighbour's parameters, at most {self.max_staleness} steps behind",
            },
        )

    def drive(self, job: Job, snapshot: PyTree | None = None) -> Iterator[Progress]:
        try:
            ring = _GossipRing(self, job, snapshot)
            while True:
                ring.ask_peers()
                ring.serve(TICK_SECONDS)
                ring.ask_peers()  # before the yield, too: whoever advances this may take its time
                yield ring.meters.progress(ring, snapshot=ring.snapshot)
        finally:
            job.runtime.close()


class _GossipRing:
    """The messages between peers. All of it belongs to the driver's thread, which passes references on and looks into none."""

    def __init__(self, topology: Gossip, job: Job, snapshot: PyTree | None) -> None:
        count, plan = topology.peers, topology.plan(job.agents, job.spec)
        one_device(job, "peer")
        self.job, self.count, self.bound = job, count, topology.max_staleness
        self.fleet: Fleet[Peer] = spawn_fleet(job, plan.node("peer"), snapshot)
        self.meters = Meters.of(plan, snapshot)
        self.staleness = Staleness(snapshot=snapshot["staleness"] if snapshot else None)
        ring = snapshot["ring"] if snapshot else {name: [0] * count for name in ("steps", "mixed")}
        self.steps, self.mixed = [int(n) for n in ring["steps"]], [int(n) for n in ring["mixed"]]
        self.distances = [0.0] * count
        self.lives: list[int | None] = list(self.fleet.roster.lives)  # that have parameters; None: begins with others'
        kept = 1 if self.bound else count + 1  # in lock-step a neighbour may be up to N - 1 steps ahead of whom it speaks to
        self.sent: list[deque[tuple[int, Any]]] = [deque(maxlen=kept) for _ in range(count)]
        for place, saved in enumerate(snapshot["workers"]["peer"] if snapshot else ()):  # else all start alike
            if saved is None:  # it was lost when the others were saved
                self.lives[place] = None
            elif count > 1:
                params = state_of(job.agent, job.seed, saved["learner"]).params
                self.sent[place].append((self.steps[place], job.runtime.put(params)))
        self.params = state_of(job.agent, job.seed, snapshot["policies"][MAIN] if snapshot else None).params
        self.version = self.steps[0]

    def ask_peers(self, most: float = float("inf")) -> None:
        """Call every peer that need not wait for its neighbour. most: steps of a peer, in all."""
        self.fleet.tend()
        for place in range(self.count):
            if self.steps[place] >= most or (who := self.fleet.next_of([place])) is None:
                continue
            if not self._waits(place):
                self.fleet.keep(who, place, Peer.step, *self._message(who))

    def _heard(self, place: int) -> tuple[int, Any]:
        """Choose the neighbour's message to average with, and its number: the newest; in lock-step, that of this step."""
        sent = self.sent[place - 1]
        if self.bound == 0:
            return next(((number, params) for number, params in sent if number == self.steps[place]), (0, None))
        return sent[-1] if sent else (0, None)

    def _waits(self, place: int) -> bool:
        return self.count > 1 and self.steps[place] - self._heard(place)[0] > self.bound

    def _message(self, who: Life) -> tuple[Any, float]:
        """Return the parameters that a peer averages with, and their weight: a replacement copies its neighbour's."""
        place = who.place
        begins, self.lives[place] = self.lives[place] != who.number, who.number
        number, params = self.sent[place - 1][-1] if begins and self.sent[place - 1] else self._heard(place)
        if self.count == 1 or params is None or (number <= self.mixed[place] and not begins):
            return None, 0.0  # nothing new
        self.staleness.admits(max(0, self.steps[place] - number))
        self.mixed[place] = number
        self.meters.moved("parameters")
        return params, 1.0 if begins else 0.5

    def serve(self, seconds: float) -> None:
        """Wait for the first call that ends and process all that have."""
        ready, _ = self.job.runtime.wait(self.fleet.waiting(), self.fleet.within(seconds))
        for place, answer in self.fleet.take(ready):
            if answer is not None:  # else its peer is gone: what it played was not counted
                self._stepped(place, *answer)

    def _stepped(self, place: int, stepped: PeerStep, params: Any) -> None:
        self.steps[place] += 1
        self.sent[place].append((self.steps[place], params))
        if place == 0:
            self.params, self.version = stepped.update.params, self.steps[0]
        if stepped.distance is not None:
            self.distances[place] = stepped.distance
        meters, rounds = self.meters, sum(self.steps) // self.count
        meters.collected(stepped.collected)
        meters.learned(stepped.update._replace(version=rounds))
        meters.report |= self.staleness.report() | {
            "consensus_distance": (sum(d * d for d in self.distances) / self.count) ** 0.5,
            "sample_reuse": meters.trained_steps / max(1, meters.env_steps),
        }

    @property
    def policies(self) -> dict[str, Published]:
        return {MAIN: Published(self.params, self.version)}

    def workers(self) -> dict[str, int]:
        return fleet_counts(self.fleet)

    def tune(self, values: Mapping[str, float]) -> None:
        """Set hyper-parameters of every peer, between two of its steps."""
        self.fleet.tell(Peer.tune, values)

    def inspect(self) -> dict[str, float]:
        """Compute the health metrics of the peer that is evaluated."""
        return self.fleet.gather(Peer.inspect)[0] or {}

    def snapshot(self) -> PyTree:
        """Drain: what was begun is finished, and in lock-step those behind catch up."""
        while self.fleet.busy or (self.bound == 0 and min(self.steps) < max(self.steps)):
            self.ask_peers(max(self.steps) if self.bound == 0 else 0)
            self.serve(TICK_SECONDS)
        peers = self.fleet.gather(Peer.snapshot)
        return {
            "policies": {MAIN: next(peer["learner"] for peer in peers if peer is not None)},
            "workers": {"peer": peers},
            "lives": {"peer": self.fleet.roster.lives},
            "meters": self.meters.snapshot(),
            "staleness": self.staleness.snapshot(),
            "ring": {"steps": list(self.steps), "mixed": list(self.mixed)},
        }
