import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery_bench import process


def python(code: str, *, timeout: float = 20.0, **how) -> process.Finished:
    return process.run([sys.executable, "-c", code], timeout=timeout, **how)


def test_the_answer_is_the_last_json_object_among_the_chatter():
    assert process.last_json('loading\n{"a": 1}\n{not json}\n[1, 2]\n{"b": 2}\nbye\n') == {"b": 2}
    assert process.last_json("nothing\n[1]\n") is None


def test_a_program_is_timed_from_outside_to_its_exit():
    done = python("import time; print('{\"x\": 3}'); time.sleep(0.3)")
    assert done.answer == {"x": 3} and done.failure is None
    assert 0.3 <= done.seconds < 5.0


def test_a_program_that_fails_says_why():
    lost = python("import sys; print('remember the milk', file=sys.stderr); sys.exit(3)")
    assert "status 3: remember the milk" in (lost.failure or "")
    assert "no JSON line" in (python("print('done')").failure or "")
    assert "cannot be started" in (process.run(["/nowhere/python"], timeout=1.0).failure or "")


def test_an_answer_of_a_failed_program_does_not_count():
    done = python("import sys; print('{\"x\": 3}'); sys.exit(1)")
    assert done.failure and done.answer == {}


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path):
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    done = python(code, timeout=1.0)
    assert "did not end within 1 s" in (done.failure or "") and done.seconds < 15.0
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_is_watched_while_it_runs():
    seen: list[int] = []
    python("import time; time.sleep(0.5); print('{}')", watch=seen.append, watch_seconds=0.1)
    assert len(seen) >= 2 and len(set(seen)) == 1


def test_the_tree_of_a_process_holds_its_children_and_their_memory():
    child = subprocess.Popen([sys.executable, "-c", "import time; x = bytearray(64_000_000); time.sleep(60)"])
    try:
        deadline = time.monotonic() + 10
        while process.resident_mb(child.pid) < 64 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert child.pid in process.tree(os.getpid())
        assert process.resident_mb(child.pid) >= 64
        assert process.threads(child.pid) == 1
    finally:
        child.kill()
        child.wait()
    assert child.pid not in process.tree(os.getpid())


def test_cpu_seconds_grow_with_work_and_not_with_sleep():
    begin = process.cpu_seconds()
    time.sleep(0.2)
    slept = process.cpu_seconds() - begin
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert process.cpu_seconds() - begin - slept >= 0.19
    assert slept < 0.1


def test_a_listening_port_is_found_and_a_foreign_one_is_not():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert port in process.listening([os.getpid()])
        assert process.listening([1]) == [] or port not in process.listening([1])
    assert port not in process.listening([os.getpid()])


def test_only_sockets_in_the_listening_state_are_ports():
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1\n"
        "   1: 0100007F:1F91 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 78 1\n"
        "   2: 0100007F:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 79 1\n"
    )
    assert process.listening_ports(table, {"socket:[77]", "socket:[78]"}) == {8080}


def test_what_inherits_the_mark_is_found_even_when_its_parent_is_gone():
    code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid(); time.sleep(60)"
    subprocess.run([sys.executable, "-c", code], env=dict(os.environ) | {process.MARK: "orphan-test"}, check=True)
    (orphan,) = process.marked("orphan-test")
    os.kill(orphan, 9)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory here")
def test_a_segment_that_nobody_maps_was_left_behind():
    from multiprocessing import shared_memory

    before = process.shared_memory()
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert segment.name.lstrip("/") in process.shared_memory() - before
        assert process.unused({segment.name.lstrip("/")}) == set()
        segment.close()
        assert process.unused({segment.name.lstrip("/")}) == {segment.name.lstrip("/")}
    finally:
        segment.unlink()


def test_what_a_program_said_last_is_told_without_the_directories_of_the_machine():
    said = 'Traceback:\n  File "/some/where/lib/peer/tree.py", line 2, in f\n    raise Missing("a/b, 3/4 of it")\n'
    assert process.tail(said) == 'Traceback: / File "tree.py", line 2, in f / raise Missing("a/b, 3/4 of it")'
    assert process.tail("cannot open /home/somebody/x.txt: no such file") == "cannot open x.txt: no such file"
    assert process.tail("\n \n") == "(it said nothing)"
