"""The code blocks of a page, and running them as a reader would: in order, in one empty directory, in one Python namespace.

A comment right above a block says what differs in the test:

    <!-- run with: --total-steps 512 -->        words added to each `rookery train` of it
    <!-- run with: 100_000 → 512; a → b -->     words replaced by others; both, with a ; between
    <!-- not run: it needs a cluster -->        why it is left out
    <!-- ends with status 2 -->                 the last command of it is refused
    <!-- said -->                               above a block of text: each line was printed by what is before; … is anything
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery import cli, signals

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)(?P<rest>[^`\n]*)\n(?P<text>.*?)^(?P=fence) *$", re.M | re.S)
NOTE = re.compile(r"<!-- ((?:(?!-->).)+) -->\n\Z", re.S)
RUN = ("python", "bash")
KNOWN = (*RUN, "text", "math", "json", "toml", "py", "")  # py: a signature in the reference; nothing: a figure
PATIENCE = 120  # seconds of a command that has a process of its own
INSTALLS = re.compile(r"\b(pip|pip3|uv|conda|apt|apt-get) +(install|sync|add|uninstall)\b|-m pip\b")
IN_A_TERMINAL = (
    "import os, pty, sys; "
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-m', 'rookery', *sys.argv[1:]])))"
)


class Block(NamedTuple):
    line: int
    language: str
    title: str  # the name of the file that it is: nothing is run, it is written
    text: str
    note: str

    @property
    def skipped(self) -> bool:
        return self.note.startswith("not run: ") or self.note == "test-command"  # which .ci/run runs

    @property
    def status(self) -> int:
        found = re.search(r"ends with status (\d+)", self.note)
        return int(found[1]) if found else 0

    @property
    def shortened(self) -> str:
        """The text as the test runs it."""
        _, with_, words = self.note.partition("run with: ")
        if not with_:
            return self.text
        text = self.text
        for part in words.split(";"):
            old, arrow, new = (word.strip() for word in part.partition("→"))
            if arrow:
                assert old in text, f"line {self.line}: {old!r} is not in the block"
                text = text.replace(old, new)
            else:
                text = re.sub(r"^(rookery train [^#\n\\]+?)(?= *(?:#.*)?\\?$)", rf"\1 {old}", text, flags=re.M)
        return text


def blocks(page: Path) -> list[Block]:
    text, found = page.read_text(), []
    for fence in FENCE.finditer(text):
        above = NOTE.search(text[: fence.start()])
        title = re.search(r'title="([^"]+)"', fence["rest"])
        line = text[: fence.start()].count("\n") + 1
        found.append(Block(line, fence["language"], title[1] if title else "", fence["text"], above[1] if above else ""))
    return found


def commands_of(text: str) -> list[str]:
    """Cut a block into commands: a line each, but for those that go on behind a backslash or hold a text (<<'END')."""
    commands, end = [], None
    for line in text.replace("\\\n", " ").splitlines():
        if end is not None:
            commands[-1] += f"\n{line}"
            end = None if line == end else end
        elif line.strip() and not line.lstrip().startswith("#"):
            commands.append(line)
            here = re.search(r"<<'?(\w+)'?", line)
            end = here[1] if here else None
    return commands


def is_run(block: Block) -> bool:
    return bool(block.title) or (block.language in RUN and not block.skipped)


class Reader:
    """Somebody who types what a page says, block after block."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.names, self.printed = directory, {"__name__": "__main__"}, ""

    def follow(self, page: Path) -> None:
        if "examples/" in page.read_text():  # as in a checkout
            (self.directory / "examples").symlink_to(ROOT / "examples")
        before = set(sys.modules)
        try:
            for block in blocks(page):
                try:
                    self._do(block, page)
                except BaseException as error:
                    error.add_note(f"{page.relative_to(ROOT)}, block in line {block.line}")
                    raise
        finally:
            for name in set(sys.modules) - before:  # modules that the page wrote: the next page may have others of the name
                if str(self.directory) in (getattr(sys.modules[name], "__file__", None) or ""):
                    del sys.modules[name]

    def _do(self, block: Block, page: Path) -> None:
        assert block.language in KNOWN, f"a block of {block.language!r}: is it run, or text?"
        if block.note == "said":
            said = " ".join(self.printed.split())
            for line in block.text.strip().splitlines():
                wanted = ".*".join(map(re.escape, " ".join(line.split()).split("…")))
                assert re.search(wanted, said), f"{line!r} was not said, but:\n{self.printed}"
        elif block.title:
            (self.directory / block.title).write_text(block.text)
        elif is_run(block):
            self.printed = ""
            with self._here():
                if block.language == "python":
                    exec(compile(block.shortened, f"{page}:{block.line}", "exec"), self.names)
                else:
                    self._type(block)

    def _type(self, block: Block) -> None:
        commands = commands_of(block.shortened)
        for command in commands:
            status = self.type(command)
            wanted = block.status if command is commands[-1] else 0
            assert status == wanted, f"{command}: status {status}\n{self.printed}"

    def type(self, command: str) -> int:
        """Run a command: `rookery` in this process, which has imported everything, another by the shell."""
        words = shlex.split(command.split("\n")[0], comments=True)
        assert not INSTALLS.search(command), f"{command}: a test installs nothing; say `not run: it installs the package`"
        if words[:2] == ["rookery", "watch"]:
            command = shlex.join([sys.executable, "-c", IN_A_TERMINAL, *words[1:]])
        elif words[0] == "rookery" and not {"|", "&&", ">", "<"} & set(words):
            return self._rookery(words[1:])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        found = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.printed += found.stdout + found.stderr
        return found.returncode

    def _rookery(self, words: list[str]) -> int:
        patch, out = pytest.MonkeyPatch(), io.StringIO()
        try:
            patch.chdir(self.directory)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", out)
            with warnings.catch_warnings(), pytest.raises(SystemExit) as left:
                cli.main(words)
            return int(left.value.code or 0)
        finally:
            patch.undo()
            signals.unwatch()
            self.printed += out.getvalue()

    @contextlib.contextmanager
    def _here(self) -> Any:
        patch = pytest.MonkeyPatch()
        patch.chdir(self.directory)
        patch.syspath_prepend(str(self.directory))
        try:
            yield
        finally:
            patch.undo()
