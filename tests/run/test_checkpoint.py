"""Checkpoints are whole or absent, every flipped bit is found, and a hostile one cannot run code or fill memory."""

import ast
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rookery
from rookery.run import checkpoint, manifest
from rookery.run.checkpoint import CheckpointError, StorageError, load, newest, path_of, prune, save

GOLDEN = Path(__file__).parent / "golden"
PACKAGE = Path(rookery.__file__).parent


def example_tree():
    generator = np.random.default_rng(3)
    return {
        "params": {
            "kernel": generator.normal(size=(7, 5)).astype(np.float32),
            "bias": np.arange(5, dtype=ml_dtypes.bfloat16),
            "frames": generator.integers(0, 255, (3, 4, 4), dtype=np.uint8),
            "eighth": np.array([0.5, 2.0, -1.5], dtype=ml_dtypes.float8_e4m3fn),
        },
        "counters": [1, 2.5, True, None, "naïve \ud800", -0.0, 2**127],
        "odd": (np.float64(0.1), np.zeros((0, 3), np.int16), np.array(7), np.arange(6).reshape(2, 3).T, [], {}, ()),
        "big-endian": np.arange(4, dtype=">i4"),
        "not finite": [math.inf, -math.inf],
    }


def assert_same(found, expected, place="tree"):
    if isinstance(expected, dict):
        assert list(found) == list(expected), place
        for key in expected:
            assert_same(found[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert isinstance(found, list) and len(found) == len(expected), place
        for index, value in enumerate(expected):
            assert_same(found[index], value, f"{place}.{index}")
    elif isinstance(expected, (np.ndarray, np.generic)):
        expected = np.asarray(expected)
        assert found.dtype == expected.dtype.newbyteorder("<"), place
        assert found.shape == expected.shape and np.array_equal(found, expected), place
        assert found.flags.writeable and found.flags.owndata, place
    else:
        assert type(found) is type(expected) and repr(found) == repr(expected), place


def test_every_kind_of_value_comes_back_as_it_was(tmp_path):
    path = save(tmp_path / "update-1", example_tree(), meta={"system": "impala", "steps": 7})
    tree, meta = load(path)
    assert_same(tree, example_tree())
    assert meta == {"system": "impala", "steps": 7} == checkpoint.read_meta(path)
    assert math.isnan(load(save(tmp_path / "update-2", math.nan, meta={}))[0])


def test_large_trees_are_cut_into_several_files_and_put_together_again(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "FILE_BYTES", 1000)
    tree = [np.full(size, size) for size in (10, 60, 200, 3, 0, 90)]
    path = save(tmp_path / "update-1", tree, meta={})
    assert len(list(path.glob("arrays-*.bin"))) >= 3
    assert_same(load(path)[0], tree)


@pytest.mark.parametrize(
    "tree, words",
    [
        ({"a": [object()]}, r"tree\['a'\]\[0\] is a object"),
        ({"a": {1: 2}}, r"tree\['a'\] has the key 1"),
        (np.array([None]), "array of object"),
        (np.array(["x"]), "array of <U1"),
        (np.zeros(2, [("x", "i4")]), "array of"),
        (lambda: 0, "is a function"),
    ],
)
def test_a_tree_that_cannot_be_saved_is_refused_by_name_and_leaves_nothing(tmp_path, tree, words):
    with pytest.raises(TypeError, match=words):
        save(tmp_path / "update-1", tree, meta={})
    assert not list(tmp_path.iterdir())


def test_meta_that_is_not_json_is_refused(tmp_path):
    for meta in ({"x": math.nan}, {"x": object()}):
        with pytest.raises(TypeError, match="plain JSON"):
            save(tmp_path / "update-1", {}, meta=meta)


def test_truncation_of_any_file_at_any_length_is_detected(tmp_path):
    path = save(tmp_path / "update-1", example_tree(), meta={})
    chance = random.Random(1)
    for file in path.iterdir():
        whole = file.read_bytes()
        for length in [0, 1, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(10))]:
            file.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match=file.name):
                load(path)
        file.write_bytes(whole + b"\0")
        with pytest.raises(CheckpointError, match=file.name):
            load(path)
        file.write_bytes(whole)
    load(path)


def test_every_flipped_bit_is_detected(tmp_path):
    path = save(tmp_path / "update-1", example_tree(), meta={"k": 1})
    chance = random.Random(2)
    for file in path.iterdir():
        whole = file.read_bytes()
        for bit in [0, 8 * len(whole) - 1, *(chance.randrange(8 * len(whole)) for _ in range(150))]:
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            with pytest.raises(CheckpointError, match=file.name):
                load(path)
            assert newest(tmp_path)[0] is None
        file.write_bytes(whole)
    load(path)


@pytest.mark.parametrize("missing", ["manifest.json", "arrays-000.bin"])
def test_a_missing_file_is_named(tmp_path, missing):
    path = save(tmp_path / "update-1", example_tree(), meta={})
    (path / missing).unlink()
    with pytest.raises(CheckpointError, match=missing):
        load(path)


def test_the_newest_whole_one_is_taken_and_the_skipped_are_explained(tmp_path):
    for updates in (9, 10, 100, 20):
        save(path_of(tmp_path, updates), {"n": updates}, meta={})
    (tmp_path / "notes").mkdir()
    (tmp_path / "update-999").symlink_to(path_of(tmp_path, 9))
    (path_of(tmp_path, 100) / "manifest.json").write_text("{}")
    path, skipped = newest(tmp_path)
    assert path == path_of(tmp_path, 20)
    assert [bad for bad, _ in skipped] == [path_of(tmp_path, 100)] and "digest" in skipped[0][1]
    assert newest(tmp_path / "none") == (None, [])


def test_the_order_is_that_of_the_numbers_not_of_the_letters_or_the_clock(tmp_path):
    for name in ("step-1000", "update-9", "200", "update-10"):
        save(tmp_path / name, name, meta={})
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["step-1000", "200", "update-10", "update-9"]


def test_prune_never_gives_up_the_last_good_one_for_a_damaged_one(tmp_path):
    for updates in range(5):
        save(path_of(tmp_path, updates), {"x": np.arange(9)}, meta={})
    for updates in (3, 4):
        data = path_of(tmp_path, updates) / "arrays-000.bin"
        data.write_bytes(data.read_bytes()[:5])
    assert prune(tmp_path, 2) == [path_of(tmp_path, 0)]
    assert newest(tmp_path)[0] == path_of(tmp_path, 2)
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ValueError, match="keep=0"):
        prune(tmp_path, 0)


def test_a_second_save_of_the_same_name_replaces_the_first_and_a_foreign_directory_is_left_alone(tmp_path):
    path = path_of(tmp_path, 1)
    save(path, 1, meta={})
    save(path, 2, meta={})
    assert load(path)[0] == 2 and [entry.name for entry in tmp_path.iterdir()] == [path.name]
    (path / "thesis.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"thesis\.txt"):
        save(path, 3, meta={})
    assert load(path)[0] == 2 and (path / "thesis.txt").exists()


def test_what_a_cut_replacement_left_aside_still_counts(tmp_path):
    save(path_of(tmp_path, 7), 7, meta={})
    path_of(tmp_path, 7).rename(tmp_path / "update-0000000007.old")
    assert load(newest(tmp_path)[0])[0] == 7
    save(path_of(tmp_path, 7), 8, meta={})
    assert load(newest(tmp_path)[0])[0] == 8
    assert not (tmp_path / "update-0000000007.old").exists()


# ---------------------------------------------------------------------------------------------- hostile content


def forge(path: Path, body) -> None:
    """A manifest whose own digest is right: only what it says is wrong."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    (path / "manifest.json").write_bytes(b'{"sha256": "' + digest + b'", "body": ' + text + b"}\n")


def body_of(path: Path):
    return json.loads((path / "manifest.json").read_bytes())["body"]


def edit(**changes):
    return lambda body: body.update(changes)


def array(*entry):
    return edit(tree={"array": list(entry)})


def file_name(name):
    return lambda body: body["files"][0].update(name=name)


HOSTILE = {
    "parent directory": (file_name("../arrays-000.bin"), "only arrays-NNN.bin"),
    "absolute path": (file_name("/etc/passwd"), "only arrays-NNN.bin"),
    "name with a newline": (file_name("arrays-000.bin\n"), "only arrays-NNN.bin"),
    "name is a list": (file_name(["arrays-000.bin"]), "only arrays-NNN.bin"),
    "file twice": (lambda body: body["files"].append(body["files"][0]), "twice"),
    "negative size": (lambda body: body["files"][0].update(bytes=-1), "no size or digest"),
    "10^12 elements": (array("float32", [10**12], 0, 0), "outside its file"),
    "product overflows 64 bits": (array("uint8", [2**32, 2**32], 0, 0), "outside its file"),
    "no elements but huge axes": (array("uint8", [0, 2**62, 2**62], 0, 0), "shape"),
    "negative axis": (array("uint8", [-1], 0, 0), "shape"),
    "boolean axis": (array("uint8", [True], 0, 0), "shape"),
    "too many axes": (array("uint8", [1] * 65, 0, 0), "shape"),
    "offset past the end": (array("uint8", [8], 0, 10**9), "outside its file"),
    "negative offset": (array("uint8", [8], 0, -8), "offset"),
    "file not listed": (array("uint8", [8], 5, 0), "not listed"),
    "overlap (memory amplified)": (edit(tree=[{"array": ["uint8", [64], 0, 0]}] * 1000), "over another"),
    "object dtype": (array("object", [1], 0, 0), "only numbers"),
    "object dtype, short name": (array("O", [1], 0, 0), "only numbers"),
    "structured dtype": (array([["x", "O"]], [1], 0, 0), "only numbers"),
    "name of a module": (array("os.system", [1], 0, 0), "only numbers"),
    "other attribute of ml_dtypes": (array("finfo", [1], 0, 0), "only numbers"),
    "class to import": (edit(tree={"py/object": "os.system"}), "unknown kind"),
    "two kinds in one": (edit(tree={"dict": {}, "float": "nan"}), "unknown kind"),
    "float by name": (edit(tree={"float": "__import__"}), "unknown kind"),
    "no tree": (lambda body: body.pop("tree"), "no tree"),
    "format as text": (edit(format="1"), "never existed"),
    "format 0": (edit(format=0), "never existed"),
    "files not a list": (edit(files={}), "list of files"),
    "file not an object": (edit(files=["arrays-000.bin"]), "list of files"),
}


@pytest.mark.parametrize("change, words", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_manifest_is_refused(tmp_path, change, words):
    path = save(tmp_path / "update-1", {"x": np.arange(100)}, meta={})
    body = body_of(path)
    change(body)
    forge(path, body)
    with pytest.raises(CheckpointError, match=words) as caught:
        load(path)
    assert "manifest.json" in str(caught.value)


@pytest.mark.parametrize(
    "text, words",
    [
        (b"[" * 100_000, "too deeply"),
        (b'{"format":1,"files":[],"meta":{},"tree":' + b"[" * 500 + b"]" * 500 + b"}", "too deeply"),
        (b'{"format":1,"format":1,"files":[],"tree":null,"meta":{}}', "twice"),
        (b'{"format":1,"files":[],"tree":NaN,"meta":{}}', "NaN"),
        (b'{"format":1,"files":[],"tree":' + b"9" * 5000 + b',"meta":{}}', "JSON"),
        (b"[]", "not an object"),
        (b"\xff\xfe", "JSON"),
        (b"\x80\x04cos\nsystem\n(S'true'\ntR.", "JSON"),
    ],
    ids=["deep list", "deep tree", "duplicate keys", "NaN", "long number", "list", "bytes", "pickle"],
)
def test_malformed_json_is_refused(tmp_path, text, words):
    path = save(tmp_path / "update-1", {}, meta={})
    forge(path, text)
    with pytest.raises(CheckpointError, match=words):
        load(path)


def test_links_pipes_and_sparse_giants_are_refused(tmp_path):
    path = save(tmp_path / "update-1", {"x": np.arange(100)}, meta={})
    data = path / "arrays-000.bin"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link"):
        load(path)
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load(path)
    data.unlink()
    with open(data, "wb") as file:
        file.truncate(10**13)
    body = body_of(path)
    body["files"][0]["bytes"] = 10**13
    body["tree"] = {"array": ["uint8", [10**13], 0, 0]}
    forge(path, body)
    with pytest.raises(CheckpointError, match="needs 10,000,000,000,000 bytes"):
        load(path)
    with open(path / "manifest.json", "wb") as file:
        file.truncate(10**10)
    with pytest.raises(CheckpointError, match="more than any manifest"):
        load(path)


def test_a_newer_format_says_who_wrote_it_and_what_to_do(tmp_path):
    path = save(tmp_path / "update-1", {}, meta={})
    forge(path, {**body_of(path), "format": 99, "rookery": "9.1.0"})
    with pytest.raises(CheckpointError, match=r"written by rookery 9\.1\.0 \(format 99\), this is .* Install that rookery"):
        load(path)


@pytest.mark.parametrize("version", range(1, manifest.FORMAT + 1))
def test_checkpoints_of_every_released_format_can_be_read(version):
    tree, meta = load(GOLDEN / f"format-{version}")
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_same(tree, {"w": weights, "b": np.ones(2, ml_dtypes.bfloat16), "n": [3, None]})
    assert meta == {"system": "golden"}


def test_nothing_on_the_load_path_can_run_code():
    forbidden = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    for name in ("checkpoint", "manifest", "versions", "directory"):
        for node in ast.walk(ast.parse((PACKAGE / "run" / f"{name}.py").read_text())):
            names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            assert not names & forbidden and getattr(node, "module", None) not in forbidden, name
            called = node.func if isinstance(node, ast.Call) else None
            assert getattr(called, "id", "") not in {"eval", "exec", "__import__", "compile"}, name
            assert not (getattr(called, "attr", "") == "load" and getattr(called.value, "id", "") == "np"), name


# -------------------------------------------------------------------------------------------------------- faults

SAVE_LOOP = """
import sys
import numpy as np
from pathlib import Path
from rookery.run import checkpoint
assert "jax" not in sys.modules
root, start = Path(sys.argv[1]), int(sys.argv[2])
tree = {"x": np.arange(50_000), "y": [np.full(1000, 7)] * 20}
for updates in range(start, start + 10_000):
    checkpoint.save(checkpoint.path_of(root, updates // 2), tree, meta={"updates": updates})  # each name twice
    checkpoint.prune(root, 2)
    print(updates, flush=True)
"""


def test_a_killed_save_never_costs_a_checkpoint_that_was_reported(tmp_path):
    chance, start = random.Random(5), 0
    for _ in range(15):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_LOOP, tmp_path, str(start)], stdout=subprocess.PIPE, cwd=PACKAGE.parent
        )
        child.stdout.readline()
        time.sleep(chance.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split()
        child.wait()
        reported = max([start, *map(int, lines)])
        path, _ = newest(tmp_path)
        assert path is not None
        found = checkpoint.read_meta(path)["updates"]
        assert found >= reported
        start = found + 1
    save(path_of(tmp_path, start), 0, meta={})
    assert not list(tmp_path.glob(".tmp-*")), "what the killed saves left behind is swept by the next save"


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(small_disk):
    save(path_of(small_disk, 1), {"x": np.ones(50_000)}, meta={})
    before = os.statvfs(small_disk).f_bfree
    for size in (100_000, before * 4096 // 8):  # the arrays do not fit; they do, but the manifest does not
        with pytest.raises(StorageError, match=r"No space left.*Make room") as caught:
            save(path_of(small_disk, 2), {"x": np.ones(size)}, meta={})
        assert caught.value.exit_code == 6
    assert [path.name for path in small_disk.iterdir()] == [path_of(small_disk, 1).name]
    assert os.statvfs(small_disk).f_bfree == before and load(path_of(small_disk, 1))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StorageError, match="Read-only"):
        save(path_of(small_disk, 2), {}, meta={})
    assert newest(small_disk)[0] == path_of(small_disk, 1)
    assert prune(small_disk, 1) == []
