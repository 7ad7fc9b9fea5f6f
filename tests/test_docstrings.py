"""Docstrings of functions begin with a verb in the imperative ("Return …", "Wait …"), and so say what a call does.

No list of verbs could be complete, so words that are none are listed instead: those that begin a noun phrase, a condition or a
question, and the third person of common verbs. A property reads as a noun; `__init__` may explain its parameters by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[1] / "rookery"
NO_VERBS = {
    "The", "A", "An", "Of", "What", "Who", "Whom", "Whose", "Which", "Where", "When", "How", "Why", "Is", "Are", "Was",
    "Were", "Does", "Has", "Have", "Can", "May", "Must", "Every", "Each", "All", "Any", "Some", "One", "Two", "Several",
    "No", "None", "In", "Into", "On", "At", "By", "To", "From", "For", "With", "Without", "Within", "Below", "Above",
    "Beside", "Before", "After", "Until", "While", "Because", "Whether", "Those", "That", "These", "This", "There", "Here",
    "Then", "It", "Its", "They", "Their", "We", "Our", "If", "As", "Only", "Not", "Nothing", "Nobody", "Everything",
    "Everyone", "So", "Such", "And", "Or", "But", "Also", "More", "Most", "Less", "Least", "Between", "Both", "Either",
    "Neither", "Than", "Through", "Called", "True", "False", "Over", "Independent",
}  # fmt: skip
THIRD_PERSON = {
    "Adds", "Advances", "Allocates", "Allows", "Answers", "Appends", "Applies", "Asks", "Assigns", "Begins", "Blocks",
    "Broadcasts", "Builds", "Calls", "Changes", "Checks", "Chooses", "Claims", "Cleans", "Clips", "Closes", "Collects",
    "Compares", "Computes", "Continues", "Converts", "Copies", "Counts", "Creates", "Cuts", "Decides", "Decodes", "Derives",
    "Describes", "Discards", "Divides", "Draws", "Drops", "Encodes", "Ends", "Evaluates", "Explains", "Fetches", "Fills",
    "Finds", "Fits", "Folds", "Formats", "Frees", "Gathers", "Gives", "Goes", "Guesses", "Hands", "Holds", "Initialises",
    "Inserts", "Inspects", "Joins", "Keeps", "Kills", "Leaves", "Links", "Lists", "Loads", "Locks", "Looks", "Makes", "Maps",
    "Marks", "Measures", "Merges", "Mixes", "Moves", "Multiplies", "Names", "Needs", "Normalises", "Notes", "Opens", "Parses",
    "Passes", "Plays", "Pops", "Prints", "Publishes", "Pulls", "Pushes", "Puts", "Queues", "Raises", "Reads", "Receives",
    "Records", "Reduces", "Refuses", "Registers", "Releases", "Removes", "Replaces", "Replays", "Reports", "Rescales",
    "Resets", "Restarts", "Restores", "Resumes", "Returns", "Runs", "Samples", "Saves", "Says", "Scales", "Selects",
    "Sends", "Serves", "Sets", "Shows", "Splits", "Stands", "Starts", "Steps", "Stops", "Stores", "Sums", "Takes", "Tells",
    "Tests", "Trains", "Tries", "Turns", "Updates", "Waits", "Walks", "Widens", "Wraps", "Writes", "Yields",
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[Function, str]]:
    """Yield every function that has a docstring, inner ones and methods included, properties not."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and not any(map(is_property, node.decorator_list)) and (text := ast.get_docstring(node)):
            yield node, text


def is_property(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).split(".")[-1] in ("property", "cached_property", "setter")


def complaint(function: Function, text: str) -> str | None:
    """Say what is wrong with the first word of a docstring; None: nothing."""
    word, arguments = text.split()[0], function.args
    names = {arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    if function.name == "__init__" and re.match(r"\w+(, \w+)*:", text) and re.match(r"\w+", text)[0] in names:
        return None
    if not re.fullmatch(r"[A-Z][a-z]+(-[a-z]+)*[:,;.]?", word):
        return f"{word!r} is no word that begins a sentence"
    word = word.rstrip(":,;.")
    if word in NO_VERBS:
        return f"{word!r} is no verb"
    if word in THIRD_PERSON:
        return f"{word!r} is the third person"
    if word == "Do" and "?" in text.split(".")[0]:  # "Do nothing: …" is an order
        return "it is a question"
    return None


def complaints(source: str, name: str) -> list[str]:
    found = ((function, complaint(function, text)) for function, text in documented(ast.parse(source)))
    return [f"{name}:{function.lineno} {function.name}: {wrong}" for function, wrong in found if wrong]


def folders() -> list[str]:
    names = sorted(path.name for path in LIBRARY.iterdir() if path.is_dir() and any(path.glob("*.py")))
    return [".", *names]


@pytest.mark.parametrize("folder", folders())
def test_the_docstring_of_a_function_begins_with_a_verb(folder):
    paths = sorted(LIBRARY.glob("*.py") if folder == "." else (LIBRARY / folder).rglob("*.py"))
    assert paths
    wrong = [line for path in paths for line in complaints(path.read_text(), str(path.relative_to(LIBRARY.parent)))]
    assert not wrong, "\n" + "\n".join(wrong)


GOOD = [
    "Return the mean.", "Drain: what is in flight is learned from.", "Save, evaluate and close.", "Size up the parameters.",
    "Top-up every collector.", "Do nothing: it is written already.", "Process all that have ended.", "Pass it on.",
]  # fmt: skip
BAD = [
    "The mean.", "Of the learner, or of each.", "Whether it is done.", "How it stands.", "Is it there?", "Do they share? Yes.",
    "None where it is not.", "As format 1 had it.", "Returns the mean.", "Refuses what does not fit.", "snapshot: of the run.",
    "[B] -> [B] lanes.", "(path, keys), in order.", "`base` with the options.", "0:07, 12:30.", "-> when.", "--num-envs 64",
    "n-step transitions.",
]  # fmt: skip


def function(text: str, head: str = "def f(x, y=0):", above: str = "") -> str:
    return f'{above}\n{head}\n    """{text}"""\n'


@pytest.mark.parametrize("text", GOOD)
def test_a_verb_is_accepted(text):
    assert complaints(function(text), "fake.py") == []


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_verb_is_refused(text):
    assert len(complaints(function(text), "fake.py")) == 1


def test_methods_and_inner_functions_are_looked_at_and_the_place_is_named():
    source = 'class A:\n    def m(self):\n        """The mean."""\n        async def inner():\n            """Returns it."""\n'
    assert complaints(source, "fake.py") == ["fake.py:2 m: 'The' is no verb", "fake.py:4 inner: 'Returns' is the third person"]


def test_properties_classes_and_parameters_of_init_may_be_nouns():
    noun = "The mean of all."
    for above in ("@property", "@functools.cached_property", "@x.setter"):
        assert complaints(function(noun, above=above), "fake.py") == []
    assert complaints(f'"""{noun}"""\nclass A:\n    """{noun}"""\n', "fake.py") == []
    init = "def __init__(self, x, y=0):"
    for text in ("x: where it is.", "x, y: where they are."):
        assert complaints(function(text, init), "fake.py") == []
    for text in ("z: no parameter.", noun):
        assert complaints(function(text, init), "fake.py")
    assert complaints(function("x: where it is."), "fake.py")
