"""`rookery show`: the figure of a system."""

from __future__ import annotations

import json

from rookery.commands.parsing import parse_system


def show(args: list[str]) -> int:
    cfg, flags = parse_system("show", args, env_default="CartPole-v1")
    from rookery.run.show import describe

    graph, text = describe(cfg)
    print(json.dumps(graph) if flags["json"] else text)
    return 0
