"""Parts of the user's own: an algorithm, a topology or a network, as an object, a class, a function or a reference."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, NamedTuple, get_type_hints

import msgspec

from rookery import references, systems


class Given(NamedTuple):
    value: Any  # None: it was not given
    name: str | None = None  # the reference that gives it again
    is_kind: bool = False  # a class or a function was given, or its name: it says nothing of the options


def part_of(part: str, given: Any) -> Given:
    """Make a part of what was given for it. part: "algorithm", "topology" or "torso"."""
    if given is None:
        return Given(None)
    if part == "torso":
        return _network(given)
    if isinstance(given, str):
        if not references.is_reference(given):
            return _named(part, given)
        name = references.absolute(given)
        return Given(_checked(part, references.made(name, part), name), name, is_kind=True)
    if not is_object(given):
        value = _made(given, f"{part}: {given.__name__}")
        return Given(_checked(part, value, given.__name__), _kind_name(given), is_kind=True)
    return Given(given, _kind_name(type(given)))


def _network(given: Any) -> Given:
    """Take a network in any of its forms (rookery/networks/torso.py), the name of one, or what makes one without arguments."""
    from rookery.networks.torso import is_torso

    if isinstance(given, str) and not references.is_reference(given):
        return _named("torso", given)
    found = references.load(given) if isinstance(given, str) else given
    name = references.absolute(given) if isinstance(given, str) else None if is_object(found) else references.name_of(found)
    told = name or str(getattr(found, "__name__", type(found).__name__))
    value = found if is_torso(found) or not callable(found) else _made(found, told)
    if not is_torso(value):
        raise references.BadReference(f"{told} gives a {type(value).__name__}: a network is (init, apply), or a flax module")
    return Given(value, name, is_kind=name is not None)


def _made(kind: Any, told: str) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise references.BadReference(f"{told} is called without arguments, and said: {error}") from error


def _kind_name(kind: Any) -> str | None:
    """Name a class or a function; None for Rookery's own, which configs know by other names."""
    return None if kind.__module__.startswith(("rookery.algorithms.", "rookery.topologies.")) else references.name_of(kind)


def _named(part: str, given: str) -> Given:
    if part == "topology":
        return Given(systems.topology_named(given)())
    raise references.BadReference(f"{part} {given!r}: a name is written as path/to/file.py:Name or module:Name")


def _checked(part: str, value: Any, name: str) -> Any:
    """Refuse what is none, with what one is."""
    needed = "build" if part == "algorithm" else "drive"
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not hasattr(value, needed):
        what = f"{'an' if part[0] in 'aeiou' else 'a'} {part} is a frozen dataclass with `{needed}`"
        raise references.BadReference(f"{name} gives a {_kind(value)}: {what} (examples/custom_{part}.py)")
    return value


def _kind(value: Any) -> str:
    return type(value).__name__


def converted(values: Any, kind: Any) -> Any:
    """Make a dataclass from plain values. What msgspec remembers of a class lies in the class and cannot be pickled: a class of
    the user's may have to travel with all that is in it, so that is taken off again."""
    if kind.__module__.startswith("rookery."):
        return msgspec.convert(values, kind)
    try:
        return msgspec.convert(values, kind)
    finally:
        for one in _kinds(kind):
            if "__msgspec_cache__" in vars(one):
                del one.__msgspec_cache__


def _kinds(kind: Any) -> list[Any]:
    """List a dataclass and those inside it."""
    inner = [hint for hint in get_type_hints(kind).values() if dataclasses.is_dataclass(hint)]
    return [kind, *(one for hint in inner for one in _kinds(hint))]


def is_object(given: Any) -> bool:
    """Return whether it is the part itself, with its options, and not a name or a kind."""
    return not (isinstance(given, (str, type)) or inspect.isroutine(given))


def unplain(part: Any) -> dict[str, Any]:
    """Collect the options whose values no file holds, functions for example; not those that are as the class has them."""
    return {name: value for name, value in _unplain(part).items() if value is not _defaults(part).get(name)}


def plain_values(part: Any) -> dict[str, Any]:
    """Convert the options to plain values; those that are no such thing, and as the class has them, are left out."""
    left_out = _unplain(part).keys() - unplain(part).keys()
    found = msgspec.to_builtins(part, enc_hook=repr)
    return {name: value for name, value in found.items() if name not in left_out}


def _unplain(part: Any) -> dict[str, Any]:
    found = {}
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        try:
            msgspec.to_builtins(value)
        except TypeError:
            found[f.name] = value
    return found


def _defaults(part: Any) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(part)}
