"""Which machines are taken for cut off: those that were heard and are silent, and no others."""

from __future__ import annotations

import socket

from rookery.runtime.ray.reachability import Reachability, connected

MACHINES = {"a": ("10.0.0.1", 1), "b": ("10.0.0.2", 1)}


class Network:
    """A clock that the test moves, and the machines that answer."""

    def __init__(self, *up: str) -> None:
        self.time, self.up = 0.0, set(up)
        self.reachability = Reachability(
            reached=lambda machines, seconds: self.up & {*machines}, clock=lambda: self.time, silent_seconds=6.0
        )

    def after(self, *seconds: float, machines: dict = MACHINES) -> set[str]:
        for each in seconds:
            self.time += each
            silent = self.reachability.look(machines)
        return silent


def test_a_machine_is_cut_off_after_six_seconds_of_silence_and_back_with_its_first_answer() -> None:
    network = Network("a", "b")
    assert network.after(1.0) == set()
    network.up = {"a"}
    assert network.after(*[1.0] * 6) == set() and network.after(1.0) == {"b"}
    network.up = {"a", "b"}
    assert network.after(1.0) == set()


def test_one_that_was_never_heard_or_has_left_the_cluster_is_not_cut_off() -> None:
    network = Network("a")
    assert network.after(*[1.0] * 20) == set(), "b may be behind a firewall"
    network.up = set()
    assert network.after(*[1.0] * 7) == {"a"}
    assert network.after(1.0, machines={"b": MACHINES["b"]}) == set()
    assert network.after(1.0) == set(), "it has joined again, and was not heard yet"


def test_a_driver_that_was_stopped_itself_blames_nobody() -> None:
    network = Network("a", "b")
    network.after(1.0)
    network.up = set()
    assert network.after(30.0) == set()
    assert network.after(*[1.0] * 6) == set() and network.after(1.0) == {"a", "b"}


def test_an_open_port_answers_and_neither_a_closed_one_nor_a_hole_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = server.getsockname()[1], other.getsockname()[1]
        other.close()
        machines = {"open": ("127.0.0.1", port), "closed": ("127.0.0.1", closed), "hole": ("192.0.2.1", 9)}
        assert connected(machines, 0.2) == {"open"}
    assert connected({}, 0.2) == set()
