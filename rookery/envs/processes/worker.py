"""The program of a worker process: hosts some environments of a ProcessPool and steps them when told.

What travels at each step is in shared memory (`shared_memory.Board`): the pool writes actions and, per environment, the
ticket of its request (`want`), then rings the `go` bell (an eventfd); the worker steps, writes its answers, then the tickets
(`done`), and rings the `rang` bell. A worker that dies in between has not written its tickets, so nobody reads what it left
half done. Everything rare (making environments, failures, notes, snapshots) goes through the mailbox, a socket.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from rookery.envs.gym_envs import GymEnvs
from rookery.envs.probe import probe
from rookery.envs.processes import shared_memory
from rookery.envs.processes.mailbox import Mailbox
from rookery.envs.processes.shared_memory import POLL_SECONDS
from rookery.envs.processes.step_server import StepServer, said


def serve(end: socket.socket) -> None:
    """Serve a pool, from the first message to its end; or, once, whoever asks what an environment costs."""
    mail = Mailbox(end)
    request = mail.receive()
    try:
        sys.path[:] = request["path"]
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        make_env = pickle.loads(request["make"])
        if request["type"] == "probe":
            mail.send("probed", result=probe(make_env, request["name"], seconds=request["seconds"]))
            while mail.waiting(60):  # how long a bell takes to wake somebody, by echo
                if mail.receive()["type"] == "bye":
                    return
                mail.send("echo")
            return
        gym_envs = GymEnvs(make_env, request["ids"], request["num_envs"], name=request["name"], clip=request["clip"])
    except BaseException as error:
        mail.send("failed", message=said(error), traceback=traceback.format_exc())
        return
    gc.collect()
    gc.freeze()  # what exists now stays: the collector need not look at it again
    mail.send("made", observation=gym_envs.observation, action=gym_envs.action, jax="jax" in sys.modules)
    with suppress(EOFError, ConnectionError):  # the pool is gone
        attached = mail.receive()
        if attached["type"] == "attach":
            _Loop(mail, gym_envs, attached).run()


class _Loop:
    """Wait for the bell, let the step server answer, ring."""

    def __init__(self, mail: Mailbox, gym_envs: GymEnvs, attached: dict[str, Any]) -> None:
        self.mail, self.gym_envs = mail, gym_envs
        memory, self.go, self.rang = attached["fds"]
        described = shared_memory.describe(gym_envs.observation, gym_envs.action, attached["num_envs"])
        board = shared_memory.attach(memory, described)
        os.close(memory)
        tell_failure = lambda env, message: mail.send("failure", env=env, message=message)
        tell_note = lambda text: mail.send("note", text=text)
        tell_clipped = lambda count: mail.send("clipped", count=count)
        self.step_server = StepServer(
            gym_envs, board, attached["index"], tell_failure=tell_failure, tell_note=tell_note, tell_clipped=tell_clipped
        )
        self.gap = 1.0  # seconds of the last wait

    def run(self) -> None:
        """Answer requests and messages until the pool is closed."""
        while True:
            if self.step_server.serve():
                os.eventfd_write(self.rang, 1)
            elif self.wait():
                while self.mail.waiting():
                    if not self.read_mail():
                        return

    def wait(self) -> bool:
        """Wait until there is something to do. True: it fell asleep, as it does unless the last wait was so short that
        falling asleep would cost more.

        Waking a core that sleeps takes 50 to 100 µs. Who is asked again at once, as in a tight loop over quick
        environments, looks out for a moment, giving way to whoever wants the core; who waits longer sleeps.
        """
        begin = time.perf_counter()
        if self.gap < POLL_SECONDS:
            while (now := time.perf_counter()) - begin < POLL_SECONDS:
                if self.step_server.is_wanted():
                    self.gap = now - begin
                    return False
                os.sched_yield()
        os.eventfd_read(self.go)
        self.gap = time.perf_counter() - begin
        return True

    def read_mail(self) -> bool:
        """Do what a message asks. False: the pool is closed."""
        message = self.mail.receive()
        if message["type"] == "snapshot":
            self.mail.send("snapshot", saved=self.gym_envs.snapshot())
        elif message["type"] == "restore":
            self.gym_envs.restore(message["saved"])
            self.mail.send("restored")
        else:
            self.gym_envs.close()
            return False
        return True
