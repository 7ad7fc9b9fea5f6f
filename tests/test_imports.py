"""What may import what, read from the source without running it, so that a wrong import is found where it is written.

    cli -> commands -> analysis -> run -> systems -> foreign_names -> topologies -> workers -> runtime -> (algorithms, envs)
        -> data -> networks -> ops -> spaces -> trees -> (types, ranges, references, signals, supervision)

A module may import its own folder and every layer below its own. A new folder must be given its place in LAYERS.
The benches are a package of their own, rookery_bench, which may import anything; only `rookery bench` knows of it.
rookery.testing is for those who test what they have written: above the topologies, and imported by nothing in the library.
No two classes have one name.
The last tests feed every rule a package that breaks it, so that no rule can become one that never says no.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"ranges", "references", "signals", "supervision", "types"},
    {"trees"},
    {"spaces"},
    {"ops"},
    {"networks"},
    {"data"},
    {"algorithms", "envs"},
    {"runtime"},
    {"workers"},
    {"topologies"},
    {"testing"},
    {"foreign_names"},
    {"systems"},
    {"run"},
    {"analysis"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
BENCH = "rookery_bench"  # programs about the library rather than parts of it
NO_JAX = {"types", "trees", "spaces", "envs", "data"}  # so that an environment process starts in well under a second
WITH_JAX = {f"rookery.envs.jax.{name}" for name in ("env", "toys", "adapters", "slots", "pool")}  # when one is asked for
JAX = {"jax", "jaxlib", "flax", "optax", "chex", "rlax", "distrax", "mctx", "orbax"}
PICKLES = {"pickle", "cloudpickle", "marshal", "dill", "shelve", "joblib"}
STARTS_PROCESSES = {"envs", "runtime"}  # may pickle for a child they start themselves; never on the way from a checkpoint
VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "misc", "legacy"}
CALLS = {"call", "fill", "keep", "now"} | {"ask", "tell", "tell_one", "publish", "gather", "fetch"}  # of a Handle, of a Fleet
PER_BENCH = {"Options"}  # a class of this name in each bench: its command line
WALL_CLOCK = {f"rookery.run.{name}" for name in ("directory", "records", "logging", "display", "tensorboard")}


class Import(NamedTuple):
    target: str  # "jax.numpy", "rookery.envs.pools.pool"
    line: int
    lazy: bool  # inside a function: runs later, or never
    typing_only: bool  # under `if TYPE_CHECKING`: never runs
    function: str = ""  # the outermost one that it is in


class Module(NamedTuple):
    name: str
    tree: ast.Module
    is_package: bool

    @property
    def part(self) -> str:
        """The folder or top-level file it belongs to: `envs` for rookery.envs.pools.pool, "" for rookery itself."""
        return BENCH if top(self.name) == BENCH else self.name.partition(".")[2].partition(".")[0]


Package = dict[str, Module]


def top(name: str) -> str:
    return name.partition(".")[0]


def read_packages() -> Package:
    modules = {}
    for path in sorted([*(ROOT / "rookery").rglob("*.py"), *(ROOT / BENCH).rglob("*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, ast.parse(path.read_text(), str(path)), is_package)
    return modules


def imports(module: Module, package: Package) -> list[Import]:
    """Every import of a module, with `from rookery import ops` and relative imports resolved to full names."""
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool, typing_only: bool, function: str = "") -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy, typing_only, function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parts = module.name.split(".")  # one dot in a package's __init__ means the package itself
                above = parts[: len(parts) - node.level + module.is_package]
                source = ".".join([*above, source] if source else above)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                found.append(Import(full if full in package else source, node.lineno, lazy, typing_only, function))
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                visit(child, lazy, True, function)
            for child in node.orelse:
                visit(child, lazy, typing_only, function)
            return
        function = function or (getattr(node, "name", "lambda") if in_function else "")
        for child in ast.iter_child_nodes(node):
            visit(child, lazy or in_function, typing_only, function)

    visit(module.tree, False, False)
    return found


def ours(name: str) -> bool:
    return top(name) in ("rookery", BENCH)


def reached(start: list[str], package: Package, *, lazy: bool) -> set[str]:
    """Our modules that importing `start` brings along, parents included; with `lazy`, what functions import too."""
    seen: set[str] = set()
    pending = list(start)
    while pending:
        name = pending.pop()
        if name in seen or name not in package:
            continue
        seen.add(name)
        if "." in name:
            pending.append(name.rpartition(".")[0])
        # The root imports its public names late on purpose; that is not part of importing one of its modules.
        with_lazy = lazy and name != "rookery"
        taken = (i for i in imports(package[name], package) if not i.typing_only and (with_lazy or not i.lazy))
        pending += [i.target for i in taken if ours(i.target)]
    return seen


# ----------------------------------------------------------------------------------------------------------- rules


def wrong_direction(module: Module, package: Package) -> Iterator[str]:
    rank = {part: i for i, layer in enumerate(LAYERS) for part in layer}
    if module.part in ("", BENCH):
        return
    if module.part not in rank:
        yield f"{module.name}: `{module.part}` has no place in LAYERS (tests/test_imports.py); give it one"
        return
    for found in imports(module, package):
        if top(found.target) != "rookery":
            continue
        part = found.target.partition(".")[2].partition(".")[0]
        if part == "":
            yield f"{module.name}:{found.line}: import the module a name lives in, not the package's public face"
        elif part != module.part and rank.get(part, len(LAYERS)) >= rank[module.part]:
            yield f"{module.name}:{found.line}: {module.part} may not import {part} (layers go one way)"


def bench_outside_its_command(module: Module, package: Package) -> Iterator[str]:
    """The library works without its benches: not even a type of theirs is named in it."""
    for found in imports(module, package):
        allowed = module.part == BENCH or (module.name, found.function) == ("rookery.commands.bench", "bench")
        if top(found.target) == BENCH and not allowed:
            yield f"{module.name}:{found.line}: {BENCH} is imported in the command `rookery bench` alone, when it is typed"


def fakes_in_the_library(module: Module, package: Package) -> Iterator[str]:
    """Fakes and checks are for tests: no run depends on them."""
    for found in imports(module, package):
        if f"{found.target}.".startswith("rookery.testing.") and module.part not in ("testing", BENCH):
            yield f"{module.name}:{found.line}: rookery.testing is imported by tests alone"


def jax_where_none_may_be(module: Module, package: Package) -> Iterator[str]:
    if module.part not in NO_JAX or module.name in WITH_JAX:
        return
    for found in imports(module, package):
        if found.target.split(".")[0] in JAX and not found.typing_only:
            yield f"{module.name}:{found.line}: imports {found.target}; {module.part} must do without jax"
    for name in reached([module.name], package, lazy=False) - {module.name}:
        for found in imports(package[name], package):
            if found.target.split(".")[0] in JAX and not found.lazy and not found.typing_only:
                yield f"{module.name}: brings in {found.target} by way of {name}:{found.line}"


def ray_outside_its_folder(module: Module, package: Package) -> Iterator[str]:
    in_folder = f"{module.name}.".startswith("rookery.runtime.ray.")
    if in_folder or module.name == "rookery_bench.bare_ray":  # the second measures Ray without us
        return
    for found in imports(module, package):
        if found.target.split(".")[0] == "ray" and not found.typing_only:
            yield f"{module.name}:{found.line}: ray is imported in rookery/runtime/ray/ alone"


def code_from_data(module: Module, package: Package) -> Iterator[str]:
    """pickle and its kin, `allow_pickle=True`, eval and exec."""
    for found in imports(module, package):
        if found.target.split(".")[0] in PICKLES:
            yield f"{module.name}:{found.line}: imports {found.target}; what is read from disk must not run"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
            yield f"{module.name}:{node.lineno}: calls {node.func.id}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield f"{module.name}:{node.value.lineno}: allow_pickle must be False"


def code_from_checkpoints(module: Module, package: Package) -> Iterator[str]:
    if module.part not in STARTS_PROCESSES:
        yield from code_from_data(module, package)
    if "checkpoint" in module.name.rpartition(".")[2]:
        for name in reached([module.name], package, lazy=True) - {module.name}:
            for problem in code_from_data(package[name], package):
                yield f"{problem} (on the way from a checkpoint, by {module.name})"


def vague_name(module: Module, package: Package) -> Iterator[str]:
    for word in set(module.name.split(".")) & VAGUE:
        yield f"{module.name}: `{word}` says nothing; name the module by its noun"


def wall_clock(module: Module, package: Package) -> Iterator[str]:
    """Durations, leases and rates use time.monotonic or perf_counter: the wall clock jumps."""
    if module.name in WALL_CLOCK or module.part == BENCH:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.endswith(("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today")):
                yield f"{module.name}:{node.lineno}: {text} outside {', '.join(sorted(WALL_CLOCK))}"
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in {"time", "time_ns"}:
                    yield f"{module.name}:{node.lineno}: from time import {alias.name}"


def calls_by_name(module: Module, package: Package) -> Iterator[str]:
    """A worker's method is passed itself (`Learner.learn`), where mypy checks it; as a string nobody would."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in CALLS:
            continue
        first = [*node.args[:3], *(keyword.value for keyword in node.keywords if keyword.arg == "method")]  # life, tag, method
        if any(isinstance(arg, ast.Attribute) and ast.unparse(arg.value).split(".")[-1][:1].isupper() for arg in first):
            continue  # what else is a string is an argument, or a tag
        for arg in first:
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                yield f"{module.name}:{node.lineno}: .{node.func.attr}() with {arg.value!r}; pass the method itself"


RULES = [
    wrong_direction, bench_outside_its_command, fakes_in_the_library, jax_where_none_may_be, ray_outside_its_folder,
    code_from_checkpoints, vague_name, wall_clock, calls_by_name,
]  # fmt: skip
PACKAGE = read_packages()
PARTS = sorted({module.part for module in PACKAGE.values()})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part or "root")
def test_every_module_keeps_the_rule(part: str, rule: object) -> None:
    assert callable(rule)
    modules = [module for module in PACKAGE.values() if module.part == part]
    problems = [problem for module in modules for problem in rule(module, PACKAGE)]
    assert not problems, "\n".join(problems)


def twins(package: Package) -> list[str]:
    """Class names that mean two things, leading underscores ignored; nested classes and those under TYPE_CHECKING count."""
    found: dict[str, list[str]] = {}
    for module in package.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not (module.part == BENCH and node.name in PER_BENCH):
                found.setdefault(node.name.lstrip("_"), []).append(f"{module.name}:{node.lineno}")
    return [f"{name} is the name of {len(places)} classes: {', '.join(places)}" for name, places in found.items() if places[1:]]


def test_one_class_name_means_one_thing() -> None:
    assert not (problems := twins(PACKAGE)), "\n".join(problems)


def test_importing_environments_and_data_leaves_jax_out() -> None:
    names = [name for name, module in PACKAGE.items() if module.part in NO_JAX and name not in WITH_JAX]
    assert set(PACKAGE) > WITH_JAX
    assert {"rookery.envs", "rookery.envs.jax.sources", "rookery.data", "rookery.types"} <= set(names)
    heavy = sorted(JAX | {"ray", "torch"})
    code = f"import sys, {', '.join(names)}; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]", f"importing {', '.join(names)} also imported {found.stdout}"


# ------------------------------------------------------------------------------------------------- can a rule say no?

BAD = {
    "upwards": ("rookery.envs.pools.pool", "from rookery.workers import collector", wrong_direction),
    "workers in a runtime": ("rookery.runtime.fleet", "from rookery import workers", wrong_direction),
    "lazily upwards": ("rookery.data.items", "def f():\n    from ..run import trainer", wrong_direction),
    "the public face": ("rookery.run.trainer", "from rookery import train", wrong_direction),
    "an unknown folder": ("rookery.gadgets", "", wrong_direction),
    "a bench in the library": ("rookery.data.items", "def f():\n    from rookery_bench import torn", bench_outside_its_command),
    "a bench in the root": ("rookery", "if TYPE_CHECKING:\n    import rookery_bench.record", bench_outside_its_command),
    "a bench in another command": ("rookery.commands.show", "def f():\n    import rookery_bench", bench_outside_its_command),
    "a bench before it is asked for": ("rookery.commands.bench", "import rookery_bench", bench_outside_its_command),
    "fakes in a run": ("rookery.run.trainer", "def f():\n    from rookery.testing import lockstep", fakes_in_the_library),
    "a run in testing": ("rookery.testing.lockstep", "from rookery.run import trainer", wrong_direction),
    "jax in envs": ("rookery.envs.pools.pool", "def f():\n    import jax.numpy as jnp", jax_where_none_may_be),
    "jax with the environments": ("rookery.envs.pools.serial", "from rookery.envs.jax import pool", jax_where_none_may_be),
    "jax behind a module": ("rookery.data.items", "from rookery.ops import vtrace", jax_where_none_may_be),
    "ray elsewhere": ("rookery.runtime.fleet", "def f():\n    import ray", ray_outside_its_folder),
    "ray beside its folder": ("rookery.runtime.ray_machines", "import ray", ray_outside_its_folder),
    "pickle": ("rookery.run.trainer", "from pickle import loads", code_from_checkpoints),
    "pickle behind": ("rookery.run.checkpoint", "def f():\n    import rookery.envs.child", code_from_checkpoints),
    "eval": ("rookery.run.config", "eval('1')", code_from_checkpoints),
    "allow_pickle": ("rookery.data.chunks", "load(x, allow_pickle=True)", code_from_checkpoints),
    "utils": ("rookery.data.utils", "", vague_name),
    "time.time": ("rookery.workers.learning.learner", "import time\ntime.time()", wall_clock),
    "from time": ("rookery.workers.learning.learner", "from time import time", wall_clock),
    "datetime": ("rookery.topologies.sync", "datetime.datetime.now()", wall_clock),
    "a call by name": ("rookery.topologies.sync", "crew.learner.call('learn', batch)", calls_by_name),
    "a lane by name": ("rookery.topologies.job", "collector.now(method='publish')", calls_by_name),
    "a fleet by name": ("rookery.topologies.gossip", "self.fleet.keep(who, place, 'step', *message)", calls_by_name),
}
GOOD = {
    "rookery": "def __getattr__(name):\n    from rookery.run import trainer",
    "rookery.ops.vtrace": "import jax",
    "rookery.workers.acting.collector": "import time\ntime.monotonic()",
    "rookery.runtime.local": "",
    "rookery.testing.lockstep": "from rookery.runtime import local",
    "rookery.workers.learning.learners": "from rookery.runtime import local",
    "rookery.topologies.gossip": "fleet.keep(who, 'tag', Peer.step, x)\nshard.call(shards.Shard.sealed, 'name')",
    "rookery.runtime.ray": "from rookery.runtime.ray import actor",
    "rookery.runtime.ray.actor": "import ray",
    "rookery.run.directory": "import time\ntime.time()",
    "rookery.envs.child": "import cloudpickle",
    "rookery.envs.jax.pool": "import jax",
    "rookery.envs.pools.serial": "if TYPE_CHECKING:\n    import jax\nfrom rookery import spaces\nfrom . import child",
    "rookery.spaces": "from rookery.types import Spec",
    "rookery.types": "",
    "rookery.commands.bench": "def bench(args):\n    from rookery_bench import main",
    "rookery_bench.torn": "import time\nfrom rookery.run import directory\nfrom rookery_bench import record\ntime.time()",
    "rookery_bench.record": "",
}


def written(sources: dict[str, str]) -> Package:
    folders = {".".join(name.split(".")[:n]) for name in sources for n in range(2, name.count(".") + 1)}
    sources = dict.fromkeys(folders, "") | sources
    return {name: Module(name, ast.parse(text), name in folders | {"rookery"}) for name, text in sources.items()}


@pytest.mark.parametrize("case", BAD)
def test_a_rule_refuses_what_breaks_it(case: str) -> None:
    name, source, rule = BAD[case]
    package = written(GOOD | {name: source})
    assert list(rule(package[name], package))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_accepts_a_good_package(rule: object) -> None:
    assert callable(rule)
    package = written(GOOD)
    assert [problem for module in package.values() for problem in rule(module, package)] == []


TWINS = {
    "the same name": "class Row: ...",
    "a private one": "class _Row: ...",
    "a nested one": "class Table:\n    class Row: ...",
    "one in a function": "def f():\n    class Row: ...",
    "one for types": "if TYPE_CHECKING:\n    class Row: ...",
    "two in one module": "class Cell: ...\nclass _Cell: ...",
}


@pytest.mark.parametrize("case", TWINS)
def test_a_second_class_of_one_name_is_found(case: str) -> None:
    package = written(GOOD | {"rookery.run.display": "class Row: ...", "rookery.data.items": TWINS[case]})
    assert len(twins(package)) == 1


def test_classes_of_different_names_and_the_options_of_benches_are_no_twins() -> None:
    benches = {f"rookery_bench.{name}": "class Options: ..." for name in ("torn", "zoo")}
    classes = {"rookery.data.items": "class Row: ...", "rookery.run.display": "class Line: ..."}
    assert twins(written(GOOD | benches | classes)) == []
