"""A plan: the wiring of a topology as a value. Named nodes (role × whose policy × how many) and typed edges.

    Node("collector", most=4, envs=8)  ──Edge("rollouts", "queue", …)──▶  Node("queue", role="table")

A topology declares it (`Topology.plan`), and nothing else says how its parts are connected: `rookery show` prints it, the
runtime reserves room for its fleets, `launch.py` spawns them, the loop of the topology drives them along the edges, and meters
count items by the names of the edges. Several policies, learners and tables, or a worker between two tables, are entries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

MAIN = "main"  # the policy that is evaluated, saved as the run's and loaded, where a job has several

Kind = Literal["queue", "table", "newest", "request"]
#   queue: first in, first out, each item once; table: sampled, as often as its limiter allows; newest: only the newest
#   item counts, older ones are overwritten (parameters); request: one answer for each


@dataclass(frozen=True, kw_only=True)
class Node:
    """Workers of one kind, or a table. Fields that a role has no use for stay as they are."""

    name: str  # unique in its plan
    role: str = ""  # what it is spawned as and reserves room as; by default its name
    agent: str = MAIN  # whose parameters it acts with, refines with or trains; of a table: whose experience
    most: int = 1
    least: int | None = None  # of a fleet that grows and shrinks with the room there is; None: always `most`
    hosted: bool = False  # a fleet that a cluster hosts, where there is one; else it lives with the driver
    worker: Callable[..., Any] | None = field(default=None, repr=False)  # the class that is spawned; None: nothing is
    envs: int = 0  # environments that each steps
    groups: int = 1  # of them: one steps while the next is decided on
    in_flight: int = 1  # calls that each is asked for ahead of time
    writers: int = 1  # of a table: rollouts of `envs` columns that hold all environments once
    parts: int = 1  # of a queue: rollouts per batch
    slots: int = 1  # of a queue: batches
    ahead: int = 0  # of a table in shards: batches that are requested beyond those that the learner holds
    uses: int = 1  # of a queue of refined batches: how often each is learned from
    batch: int = 0  # of a table: columns that are drawn at once; 0: those of the algorithm's batches
    ratio: float | None = None  # and with them, samples per insert

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", self.role or self.name)

    @property
    def span(self) -> tuple[int, int]:
        """Least and greatest number of workers."""
        return (self.most if self.least is None else self.least), self.most


class Edge(NamedTuple):
    """A stream of items between two nodes."""

    name: str  # unique in its plan: what meters count it by
    source: str
    target: str
    kind: Kind
    nbytes: int  # of one item
    when_full: str  # what happens when the target cannot take another
    ahead: int = 1  # items that may be on their way, or wait at the target


class Plan(NamedTuple):
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    facts: dict[str, str]  # numbers that follow from it, worth saying at the start of a run

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def of_role(self, *roles: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role in roles)

    @property
    def agents(self) -> tuple[str, ...]:
        """Policies that somebody trains, the main one first."""
        names = dict.fromkeys(node.agent for node in self.nodes)
        return tuple(sorted(names, key=lambda name: name != MAIN))

    @property
    def counts(self) -> dict[str, int]:
        """Greatest number of each node, by its name."""
        return {node.name: node.most for node in self.nodes}

    @property
    def fleets(self) -> dict[str, tuple[int, int]]:
        """Workers that a cluster hosts, by role: least and greatest number."""
        found: dict[str, tuple[int, int]] = {}
        for node in self.nodes:
            if node.hosted:
                least, most = found.get(node.role, (0, 0))
                found[node.role] = least + node.span[0], most + node.span[1]
        return found

    def out_of(self, name: str, kind: Kind | None = None) -> Iterator[Edge]:
        return (edge for edge in self.edges if edge.source == name and kind in (None, edge.kind))

    def into(self, name: str, kind: Kind | None = None) -> Iterator[Edge]:
        return (edge for edge in self.edges if edge.target == name and kind in (None, edge.kind))

    def between(self, source: str, target: str) -> Edge:
        """Find the first edge from one node to another."""
        return next(edge for edge in self.out_of(source) if edge.target == target)

    def with_count(self, role: str, most: int) -> Plan:
        """Return the same plan with another count of the nodes of a role."""
        changed = [dataclasses.replace(node, most=most, least=None) if node.role == role else node for node in self.nodes]
        return self._replace(nodes=tuple(changed))

    def checked(self) -> Plan:
        """Return this plan if it can be launched; ValueError for names that stand twice and edges from or to nowhere."""
        names = [node.name for node in self.nodes]
        for what, all_names in (("nodes", names), ("edges", [edge.name for edge in self.edges])):
            if twice := sorted({name for name in all_names if all_names.count(name) > 1}):
                raise ValueError(f"a plan's {what} have names of their own, and {', '.join(twice)} stands there twice")
        for edge in self.edges:
            if lost := [end for end in (edge.source, edge.target) if end not in names]:
                raise ValueError(f"edge {edge.name!r} leads from {edge.source} to {edge.target}: there is no node {lost[0]!r}")
        return self
