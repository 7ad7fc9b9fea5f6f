"""constraints.txt names a version for everything that installing Rookery with its extras brings along."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pinned() -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line]
    return {canonicalize_name(name): version for name, version in pairs}


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def wanted() -> set[str]:
    """Names of the requirements of the package and its extras, and of theirs, as far as they are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pending = [Requirement(text) for group in groups for text in group]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name == "rookery" or (name, extras) in seen:
            continue
        try:
            found = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        seen.add((name, extras))
        pending += [inner for inner in map(Requirement, found) if applies(inner, extras)]
    return {name for name, _ in seen}


def test_every_requirement_has_a_tested_version() -> None:
    missing = wanted() - set(pinned())
    assert not missing, f"constraints.txt lacks {sorted(missing)}; add the versions that `pip freeze` shows"


def test_a_constraint_is_a_name_and_a_version_and_nothing_else() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.\-]+==[A-Za-z0-9_.!+\-]+", line), line
