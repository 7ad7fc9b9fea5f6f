"""What each command of `rookery` does: a file for each. Its function takes the words that follow and returns the exit status.

Only the module of the command that was typed is imported.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()  # as near to the typed command as this process can tell

COMMANDS = {  # name -> module in this folder, and its function
    "train": "train:train",
    "resume": "train:resume",
    "eval": "evaluate:evaluate",
    "watch": "watch:watch",
    "video": "video:video",
    "record": "record:record",
    "plot": "plot:plot",
    "compare": "compare:compare",
    "show": "show:show",
    "config": "config:config",
    "list": "listing:list_things",
    "doctor": "doctor:doctor",
    "bench": "bench:bench",
}
