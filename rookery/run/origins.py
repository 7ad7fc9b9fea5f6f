"""Where each option of a config comes from: its own default, the system, a preset, a file, or what was typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rookery import systems
from rookery.run.config import Config
from rookery.run.config_files import ConfigFile
from rookery.run.words import text

DEFAULT, TYPED, DERIVED = "default", "command line", "derived"
KINDS = ("default", "derived", "system", "preset", "file", "command-line")  # what `--only` takes


RESOURCES = ("collector", "learner", "shard")  # of Ray actors


class Sourced(NamedTuple):
    """One option of a resolved config."""

    group: str  # run, PPO, Sync, network ...
    name: str
    value: Any
    origin: str

    @property
    def kind(self) -> str:
        """One of KINDS."""
        if self.origin == TYPED:
            return "command-line"
        word = self.origin.partition(" ")[0]
        return word if word in KINDS else "file"


def options(cfg: Config, file: ConfigFile, words: Sequence[str]) -> list[Sourced]:
    """List every option of `cfg`, resolved of its system, a file and the words that were typed, with where it comes from."""
    layers = [(origin, _flat(given)) for origin, given in systems.origins(cfg.system, cfg.env_name)]
    layers += [(file.name, _flat(file.options))] if file.name else []
    typed = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    typed |= {name.replace("no_", "", 1) for name in typed if name.startswith("no_")}
    base = file.resolve(cfg.system, cfg.env_name, systems.flag_of(type(cfg.topology).__name__))
    found = []
    for part in ("run", "algorithm", "topology"):
        title = part if part == "run" else type(getattr(cfg, part)).__name__
        before = _values(getattr(base, part))
        for name, value in _values(getattr(cfg, part)).items():
            said = [origin for origin, given in layers if name in given]
            origin = said[-1] if said else DEFAULT
            if name in typed:
                origin = TYPED
            elif value != before[name]:
                origin = DERIVED  # rollout lengths that fit the run
            group, _, inner = name.rpartition(".")
            if group not in RESOURCES or cfg.run.runtime == "ray":
                found.append(Sourced(group or title, inner, value, origin))
    found.sort(key=lambda option: option.group in ("views", "network", "replay", *RESOURCES))  # after the parts, as in the help
    return found + _env_options(cfg, file, "env_options" in typed)


def _env_options(cfg: Config, file: ConfigFile, typed: bool) -> list[Sourced]:
    preset = systems.env_options(cfg.system, cfg.env_name)
    found = []
    for name, value in cfg.env_options.items():
        origin = file.name if file.env_options.get(name, ...) == value else TYPED if typed else DEFAULT
        found.append(Sourced("environment", name, value, "preset" if preset.get(name, ...) == value else origin))
    return found


def _values(part: Any) -> dict[str, Any]:
    """Flatten a part: nested groups as network.core."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        inner = dataclasses.is_dataclass(value)
        found |= {f"{f.name}.{name}": one for name, one in _values(value).items()} if inner else {f.name: value}
    return found


def _flat(given: Mapping[str, Any]) -> set[str]:
    return {
        name if not isinstance(value, Mapping) else f"{name}.{inner}"
        for name, value in given.items()
        for inner in (value if isinstance(value, Mapping) else ("",))
    }


def listed(found: Sequence[Sourced]) -> str:
    """Write a table of them, a paragraph for each group."""
    cells = [(option.group, option.name.replace("_", "-"), shown(option.value), option.origin) for option in found]
    names, values = (max((len(cell[i]) for cell in cells), default=0) for i in (1, 2))
    lines: list[str] = []
    for number, (group, name, value, origin) in enumerate(cells):
        if number == 0 or group != cells[number - 1][0]:
            lines += ["", group] if lines else [group]
        lines.append(f"  {name:{names}}  {value:{min(values, 40)}}  {origin}")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """Write a value as it is typed."""
    if isinstance(value, (tuple, list)):
        return " ".join(map(shown, value)) or "(none)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "None" if value is None else text(value)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """List (option, its value in one, in the other) of configs as `Config.to_dict` writes them; "-" where there is none."""
    left, right = (_leaves({part: value for part, value in config.items() if part != "machine"}) for config in (one, other))
    names = [name for name in dict.fromkeys([*left, *right]) if left.get(name) != right.get(name)]
    return [(_name(name), left.get(name, "-"), right.get(name, "-")) for name in names]


def _leaves(value: Any, name: str = "") -> dict[str, str]:
    """Flatten nested mappings: {"algorithm.learning_rate": "0.001"}."""
    if not isinstance(value, Mapping):
        return {name: shown(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= _leaves(inner, f"{name}.{key}" if name else str(key))
    return found


def _name(name: str) -> str:
    part, _, rest = name.partition(".")
    return part if rest == "class" else rest if part in ("run", "algorithm", "topology") else name
