"""Which names in a run's config may be imported: those that this user's own runs wrote there.

A config names the user's own environment, network or algorithm (`my_envs:GridEnv`), so that a run can be resumed and evaluated
without naming them again. To import is to run code, and a run's directory may come from anybody: `env: "os:system"` must not
be called. So a config that names code carries a signature, an HMAC-SHA256 of all of it with a random key of the user's, which
lies outside of every run. Signed with this key, names are imported without a word; else not before the user names them again,
or says --trust. `rookery.load` imports none of them in any case.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shlex
import stat
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rookery import references
from rookery.run import startup
from rookery.run.records import plain

SIGNATURE = "signature"
_CONTEXT = b"rookery: the config of a run, 1\n"
_told: set[Path] = set()  # keys that cannot be used, each said once


class NotTrusted(ValueError):
    """A config names code, and is not signed by this user."""

    exit_code = 2


class NoSignature(UserWarning):
    """The names of a run cannot be signed."""


def signed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the signature to a config that names code, where there is a key, or one can be made; else a warning."""
    value = dict(config)
    if not value.get("references"):
        return value
    key = _key(make=True)
    return value if key is None else value | {SIGNATURE: _digest(key, value)}


def is_signed(config: Mapping[str, Any]) -> bool:
    """Return whether this user's key has signed the config as it is."""
    given, key = config.get(SIGNATURE), _key(make=False)
    return isinstance(given, str) and key is not None and hmac.compare_digest(_digest(key, config), given)


def names_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the references of a config, by part; an environment that has the form of one is one, wherever it says so."""
    found, env = config.get("references", {}), config.get("env")
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise NotTrusted("the config of this run does not fit this version of rookery: its references are no names")
    found = {part: text for part, text in found.items() if part == "directory" or references.is_reference(text)}
    return found | ({"env": str(env)} if references.is_reference(env) and "env" not in found else {})


def allowed(
    config: Mapping[str, Any], run: str, given: Collection[str], *, trust: bool = False, how: str = "resume"
) -> dict[str, str]:
    """Return the references that may be imported, beside the parts that are given again. Raises NotTrusted.

    run, how: as they are typed, for the message."""
    names = {part: text for part, text in names_of(config).items() if part.partition(".")[0] not in given}
    if not set(names) - {"directory"}:
        return {}
    if trust or is_signed(config):
        return names
    parts = {part: names[part] for part in sorted(names, key=[*FLAGS, *names].index) if part != "directory"}
    typed = " ".join(f"{FLAGS[part]} {shlex.quote(text)}" for part, text in parts.items() if part in FLAGS)
    again = f"name it yourself, `rookery resume {run} {typed}`, or " if how == "resume" and typed else ""
    raise NotTrusted(
        f"{run} names code: {', '.join(f'{part} {text!r}' for part, text in parts.items())}. Code is imported if you have "
        "signed the config that names it, and this one has no signature of your key: it came from somebody else, was changed, "
        f"or the key is gone. Nothing was imported. Look at what is named; then {again}take it as it is, "
        f"`rookery {how} {run} --trust` (in Python trust=True)"
    )


FLAGS = {"env": "--env", "algorithm": "--algorithm", "torso": "--network", "topology": "--topology"}


# --------------------------------------------------------------------------------------------------------------- key


def key_path() -> Path:
    """Return where the key of this user lies. RuntimeError where there is no home."""
    return startup.state_directory() / "key"


def _digest(key: bytes, config: Mapping[str, Any]) -> str:
    value = plain({name: value for name, value in config.items() if name != SIGNATURE})
    return hmac.new(key, _CONTEXT + json.dumps(value, sort_keys=True).encode(), "sha256").hexdigest()


def _key(*, make: bool) -> bytes | None:
    """Read the key, or make it; None, with a warning where it was to be made, if that cannot be."""
    path = Path("~/.local/state/rookery/key")
    try:
        path = key_path()
        if make and not path.exists():
            _write(path)
        return _read(path)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        if path not in _told:
            _told.add(path)
            why = getattr(error, "strerror", None) or error
            what = "this run's names of code cannot be signed, and resuming it will ask for them" if make else "it is not used"
            warnings.warn(f"the key {path}: {why}; {what}", NoSignature, stacklevel=4)
        return None


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError("others may read or write it, or it is not yours (`chmod 600`, or remove it for a new one)")
        key = file.read(1024)
    if len(key) < 32:
        raise ValueError("it is too short (remove it for a new one)")
    return key


def _write(path: Path) -> None:
    """Write a new key, whole, unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(handle)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
