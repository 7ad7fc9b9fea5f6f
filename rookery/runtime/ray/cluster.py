"""The Ray that this process uses: started here, or joined at an address; and left again.

One that is started here lives in a directory that only its user can enter, asks for a token that only its user can read, has
no dashboard, and leaves nothing behind. `raylet` watches the process through which Ray is reached, whoever started it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import logging
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from rookery import signals
from rookery.runtime.interface import RuntimeRefused, WorkerLost
from rookery.runtime.ray.cleanup import MARK, await_death, end, watch_over
from rookery.runtime.ray.errors import ClusterLost, InsecureCluster

ONE_THREAD = {"NPROC": "1", "JAX_PLATFORMS": "cpu"}  # XLA on one core each; the Eigen flag alone leaves it two
PREFIX = "rookery-ray-"
ROOT = Path("/tmp")  # Ray's sockets lie below, and the path of a socket has 107 characters: TMPDIR may be too long
CLOSE_SECONDS = 5.0
REACH_SECONDS, JOIN_SECONDS = 5.0, 10.0  # for an address to accept a connection, and then for a head to answer
_logger = logging.getLogger(__name__)
_TOKEN = secrets.token_hex(32)  # of every Ray that this process starts: Ray reads it once and keeps it


class Raylet:
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
        """Raise ClusterLost where it is gone."""
        if self.gone.is_set():
            raise ClusterLost("the Ray of this machine is gone: its raylet was ended. Resume the run from its last checkpoint.")


raylet = Raylet()


started_here = False
_watchers: dict[Path, subprocess.Popen[bytes]] = {}  # over each Ray that we started


def start(*, cpus: int) -> Path:
    """Start a Ray on this machine, in a directory that only this user can enter (Ray opens its own to everybody)."""
    global started_here
    _remove_leftovers()
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=ROOT))
    signals.before_leaving(functools.partial(remove, directory))
    token = os.open(directory / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(token, "w") as file:
        file.write(_TOKEN)
    _watchers[directory] = watch_over(directory)
    os.environ.pop("RAY_AUTH_MODE", None)  # unset, ray.init turns tokens on; set after the import of ray, it is not seen
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(directory / "token")
    try:
        inherited = ONE_THREAD | {"RAY_USAGE_STATS_ENABLED": "0", MARK: str(directory), "SPT_NOENV": "1"}
        with _keeping_signal_handlers(), _inherited(inherited), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork")  # what ray.init forks becomes another program at once
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=str(directory / "r"),
                logging_level=logging.ERROR, log_to_driver=False,
            )  # fmt: skip
    except BaseException:
        remove(directory)
        raise
    started_here = True
    raylet.watch()
    _redirect_output()
    return directory


def join(address: str, *, strict: bool = False) -> None:
    """Connect to a cluster that runs already.

    strict: a cluster of other machines that asks for no token is refused, and not only warned of."""
    probe_head(address)
    try:
        with _keeping_signal_handlers():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, exceptions.RayError, RuntimeError, ValueError) as error:
        raise WorkerLost(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error
    raylet.watch()
    _redirect_output()
    nodes = [node["NodeManagerAddress"] for node in ray.nodes()]
    if os.environ.get("RAY_AUTH_MODE") != "token" and not all(map(_is_loopback, nodes)):
        insecure = (
            f"THE RAY CLUSTER AT {address} ASKS NOBODY FOR A TOKEN. Whoever reaches its ports can run code on "
            f"{len(nodes)} machines as you. Set RAY_AUTH_MODE=token on each before `ray start`, and here."
        )
        if strict:
            ray.shutdown()
            raise RuntimeRefused(f"{insecure} Refused, for --strict-security was asked for.")
        warnings.warn(insecure, InsecureCluster, stacklevel=4)


def probe_head(address: str) -> None:
    """Probe whether a head is there and takes our token.

    ray.init itself tries again and again, and hears no signal meanwhile."""
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
    core: Any = ray._raylet

    def ask() -> None:
        try:
            core.GcsClient(address=address).internal_kv_keys(b"rookery", None, timeout=JOIN_SECONDS)
            said.put(None)
        except BaseException as error:
            said.put(error)

    threading.Thread(target=ask, name="ray-ask", daemon=True).start()
    answer = _await_answer(said, JOIN_SECONDS)
    if isinstance(answer, exceptions.AuthenticationError):
        raise RuntimeRefused(
            f"the cluster at {address} does not take our token: set RAY_AUTH_MODE=token and put the cluster's token into "
            f"~/.ray/auth_token, or into RAY_AUTH_TOKEN ({str(answer).splitlines()[0]})"
        ) from answer
    if answer is not None:
        raise WorkerLost(f"no Ray cluster answers at {address} ({str(answer).splitlines()[0]}): {check}") from answer


def _await_answer(said: queue.SimpleQueue[BaseException | None], seconds: float) -> BaseException | None:
    """Wait for another thread's answer in short waits: a signal's handler runs between them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            return said.get(timeout=0.1)
    return TimeoutError(f"something listens there, but no head of a Ray said a word for {seconds:g} s")


def leave(own: Path | None) -> None:
    """Shut Ray down without its head: ray.shutdown may wait for it for ever, and so may what Ray does at exit.

    own: the directory of a Ray that we started, whose agents would outlive their head by a minute."""
    if own is not None:
        end(own)
        node: Any = ray._private.worker._global_node
        if node is not None:  # it would make the directory anew, to remove from it what was spilled
            node.destroy_external_storage = lambda: None
    if not raylet.gone.is_set():
        ending = threading.Thread(target=ray.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)
        if not ending.is_alive():
            return
    atexit.unregister(ray.shutdown)


def _redirect_output() -> None:
    """Send to the run's log what Ray says of dead workers: it prints that to stdout, whatever it was told."""
    if hasattr(worker := ray._private.worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, *_, **__: _logger.info("ray: %s", " ".join(data.get("lines", ())))


def _is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def remove(directory: Path) -> None:
    """Remove all of a Ray that we started and that has ended, as far as it does so by itself."""
    global started_here
    started_here = False
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    end(directory)
    shutil.rmtree(directory, ignore_errors=True)
    if (watcher := _watchers.pop(directory, None)) is not None:
        watcher.kill()
        watcher.wait()


def _remove_leftovers() -> None:
    """Remove directories of Rays whose driver was killed: their processes ended with it, their files did not."""
    for directory in ROOT.glob(f"{PREFIX}*"):
        pid = directory.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and directory.stat().st_uid == os.getuid():
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _inherited(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Ray's processes start, which inherit them; this process itself is left as it was."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def _keeping_signal_handlers() -> Iterator[None]:
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
