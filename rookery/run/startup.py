"""What must be set before jax starts: XLA's flags and the compilation cache that all runs of a machine share."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

CPU_FLAGS = ("--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT",)


def prepare() -> None:
    """Set XLA's flags and the compilation cache. Where jax is imported already, flags can no longer change and stay."""
    if "jax" not in sys.modules:
        flags = os.environ.get("XLA_FLAGS", "")
        missing = [flag for flag in CPU_FLAGS if flag.split("=")[0] not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()
    import jax

    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def use_one_thread() -> None:
    """Give XLA one thread (unless NPROC is set) and dispatch synchronously: each of our threads computes what it asks for
    itself, so that inference does not queue behind an update. Call it before the first computation."""
    import jax

    ours = getattr(jax.config, "jax_compilation_cache_dir", None) == str(cache_directory())
    os.environ.setdefault("NPROC", "1")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if ours:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))


def cache_directory() -> Path:
    """Return the compilation cache, one per kind of processor and number of threads: compiled code may use instructions that
    another processor lacks, and XLA cuts loops for its threads while it compiles, which jax's keys do not tell."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        kind = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        kind = ""
    kind += f" {os.environ.get('NPROC') or available_cores()} threads"
    return root / "rookery" / f"xla-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"


def state_directory() -> Path:
    """Return where this user's state lies that is in no run. RuntimeError where there is no home."""
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "rookery"


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, object]:
    """Return what a run's numbers depend on beside its config: cores and XLA flags, without those that only dump files."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "dump" not in flag]
    return {"cores": int(os.environ.get("NPROC") or available_cores()), "xla_flags": sorted(flags)}
