"""`rookery video`: write a policy playing to a file."""

from __future__ import annotations

import json

from rookery.commands.parsing import run_and_options


def video(args: list[str]) -> int:
    from rookery.run.video import VideoOptions, write_video

    run, options = run_and_options(args, VideoOptions, "rookery video", "[--out FILE] [options]")
    report = write_video(run, options)
    if options.json:
        print(json.dumps(report))
        return 0
    width, height = report["size"]
    print(f"{report['out']}  {report['frames']} frames of {width} x {height}, "
          f"{report['seconds']:.1f} s at {report['fps']:g} fps")
    returns = " ".join(f"{total:.5g}" for total in report["returns"][:10]) + (" …" if len(report["returns"]) > 10 else "")
    print(f"{report['system']} on {report['env']}, checkpoint {report['checkpoint']}: return {returns} "
          f"({report['actions']} actions, {sum(report['lengths']):,} steps)")
    return 0
