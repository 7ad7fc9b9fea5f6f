"""What is installed, read from package metadata: nothing is imported to find out."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

MACHINE = ("machine", "references")  # of a config: what may differ between machines that work on one run
PACKAGES = ("rookery", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "ale-py")


def rookery_version() -> str:
    """Return the version of this package; "unknown" in a source tree that was never installed."""
    try:
        return metadata.version("rookery")
    except metadata.PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and every installed package that a run's numbers may depend on."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def fingerprint(config: Any = None) -> dict[str, str]:
    """Return what two machines that work on one run must have in common: the versions, rookery's own source, and the config
    as it reads there, as a digest and option by option. An algorithm or topology of the user's may be another file there."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    found = versions() | {"rookery's source": digest.hexdigest()[:12]}
    if config is not None:
        options = dict(flat({part: value for part, value in config.unsigned().items() if part not in MACHINE}))
        text = json.dumps(options, sort_keys=True)
        found |= options | {"config's digest": hashlib.sha256(text.encode()).hexdigest()[:12]}
    return found


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield ("algorithm.learning_rate", "0.001") for every option, without addresses in memory, which differ everywhere."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, re.sub(r" at 0x[0-9a-f]+", "", str(value))
