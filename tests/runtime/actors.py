"""Runtimes on the Ray that the tests share, and the processes of their workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from rookery.run import startup
from rookery.run.versions import fingerprint
from rookery.runtime.interface import Resources
from rookery.runtime.ray import RayRuntime
from rookery.runtime.roster import Terms


def runtime_of(**counts: int | tuple[int, int]) -> RayRuntime:
    """Roles that live in actors, and how many of each: a number, or at least and at most."""
    spans = {role: count if isinstance(count, tuple) else (count, count) for role, count in counts.items()}
    return RayRuntime(resources=dict.fromkeys(spans, Resources()), counts=spans, prepare=startup.prepare, versions=fingerprint)


def pid_of(runtime: RayRuntime, name: str) -> int:
    handle = next(handle for handle in runtime._handles if handle.name == name)
    return handle.ready.result(60)[1]


class Deadlines:
    """The fleets of collectors that are made from now on, whose patience with an answer can be shortened for a while.

    Only for a while: what is compiled at a worker's first call takes as long as it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._terms: list[Terms] = []
        made = lambda **given: self._terms.append(Terms(**given)) or self._terms[-1]
        monkeypatch.setattr("rookery.topologies.launch.Terms", made)

    @contextlib.contextmanager
    def of(self, seconds: float) -> Iterator[None]:
        before = [terms.call_deadline for terms in self._terms]
        for terms in self._terms:
            object.__setattr__(terms, "call_deadline", seconds)
        yield
        for terms, deadline in zip(self._terms, before):
            object.__setattr__(terms, "call_deadline", deadline)
