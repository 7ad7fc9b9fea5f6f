"""`rookery bench`: measure. The benches are a package of their own."""

from __future__ import annotations

from rookery import signals
from rookery.commands.parsing import fail


def bench(args: list[str]) -> int:
    try:
        from rookery_bench import main as bench_main
    except ModuleNotFoundError as error:
        if error.name != "rookery_bench":
            raise
        fail("the benches are not installed: they are the package rookery_bench of the same source tree, where `pip install .` "
             "installs both.")
    signals.unwatch()  # a bench starts programs of its own, and ends them
    return bench_main(args)
