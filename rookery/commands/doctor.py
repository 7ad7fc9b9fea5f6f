"""`rookery doctor`: what is right and wrong with this machine, or with an environment."""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rookery.envs.examination import Finding
    from rookery.run.machine import DoctorOptions


def doctor(args: list[str]) -> int:
    import tyro

    from rookery import ranges
    from rookery.run import config, options
    from rookery.run.machine import DoctorOptions, examine_machine

    env = args[0] if args and not args[0].startswith("-") else None
    chosen = tyro.cli(
        DoctorOptions, args=args[1:] if env else args, prog=f"rookery doctor {env or '[ENV]'}", registry=options.NUMBERS
    )  # fmt: skip
    config.refuse([*ranges.problems(chosen)])
    told: dict[str, Any] = {}
    if env is None:
        findings = examine_machine(chosen)
    else:
        if chosen.ray:
            config.refuse(["--ray is about this machine: rookery doctor --ray, without an environment"])
        findings, told = _examined(env, chosen)
    from rookery.run import doctor as words

    status = 2 if any(finding.level == "problem" for finding in findings) else 0
    if chosen.json:
        rows = [finding._asdict() for finding in findings]
        print(json.dumps({"env": env, "ok": status == 0, "findings": rows, **told}))
        return status
    print(words.told(findings, colour=sys.stdout.isatty()))
    print(f"{env or 'this machine'}: {words.summary(findings)}")
    for advice in told.get("recommended", []) if status == 0 else []:
        print(f"  {advice['command']}\n      {advice['why']}")
    return status


def _examined(env: str, chosen: DoctorOptions) -> tuple[list[Finding], dict[str, Any]]:
    from rookery.run import doctor as words
    from rookery.run.machine import env_options

    given = env_options(chosen)
    found = words.examine_env(env, given, seconds=chosen.seconds)
    advice = words.advise(env, given, found.facts)
    findings = [*found.findings, *words.notes_of(found.facts, env, given)]
    return findings, {"facts": found.facts, "recommended": [one._asdict() for one in advice]}
