"""Every option that the help lists is explained, by its field or by the glossary; and the glossary explains nothing else."""

import dataclasses
import typing

import pytest

from rookery import systems
from rookery.run import glossary
from rookery.run.config import RunOptions


def configs(part: type) -> list[type]:
    """List a config and those inside it."""
    inner = [kind for kind in typing.get_type_hints(part).values() if dataclasses.is_dataclass(kind)]
    return [part, *(config for kind in inner if isinstance(kind, type) for config in configs(kind))]


def all_configs() -> list[type]:
    parts: list[type] = [RunOptions]
    for system in systems.SYSTEMS.values():
        parts += [system.algorithm_class(), system.topology_class()]
    return list(dict.fromkeys(config for part in parts for config in configs(part)))


@pytest.mark.parametrize("config", all_configs(), ids=lambda config: config.__name__)
def test_every_option_is_explained(config):
    hints = typing.get_type_hints(config)
    names = [field.name for field in dataclasses.fields(config) if not dataclasses.is_dataclass(hints[field.name])]
    silent = [name for name in names if name not in glossary.documented(config) and name not in glossary.MEANINGS]
    assert not silent, f"{config.__name__}: a docstring under the field, or a line of rookery/run/glossary.py, for {silent}"


def test_the_glossary_explains_only_what_is_asked_for():
    silent = [{f.name for f in dataclasses.fields(config)} - glossary.documented(config) for config in all_configs()]
    assert set(glossary.MEANINGS) <= set().union(*silent)
