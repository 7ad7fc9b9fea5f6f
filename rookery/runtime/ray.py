"""The Ray runtime: the same workers, unchanged, as actors of a Ray cluster. The only file that imports ray.

    collector actor ──rollout, through the object store──▶ fetcher thread ──copied──▶ the queue's slot ──▶ learner
          ▲────────────parameters: put once, passed by reference, on a lane beside the calls────────────────┘

A role that has resources lives in actors, every other (the learner) in this process, where `near` is a local runtime.
Without an address a Ray of our own is started and ended with the run: token authentication with a token that only its
user can read, no dashboard, and nothing of it is left. Ray's errors are of two kinds: what a worker raised comes out as
it was raised, with the worker's traceback as a note; everything that means "gone" is a WorkerLost.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import logging
import math
import os
import queue
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any, Concatenate, Generic

import jax
import jax.numpy as jnp
import numpy as np
import ray
from ray import exceptions

from rookery import signals
from rookery.data.queue import Stored
from rookery.runtime.interface import ArgumentLost, Handle, Out, P, R, Resources, RuntimeRefused, W, W_co, WorkerLost
from rookery.runtime.local import LocalRuntime
from rookery.runtime.ray_cleanup import MARK, await_death, end, watch_over
from rookery.runtime.reachability import LOOK_SECONDS, SILENT_SECONDS, Address, Reachability
from rookery.runtime.remote_error import RemoteError, remote_error
from rookery.trees import tree_map

LOST = (
    exceptions.RayActorError, exceptions.ActorUnschedulableError, exceptions.ObjectLostError, exceptions.NodeDiedError,
    exceptions.WorkerCrashedError, exceptions.OutOfMemoryError, exceptions.RaySystemError,
)  # fmt: skip
ONE_THREAD = {"NPROC": "1", "JAX_PLATFORMS": "cpu"}  # XLA on one core each; the Eigen flag alone leaves it two
PREFIX = "rookery-ray-"
ROOT = Path("/tmp")  # Ray's sockets lie below, and the path of a socket has 107 characters: TMPDIR may be too long
CLOSE_SECONDS = 5.0
PULSE_SECONDS, LOST_SECONDS = 2.0, 15.0  # the head is asked this often, and given up when it is silent for so long
REACH_SECONDS, JOIN_SECONDS = 5.0, 10.0  # for an address to accept a connection, and then for a head to answer
_STOP = object()
_logger = logging.getLogger(__name__)
_TOKEN = secrets.token_hex(32)  # of every Ray that this process starts: Ray reads it once and keeps it


class ClusterLost(WorkerLost):
    """The head of the cluster is gone, and nothing can be started or ended without it."""


class _Raylet:
    """The process through which this one reaches its Ray. When it is gone, the next touch of Ray's store ends this process
    from within Ray, unsaid, with status 1: from then on nothing here may touch it."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def watch(self) -> None:
        """Watch it from now on; the kernel reports its death at once."""
        self.gone = gone = threading.Event()
        node: Any = ray._private.worker._global_node
        if node is None:  # Ray's client, which has none here
            return
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(node.raylet_socket_name)
            pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))

        def mourn() -> None:
            await_death(pid)
            gone.set()

        threading.Thread(target=mourn, name="ray-raylet", daemon=True).start()

    def require(self) -> None:
        if self.gone.is_set():
            raise ClusterLost("the Ray of this machine is gone: its raylet was ended. Resume the run from its last checkpoint.")


_raylet = _Raylet()


class InsecureCluster(UserWarning):
    """Whoever reaches this cluster can run code in it."""


def _remote_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def passing_on(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise remote_error(error) from None

    return passing_on


class WorkerActor:
    """The actor of one worker: runs its calls in their order, and `now` beside them."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._buffer: Any = None
        self._heard, self._hearing = 0, threading.Lock()

    @_remote_errors
    def make(self, check: Callable[[], None], worker: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[str, int]:
        """Construct the worker. -> the machine and the process that it lives in."""
        os.environ["ROOKERY_HOST"] = ray.util.get_node_ip_address()  # where ranks of a learner find each other
        check()
        self._worker = worker(*args, **kwargs)
        return ray.get_runtime_context().get_node_id(), os.getpid()

    @_remote_errors
    def call(self, asked: str, *values: Any) -> Any:
        """Call the worker, with views of the store where it takes them (it copies, in numpy), else with copies of its own."""
        given = values if getattr(self._worker, "takes_views", False) else tuple(map(_given, values))
        return _plain(self._do(asked, given))

    @_remote_errors
    def fill(self, method: str, *told: Any) -> tuple[Any, Any]:
        """Collect a rollout. -> its statistics, and the rollout: two objects, so that the driver can pass it on untouched.

        told: what was to be heard before, in case that the lane is slower."""
        if told:
            self.now(*told)
        collected = getattr(self._worker, method)(self._buffer)
        rollout = _plain(collected.rollout)
        if all(leaf.flags.writeable for leaf in jax.tree.leaves(rollout)):
            self._buffer = rollout  # what is returned is copied into the store before the next call
        return collected._replace(rollout=None), rollout

    def now(self, number: int, asked: str, *values: Any) -> None:
        with self._hearing:
            if number > self._heard:  # else it is old, or came with a call
                self._heard = number
                self._do(asked, _owned(values))

    def _do(self, asked: str, values: tuple[Any, ...]) -> Any:
        """Call what `_wired` has written."""
        method, *names = asked.split()
        first = len(values) - len(names)
        return getattr(self._worker, method)(*values[:first], **dict(zip(names, values[first:])))


WorkerActor.now = ray.method(concurrency_group="lane")(WorkerActor.now)  # type: ignore[method-assign]
_remote: Any = ray.remote  # its stubs do not know of concurrency groups
_Actor = _remote(concurrency_groups={"lane": 1}, max_restarts=0, max_task_retries=0)(WorkerActor)


class Shared:
    """An argument for many workers: put into the object store once, when the first of them is called with it."""

    def __init__(self, value: Any) -> None:
        self._value, self._ref = value, None  # type: Any, Any

    def ref(self) -> Any:
        if self._ref is None:
            _raylet.require()
            self._ref, self._value = ray.put(_plain(self._value)), None
        return self._ref


class Kept(Shared):
    """A result that stays in the object store where it was made, until another worker is called with it."""

    def __init__(self, ref: Any) -> None:
        self._value, self._ref = None, ref


class RayHandle(Generic[W_co]):
    def __init__(self, runtime: RayRuntime, name: str, actor: Any, made: Sequence[Any]) -> None:
        """made: the arguments of WorkerActor.make."""
        self.name, self.actor, self._runtime = name, actor, runtime
        self.fence, self.dead = threading.Lock(), False
        self.owed: set[Future] = set()
        self.cut = ""  # why nothing more can be heard of it
        self._lane = threading.Lock()
        self._telling, self._told, self._sent = False, (), 0  # type: bool, tuple[Any, ...], int
        self.ready = runtime.watch(self, actor.make.remote(*made))

    def call(self, method: Callable[Concatenate[W_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        _raylet.require()
        return self._runtime.watch(self, self.actor.call.remote(*map(_reference, _wired(method, args, kwargs))))

    def fill(self, method: Callable[[W_co, Out], R], out: Out) -> Future[R]:
        _raylet.require()
        said, rollout = self.actor.fill.options(num_returns=2).remote(method.__name__, *map(_reference, self._told))
        return self._runtime.watch(self, said, rollout, out)

    def keep(
        self, method: Callable[Concatenate[W_co, P], tuple[R, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[R, Any]]:
        _raylet.require()
        said, kept = self.actor.call.options(num_returns=2).remote(*map(_reference, _wired(method, args, kwargs)))
        pair: Future[tuple[R, Any]] = Future()

        def pass_on(answer: Future) -> None:
            error = answer.exception()
            pair.set_exception(error) if error is not None else pair.set_result((answer.result(), Kept(kept)))

        self._runtime.watch(self, said).add_done_callback(pass_on)
        return pair

    def now(self, method: Callable[Concatenate[W_co, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call beside the queue; the newest wins: while one is on its way, only the last of those that follow is kept."""
        with self._lane:
            self._told = (self._told[0] + 1 if self._told else 1, *_wired(method, args, kwargs))
            if self._telling:
                return
            self._telling = True
        self.tell()

    def tell(self) -> None:
        """Send the newest message; called again when it has arrived. A worker that is gone shows in its calls."""
        with self._lane:
            told = self._told
            news = self._telling = told[0] > self._sent and not self.dead
            self._sent = told[0]
        if news and not _raylet.gone.is_set():
            ref = self.actor.now.remote(*map(_reference, told))
            ref.future().add_done_callback(lambda _: self._runtime.later(self.tell))

    def kill(self) -> None:
        with self.fence:  # a copy that is under way ends first, and none begins after it
            self.dead = True
        self._runtime.forget(self)
        if _raylet.gone.is_set():
            return
        with contextlib.suppress(Exception):
            ray.kill(self.actor)
        if self.ready.done() and self.ready.exception() is None:
            node, pid = self.ready.result()
            if node == ray.get_runtime_context().get_node_id():  # one that is stopped does not hear Ray's request
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                        os.kill(pid, signal.SIGKILL)


class RayRuntime:
    name = "ray"
    stores = True
    patience: float | None = 120.0

    def __init__(
        self,
        *,
        address: str | None = None,
        strict: bool = False,
        resources: Mapping[str, Resources],
        counts: Mapping[str, tuple[int, int]],
        prepare: Callable[[], None],
        versions: Callable[[], dict[str, str]],
    ) -> None:
        """resources and counts (least, most): of each role that lives in actors; prepare: before anything else in one;
        strict: what would be warned of because it is not secure is refused."""
        self.near = LocalRuntime()
        self._resources, self._prepare, self._versions = resources, prepare, versions
        self._expected = versions()
        self._handles: list[RayHandle] = []
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed, self._pulse = False, time.monotonic()
        self.fetched_bytes = 0  # of arrays that came into this process
        self._machines: dict[str, Address] = {}  # the others, by the id of their node
        self._cut: frozenset[str] = frozenset()  # those that have been silent for too long
        self._own: Path | None = None  # the directory of a Ray that this run starts
        self._joined = False
        if not ray.is_initialized():
            if address is None:
                needed = sum(most * resources[role].cpus for role, (_, most) in counts.items())
                self._own = _start(cpus=max(len(os.sched_getaffinity(0)), math.ceil(needed)))
            else:
                _join(address, strict=strict)
                self._joined = True
        try:
            self._refuse_what_cannot_be(counts)
        except BaseException:
            self.close()
            raise
        for target, name in ((self._fetch, "ray-fetcher"), (self._feel, "ray-pulse"), (self._listen, "ray-links")):
            threading.Thread(target=target, name=name, daemon=True).start()

    # -------------------------------------------------------------------------------------------- as any runtime

    def spawn(self, worker: Callable[..., W], *args: Any, name: str, role: str = "", **kwargs: Any) -> Handle[W]:
        if role not in self._resources:
            return self.near.spawn(worker, *args, name=name, role=role, **kwargs)
        _raylet.require()
        wanted = self._resources[role]
        variables = {name: os.environ[name] for name in wanted.variables if name in os.environ}
        if not _started_here:  # else its processes have inherited these; passing them costs an actor 1-4 s at its start
            variables |= {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")} | ({} if wanted.gpus else ONE_THREAD)
        if wanted.cpus > 1 or wanted.gpus:  # not one thread, as all other actors
            variables |= {"NPROC": str(max(1, round(wanted.cpus)))} | ({"JAX_PLATFORMS": ""} if wanted.gpus else {})
        actor = _Actor.options(
            num_cpus=wanted.cpus, num_gpus=wanted.gpus, scheduling_strategy="SPREAD", **self._elsewhere(),
            runtime_env={"env_vars": variables} if variables else None,
        ).remote()  # fmt: skip
        check = _Check(self._prepare, self._versions, self._expected)
        handle: RayHandle[W] = RayHandle(self, name, actor, (check, worker, args, kwargs))
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> Shared:
        return Shared(value)

    def wait(self, futures: Sequence[Future], timeout: float | None = None) -> tuple[list[Future], list[Future]]:
        _raylet.require()
        if (silent := time.monotonic() - self._pulse) > LOST_SECONDS:
            raise ClusterLost(
                f"the head of the Ray cluster has not answered for {silent:.0f} s. Resume the run from its last checkpoint; "
                "with --address, on a cluster that is alive."
            )
        return self.near.wait(futures, timeout)

    def apart(self, role: str) -> bool:
        return role in self._resources

    def room(self, role: str, live: int) -> int:
        wanted, there = self._resources.get(role, Resources()), self._available()
        pairs = [(wanted.cpus, there.get("CPU", 0.0)), (wanted.gpus, there.get("GPU", 0.0))]
        return live + min((int(have / need) for need, have in pairs if need), default=10**6)

    def close(self) -> None:
        """Let every worker close, then kill it; end a Ray that we started, and remove its directory."""
        if self._closed:
            return
        self._closed = True
        self.near.close()
        lost = _raylet.gone.is_set() or time.monotonic() - self._pulse > LOST_SECONDS
        if ray.is_initialized() and not lost:
            closing = [handle.actor.call.remote("close") for handle in self._handles if handle.ready.done()]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for handle in [*self._handles]:
                handle.kill()
        self._inbox.put(_STOP)
        if self._own is not None or self._joined:
            _leave(self._own) if lost else ray.shutdown()
        if self._own is not None:
            _remove(self._own)
            if lost:  # Ray's own threads here may still write a line
                atexit.register(shutil.rmtree, self._own, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------- answers

    def watch(self, handle: RayHandle, said: Any, rollout: Any = None, out: Any = None) -> Future:
        """A Future of what the actor says; of a rollout, only when it is written into `out`: a Stored takes the reference.

        out is None: the rollout stays where it is, and what is said holds the reference."""
        future: Future = Future()
        future.set_running_or_notify_cancel()
        handle.owed.add(future)
        future.add_done_callback(handle.owed.discard)
        if handle.cut:
            _settle(future, error=WorkerLost(handle.cut))
        stays = out is None or isinstance(out, Stored)
        last = said if rollout is None or stays else rollout
        last.future().add_done_callback(lambda raw: self._inbox.put((handle, future, raw, rollout if stays else said, out)))
        return future

    def _feel(self) -> None:
        """Ask the head for heartbeats. Ray itself would end this process, unsaid, after a minute without one."""
        while not self._closed:
            with contextlib.suppress(Exception):
                nodes, here = ray.nodes(), ray.get_runtime_context().get_node_id()
                others = [node for node in nodes if node["Alive"] and node["NodeID"] != here]
                self._machines = {n["NodeID"]: (n["NodeManagerAddress"], n["NodeManagerPort"]) for n in others}
                self._pulse = time.monotonic()
            time.sleep(PULSE_SECONDS)

    def _listen(self) -> None:
        """Probe all machines: Ray may take a minute to give up one that is cut off, and never does if its head can reach it."""
        reachability = Reachability()
        while not self._closed:
            silent = frozenset(reachability.look(machines := self._machines))
            for node in silent - self._cut:
                _logger.warning("%s:%d cannot be reached: its workers are given up", *machines[node])
            self._cut = silent
            for handle in [*self._handles]:
                if handle.ready.done() and not handle.ready.exception() and (node := handle.ready.result()[0]) in silent:
                    handle.cut = f"{handle.name} is cut off: {machines[node][0]} has been silent for {SILENT_SECONDS:g} s"
                    for future in [*handle.owed]:
                        _settle(future, error=WorkerLost(handle.cut))
            time.sleep(LOOK_SECONDS)

    def _elsewhere(self) -> dict[str, Any]:
        """Avoid machines that are cut off: Ray would put a worker there until it has noticed."""
        if not self._cut:
            return {}
        names = ",".join(sorted(self._cut))
        there = {"label_selector": {"ray.io/node-id": f"in({names})"}}  # where there is no room elsewhere; it may be back soon
        return {"label_selector": {"ray.io/node-id": f"!in({names})"}, "fallback_strategy": [there]}

    def _available(self) -> dict[str, float]:
        if not self._cut:
            return ray.available_resources()
        there: dict[str, float] = {}
        for node, resources in ray._private.state.available_resources_per_node().items():
            for kind, amount in resources.items():
                there[kind] = there.get(kind, 0.0) + (amount if node not in self._cut else 0.0)
        return there

    def later(self, function: Callable[[], None]) -> None:
        """Run a call in the fetcher thread: Ray's own threads call back, and must not wait for Ray."""
        self._inbox.put(function)

    def forget(self, handle: RayHandle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)

    def _fetch(self) -> None:
        """Copy rollouts out of the object store: a view of one would keep its memory there for as long as it lives."""
        while (item := self._inbox.get()) is not _STOP:
            if callable(item):
                with contextlib.suppress(Exception):
                    item()
                continue
            handle, future, raw, other, out = item
            try:
                _raylet.require()
                value = raw.result()
                self.fetched_bytes += _nbytes(value)
                if isinstance(out, Stored):
                    value = self._stored(handle, value, other, out)
                elif out is not None:
                    value = self._copied(handle, ray.get(other), value, out)
                elif other is not None:
                    value = value._replace(rollout=Kept(other))
                _settle(future, value)
            except BaseException as error:
                _settle(future, error=_translated(error, handle.name))
            del item, handle, future, raw, other, out  # nor may an idle thread keep one
            value = None

    def _copied(self, handle: RayHandle, collected: Any, rollout: Any, out: Any) -> Any:
        with handle.fence:
            if not handle.dead:  # else it is late: its columns may be somebody else's by now
                tree_map(np.copyto, out, rollout)
        return collected._replace(rollout=out)

    def _stored(self, handle: RayHandle, collected: Any, rollout: Any, out: Stored) -> Any:
        with handle.fence:
            if not handle.dead:
                out.value, out.fetch = rollout, self._came
        return collected._replace(rollout=out)

    def _came(self, rollout: Any) -> Any:
        value = ray.get(rollout)
        self.fetched_bytes += _nbytes(value)
        return value

    # ---------------------------------------------------------------------------------------------------- cluster

    def _refuse_what_cannot_be(self, counts: Mapping[str, tuple[int, int]]) -> None:
        there = ray.cluster_resources()
        for role, (least, _) in counts.items():
            wanted = self._resources[role]
            for kind, each in (("CPU", wanted.cpus), ("GPU", wanted.gpus)):
                if least * each > (have := there.get(kind, 0.0)):
                    raise RuntimeRefused(
                        f"{least} × {role} of {each:g} {kind} each need {least * each:g}, but this Ray has {have:g} in all: "
                        f"fewer of them, or --{role}.{kind.lower()}s {have / least:.2g}"
                    )
        if not _started_here:
            problems = [line for node in ray.nodes() if node["Alive"] for line in self._skew(node)]
            if problems:
                raise RuntimeRefused("the machines of this cluster do not agree:\n  " + "\n  ".join(problems))

    def _skew(self, node: dict[str, Any]) -> list[str]:
        """List what differs on a machine from here, one line each."""
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        probe = _remote(num_cpus=0, max_retries=0)(lambda versions: versions()).options(scheduling_strategy=affinity)
        place = node.get("NodeManagerAddress", node["NodeID"][:8])
        try:
            theirs = ray.get(probe.remote(self._versions), timeout=60)
        except Exception as error:
            return [f"{place}: rookery does not work there: {_translated(error, 'the probe')}"]
        return [f"{place}: {line}" for line in differences(self._expected, theirs)]


class _Check:
    """Done in an actor before its worker is made: the same versions as here, or nothing."""

    def __init__(self, prepare: Callable[[], None], versions: Callable[[], dict[str, str]], expected: dict[str, str]) -> None:
        self._prepare, self._versions, self._expected = prepare, versions, expected

    def __call__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN) if threading.current_thread() is threading.main_thread() else None
        self._prepare()
        if problems := differences(self._expected, self._versions()):
            raise RuntimeRefused(f"{ray.util.get_node_ip_address()} is another version: " + "; ".join(problems))


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """`jax 0.10.3, here 0.10.2` for everything that is not the same."""
    names = sorted({*mine, *theirs})
    return [f"{n} {theirs.get(n, 'missing')}, here {mine.get(n, 'missing')}" for n in names if mine.get(n) != theirs.get(n)]


_started_here = False
_watchers: dict[Path, subprocess.Popen[bytes]] = {}  # over each Ray that we started


def _start(*, cpus: int) -> Path:
    """Start a Ray on this machine, in a directory that only this user can enter (Ray opens its own to everybody)."""
    global _started_here
    _sweep()
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=ROOT))
    signals.before_leaving(functools.partial(_remove, directory))
    token = os.open(directory / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(token, "w") as file:
        file.write(_TOKEN)
    _watchers[directory] = watch_over(directory)
    os.environ.pop("RAY_AUTH_MODE", None)  # unset, ray.init turns tokens on; set after the import of ray, it is not seen
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(directory / "token")
    try:
        inherited = ONE_THREAD | {"RAY_USAGE_STATS_ENABLED": "0", MARK: str(directory), "SPT_NOENV": "1"}
        with _signals_kept(), _environment(inherited), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork")  # what ray.init forks becomes another program at once
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(directory / "r"),
                logging_level=logging.ERROR, log_to_driver=False,
            )  # fmt: skip
    except BaseException:
        _remove(directory)
        raise
    _started_here = True
    _raylet.watch()
    _into_the_log()
    return directory


def _join(address: str, *, strict: bool = False) -> None:
    """strict: a cluster of other machines that asks for no token is refused, and not only warned of."""
    _ask(address)
    try:
        with _signals_kept():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, exceptions.RayError, RuntimeError, ValueError) as error:
        raise WorkerLost(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error
    _raylet.watch()
    _into_the_log()
    nodes = [node["NodeManagerAddress"] for node in ray.nodes()]
    if os.environ.get("RAY_AUTH_MODE") != "token" and not all(map(_loopback, nodes)):
        insecure = (
            f"THE RAY CLUSTER AT {address} ASKS NOBODY FOR A TOKEN. Whoever reaches its ports can run code on "
            f"{len(nodes)} machines as you. Start it with RAY_AUTH_MODE=token (docs/cluster.md)."
        )
        if strict:
            ray.shutdown()
            raise RuntimeRefused(f"{insecure} Refused, for --strict-security was asked for.")
        warnings.warn(insecure, InsecureCluster, stacklevel=4)


def _ask(address: str) -> None:
    """Is a head there, and does it take our token? ray.init itself tries again and again, and hears no signal meanwhile."""
    head = address.removeprefix("ray://")
    if ":" not in head:
        return  # "auto": a Ray of this machine
    host, _, port = head.rpartition(":")
    check = "check the address, that `ray start --head` runs there, and that no firewall is between"
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise WorkerLost(f"no Ray cluster answers at {address} ({error}): {check}") from error
    if head != address:
        return  # Ray's client: another protocol
    said: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    raylet: Any = ray._raylet

    def ask() -> None:
        try:
            raylet.GcsClient(address=address).internal_kv_keys(b"rookery", None, timeout=JOIN_SECONDS)
            said.put(None)
        except BaseException as error:
            said.put(error)

    threading.Thread(target=ask, name="ray-ask", daemon=True).start()
    answer = _answer(said, JOIN_SECONDS)
    if isinstance(answer, exceptions.AuthenticationError):
        raise RuntimeRefused(
            f"the cluster at {address} does not take our token: set RAY_AUTH_MODE=token and put the cluster's token into "
            f"~/.ray/auth_token, or into RAY_AUTH_TOKEN ({str(answer).splitlines()[0]})"
        ) from answer
    if answer is not None:
        raise WorkerLost(f"no Ray cluster answers at {address} ({str(answer).splitlines()[0]}): {check}") from answer


def _answer(said: queue.SimpleQueue[BaseException | None], seconds: float) -> BaseException | None:
    """Wait for another thread's answer in short waits: a signal's handler runs between them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            return said.get(timeout=0.1)
    return TimeoutError(f"something listens there, but no head of a Ray said a word for {seconds:g} s")


def _leave(own: Path | None) -> None:
    """ray.shutdown without its head: it may wait for it for ever, and so may what Ray does at exit.

    own: the directory of a Ray that we started, whose agents would outlive their head by a minute."""
    if own is not None:
        end(own)
        node: Any = ray._private.worker._global_node
        if node is not None:  # it would make the directory anew, to remove from it what was spilled
            node.destroy_external_storage = lambda: None
    if not _raylet.gone.is_set():
        ending = threading.Thread(target=ray.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)
        if not ending.is_alive():
            return
    atexit.unregister(ray.shutdown)


def _into_the_log() -> None:
    """What Ray has to say of dead workers it prints to stdout, whatever it was told: here it goes to the run's log."""
    if hasattr(worker := ray._private.worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, *_, **__: _logger.info("ray: %s", " ".join(data.get("lines", ())))


def _loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def _remove(directory: Path) -> None:
    """Of a Ray that we started and that has ended, as far as it does so by itself."""
    global _started_here
    _started_here = False
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    end(directory)
    shutil.rmtree(directory, ignore_errors=True)
    if (watcher := _watchers.pop(directory, None)) is not None:
        watcher.kill()
        watcher.wait()


def _sweep() -> None:
    """Directories of Rays whose driver was killed: their processes ended with it, their files did not."""
    for directory in ROOT.glob(f"{PREFIX}*"):
        pid = directory.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and directory.stat().st_uid == os.getuid():
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Ray's processes start, which inherit them; this process itself is left as it was."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers of signals: ray.init takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _translated(error: BaseException, name: str) -> BaseException:
    """Translate Ray's errors: to what a worker raised, as it raised it, or to WorkerLost."""
    if isinstance(error, exceptions.RayTaskError):
        if isinstance(error.cause, RemoteError):
            return error.cause.unpacked(f"{name}, a Ray actor")
        if isinstance(error.cause, exceptions.ObjectLostError):  # of an argument: the task itself was begun
            return ArgumentLost(f"what {name} was to be given is gone: {str(error.cause).splitlines()[0]}")
        if isinstance(error.cause, BaseException):
            error.cause.add_note(f"in {name}, a Ray actor:\n{error}")
            return error.cause
    if isinstance(error, LOST):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = [line for line in lines if not line.startswith(("class_name", "actor_id", "namespace"))]
        return WorkerLost(f"{name} is gone ({type(error).__name__}): {' '.join(words)[:400]}")
    return error


def _settle(future: Future, value: Any = None, error: BaseException | None = None) -> None:
    """Settle a future once: a worker that was given up may still answer."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(value) if error is None else future.set_exception(error)


def _wired(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Write a call as an actor takes it: `method keyword ...`, and all values side by side, so that Ray resolves each."""
    return " ".join((method.__name__, *kwargs)), *args, *kwargs.values()


def _reference(value: Any) -> Any:
    """In a list, too: what is there is given to the worker as views of the store."""
    if isinstance(value, list) and any(isinstance(item, (Shared, ray.ObjectRef)) for item in value):
        return [item.ref() if isinstance(item, Shared) else item for item in value]
    return value.ref() if isinstance(value, Shared) else value


def _given(value: Any) -> Any:
    """What a worker is given for an argument; None for what was lost with the machine that it lay on."""
    if not isinstance(value, list) or not any(isinstance(item, ray.ObjectRef) for item in value):
        return _owned((value,))[0]
    found: list[Any] = []
    for ref in value:
        try:
            found.append(ray.get(ref))
        except LOST:
            found.append(None)
    return found


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray))


def _owned(args: tuple) -> tuple:
    """Copy arrays, which are views of the object store, to this worker's own device, once."""
    return jax.tree.map(lambda x: jnp.array(x) if isinstance(x, np.ndarray) else x, args)


def _plain(tree: Any) -> Any:
    """Replace arrays of a device by numpy arrays."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)
