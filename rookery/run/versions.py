"""What is installed, read from package metadata: nothing is imported to find out."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("rookery", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "ale-py")


def rookery_version() -> str:
    """The version of this package; "unknown" in a source tree that was never installed."""
    try:
        return metadata.version("rookery")
    except metadata.PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """Python, the platform and every package that a run's numbers may depend on and that is installed."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def fingerprint() -> dict[str, str]:
    """What two machines that work on one run must have in common: the versions, and rookery's own source."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return versions() | {"rookery's source": digest.hexdigest()[:12]}
