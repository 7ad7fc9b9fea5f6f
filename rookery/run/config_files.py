"""Options in a file: TOML or JSON, by their own names; `rookery train --config run.toml` needs nothing else.

    system = "ppo"                      also env, topology and env_options
    env = "CartPole-v1"
    learning_rate = 1e-3                of the algorithm, the topology and the run, side by side
    [network]                           nested groups are tables
    hidden = [32, 32]

A run's own config.json is read as well, and so is the run. All that is wrong is told at once, with the file, the line and the
key. "None" stands for None, which TOML does not have. A file never makes us import code: an environment that is named as
`module:id` or `file.py:class` must be typed (FAULTS 19).
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rookery import references, systems
from rookery.run import config
from rookery.run.config import Config, ConfigError
from rookery.run.directory import Run, RunError
from rookery.run.parts import part_of
from rookery.run.resuming import config_of
from rookery.runtime.interface import Resources

HEAD = ("system", "env", "topology", "env_options")  # what is no option of a part
OWN = ("run", "runs")  # of the run that a file comes from: another run has a name of its own


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """What a file says, by flat names; nested groups are mappings."""

    name: str = ""  # as it is shown; "": there is no file
    text: str = ""  # where lines are looked up
    system: str | None = None
    env: str | None = None
    topology: str | None = None  # as `--topology` takes it
    env_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def resolve(
        self, system: str | None = None, env: str | None = None, topology: str | None = None, algorithm: str | None = None,
        torso: str | None = None,
    ) -> Config:  # fmt: skip
        """Resolve the config of this file; what is passed was typed, and wins. Raises ConfigError with all that is wrong."""
        by, where, cut = system or self.system, env or self.env, topology or self.topology
        if by is None or where is None:
            missing, flag = ("system", "rookery train SYSTEM --config") if by is None else ("env", "--env ID --config")
            raise ConfigError(f"{self.name} names no {missing}: write `{missing} = ...` into it, or type {flag} {self.name}")
        if env is None and names_code(where):
            raise ConfigError(
                f"{self._at('env')}: {where!r} is code to import, and no file may cause that: type --env {where} as well"
            )
        entry = systems.system(by, where)
        made = part_of("topology", cut).value
        if self.topology is not None and cut != self.topology:  # what is typed has other options
            known = {f.name for part in _parts(entry, made).values() for f in dataclasses.fields(part)}
            self = dataclasses.replace(self, options={k: v for k, v in self.options.items() if k in known})
        own = part_of("algorithm", algorithm).value
        wrong, options = self._fitted(entry, made, own)
        try:
            cfg = config.resolve(
                entry.name, env=where, env_options=self.env_options, topology=cut, algorithm=algorithm, torso=torso, **options
            )
        except ConfigError as error:
            wrong += [self._placed(line) for line in str(error).splitlines() if not line.endswith("cannot be so:")]
        config.refuse(wrong)
        return cfg

    def _fitted(self, entry: systems.System, topology: Any, algorithm: Any) -> tuple[list[str], dict[str, Any]]:
        """Check names and types: what is wrong, and the options that are not, with values of the right types."""
        parts = _parts(entry, topology) | ({} if algorithm is None else {"algorithm": algorithm})
        kinds = {name: kind for part in parts.values() for name, kind in _kinds(part).items()}
        inner = {name: _kinds(part) for name, part in config.groups(parts).items()}
        known = [*kinds, *(f"{group}.{name}" for group, names in inner.items() for name in names)]
        wrong: list[str] = []
        options: dict[str, Any] = {}

        def take(into: dict[str, Any], path: tuple[str, ...], value: Any, kind: Any) -> None:
            try:
                into[path[-1]] = _converted(value, kind)
            except msgspec.ValidationError:
                wrong.append(f"{self._at(*path)}: {'.'.join(path)} = {_toml(value)}: it must be {_wanted(kind)}")

        for name, value in self.options.items():
            if name not in kinds:
                told = config.unknown_option(name, entry.name, known).partition(" Options: ")[0]
                wrong.append(f"{self._at(name)}: {told}")
            elif name not in inner:
                take(options, (name,), value, kinds[name])
            elif not isinstance(value, dict):
                wrong.append(f"{self._at(name)}: {name} is a group of options, a table: [{name}]")
            else:
                group: dict[str, Any] = options.setdefault(name, {})
                for key, one in value.items():
                    if key in inner[name]:
                        take(group, (name, key), one, inner[name][key])
                    else:
                        wrong.append(f"{self._at(name, key)}: {config.unknown_option(key, name, list(inner[name]))}")
        return wrong, options

    def _placed(self, told: str) -> str:
        """Put file, line and key before a sentence that begins with a flag, where the file gives that option."""
        if (match := re.match(r"--([a-z][a-z.-]*)", told)) is None:
            return told
        path = tuple(match[1].replace("-", "_").split("."))
        group: Any = self.options
        for name in path:
            group = group.get(name) if isinstance(group, dict) else None
        return told if group is None else f"{self._at(*path)}: {told}"

    def _at(self, *path: str) -> str:
        line = line_of(self.text, path)
        return f"{self.name}:{line}" if line else self.name


NO_FILE = ConfigFile()


def names_code(env: str) -> bool:
    """Return whether an environment is named by a module or a file, which would be imported to make it."""
    source, colon, _ = env.partition(":")
    return bool(colon) and source not in references.SOURCES


def read(path: str, root: str = "runs") -> ConfigFile:
    """Read a file of options, a run's config.json, or a run by its path or name. Raises ConfigError."""
    place = Path(path)
    if place.is_dir() or not place.exists():
        try:
            return _of_saved(config_of(Run.open(path, root)), path, "")
        except RunError as error:
            if place.is_dir() or not place.suffix:
                raise
            raise ConfigError(f"--config {path}: there is no such file, and no run of that name") from error
    try:
        text = place.read_text(encoding="utf-8")
        said = json.loads(text) if place.suffix == ".json" or text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is neither TOML nor JSON: {error}") from error
    if not isinstance(said, dict):
        raise ConfigError(f"{path} holds no options, but a {type(said).__name__}: it should be an object of them")
    if isinstance(said.get("config"), dict) and "format" in said:
        return _of_saved(Run.open(place.parent).config["config"], path, text)
    if isinstance(said.get("algorithm"), dict) and isinstance(said.get("run"), dict):
        return _of_saved(said, path, text)
    return _of_flat(said, path, text)


def _of_flat(said: Mapping[str, Any], name: str, text: str) -> ConfigFile:
    values = {key.replace("-", "_"): value for key, value in said.items()}
    for group, value in values.items():
        if isinstance(value, dict) and group != "env_options":
            values[group] = {key.replace("-", "_"): one for key, one in value.items()}
    wrong = [
        f"{name}:{line_of(text, (key,))}: {key} = {_toml(values[key])}: it should be {'a table' if kind is dict else 'a word'}"
        for key, kind in zip(HEAD, (str, str, str, dict))
        if not isinstance(values.get(key, kind()), kind)
    ]
    config.refuse(wrong)
    env_options = {key: None if value == "None" else value for key, value in values.get("env_options", {}).items()}
    head = {key: values[key] for key in HEAD[:3] if key in values}
    options = {key: value for key, value in values.items() if key not in HEAD}
    return ConfigFile(name=name, text=text, env_options=env_options, options=options, **head)


def _of_saved(saved: dict[str, Any], name: str, text: str) -> ConfigFile:
    """Flatten what `Config.to_dict` wrote, without what belongs to that run alone."""
    if saved.get("custom"):
        raise ConfigError(
            f"{name} was made in Python with {' and '.join(saved['custom'])} of its own, which no file holds: repeat it there"
        )
    cfg = config.from_dict(saved)
    own = systems.system(cfg.system).topology_class() is type(cfg.topology)
    flat = {key: value for part in ("algorithm", "topology", "run") for key, value in cfg.to_dict()[part].items()}
    return ConfigFile(
        name=name, text=text, system=cfg.system, env=cfg.env, env_options=cfg.env_options,
        topology=None if own else systems.flag_of(type(cfg.topology).__name__),
        options={key: value for key, value in flat.items() if key not in ("class", *OWN)},
    )  # fmt: skip


def _parts(entry: systems.System, topology: Any) -> dict[str, Any]:
    """Make the parts of a system as they are without any option."""
    return {
        "algorithm": entry.algorithm_class()(), "topology": topology or entry.topology_class()(), "run": config.RunOptions(),
    }  # fmt: skip


def _kinds(part: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(type(part))
    return {f.name: hints[f.name] for f in dataclasses.fields(part)}


def _converted(value: Any, kind: Any) -> Any:
    """Convert a value of a file to a type: "None" is None where there may be none, 1e5 a whole number. msgspec's error."""
    kinds = typing.get_args(kind) or (kind,)
    if value == "None" and type(None) in kinds:
        return None
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        value = int(value)
    return msgspec.convert(value, kind)


def _wanted(kind: Any) -> str:
    """Describe a type as the field calls it: a whole number, one of none, lstm and gru ..."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): '"None"'}
    if kind in names:
        return names[kind]
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_wanted(typing.get_args(kind)[0])}"
    return " or ".join(map(_wanted, typing.get_args(kind))) or f"a {kind}"


# ------------------------------------------------------------------------------------------------------------- lines


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Find the line of a key, in TOML or JSON; 0 where it is not found. Groups of TOML may be tables or dotted keys."""
    names = [re.escape(name).replace("_", "[_-]") for name in path]
    start, lines = 0, text.splitlines()
    if text.lstrip().startswith("{"):
        for name in names:
            start = next((i for i in range(start, len(lines)) if re.search(rf'"{name}"\s*:', lines[i])), -1)
            if start < 0:
                return 0
        return start + 1
    table = ""
    whole = re.compile(r"\s*\.\s*".join(names) + r"\s*=")
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if header := re.fullmatch(r"\[\s*([\w.-]+)\s*\]\s*(#.*)?", bare):
            table = header[1].replace("-", "_")
            if (table,) == path:
                return number
            continue
        here = len(path) == 2 and table == path[0] and re.match(rf'"?{names[1]}"?\s*=', bare)
        if here or (not table and (whole.match(bare) or re.match(rf'"?{names[0]}"?\s*=', bare))):
            return number
    return 0


# ------------------------------------------------------------------------------------------------------------- write


def dump(cfg: Config, form: str) -> str:
    """Write a config as a file that `read` and `resolve` make the same config of; form: toml or json."""
    if cfg.custom:
        raise ConfigError(f"{' and '.join(cfg.custom)} made in Python: no file holds them")
    entry, cut = systems.system(cfg.system), type(cfg.topology)
    other = cut is not entry.topology_class()
    base = config.resolve(cfg.system, env=cfg.env, topology=cut() if other else None)
    head = {"system": cfg.system, "env": cfg.env} | ({"topology": systems.flag_of(cut.__name__)} if other else {})
    parts = {name: (getattr(cfg, name), getattr(base, name)) for name in ("run", "algorithm", "topology")}
    flat = {key: value for mine, theirs in parts.values() for key, value in _said(mine, theirs).items() if key not in OWN}
    tables = {key: value for key, value in flat.items() if isinstance(value, dict)}
    if cfg.env_options:
        tables["env_options"] = {key: "None" if value is None else value for key, value in cfg.env_options.items()}
    plain = head | {key: value for key, value in flat.items() if key not in tables}
    if form == "json":
        return json.dumps(plain | tables, indent=2) + "\n"
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _said(part: Any, base: Any) -> dict[str, Any]:
    """List the options of a part; None only where its system says something else, for TOML has none of it."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value, theirs = getattr(part, f.name), getattr(base, f.name)
        if dataclasses.is_dataclass(value):
            if (group := _said(value, theirs)) and not (isinstance(value, Resources) and value == theirs):
                found[f.name] = group
        elif value is not None:
            found[f.name] = list(value) if isinstance(value, tuple) else value
        elif theirs is not None:
            found[f.name] = "None"
    return found


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps("None" if value is None else str(value)).replace("\x7f", "\\u007f")
