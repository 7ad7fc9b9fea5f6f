"""The files that are made of the options themselves are up to date: `options.json`, which the help is printed from.

    python tests/run/test_option_files.py     writes them
"""

from __future__ import annotations

from rookery import systems
from rookery.run import described
from rookery.run.config import RunOptions


def parts() -> dict[str, described.DescribedPart]:
    kinds = [RunOptions, *(kind for s in systems.SYSTEMS.values() for kind in (s.algorithm_class(), s.topology_class()))]
    found = {kind.__name__: described.of(kind) for kind in kinds}
    inner = {name: part for part in found.values() for name, part in part.groups.items()}
    return inner | found


def test_the_table_that_the_help_is_printed_from_is_what_the_options_are():
    assert described.TABLE.read_text() == described.to_json(parts()), f"write it: python {__file__}"


if __name__ == "__main__":
    described.TABLE.write_text(described.to_json(parts()))
    print(f"wrote {described.TABLE}")
