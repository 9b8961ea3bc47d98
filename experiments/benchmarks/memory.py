"""Bytes of a full replay buffer of HalfCheetah-v5, as the process grew by it.

    python -m experiments.benchmarks.memory

Compared with one float32 copy of each field that a transition needs: observation, action, reward and discount, and for
TAAC the trajectory that was followed and the switch.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.common import goal
from experiments.benchmarks.contenders import SAC, SB3, TAAC, ours, peer

# Of a frame as the buffer gives it out: where in its episode it is and how long it took are not counted as needed.
NOT_NEEDED = ("step_type", "duration")


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--frames", type=int, help="frames of the buffer (default: 1M; 100k with --quick)")
    return flags


def float32_copy(fields: dict[str, list[int]]) -> int:
    """Bytes a frame, given the shape of each field by path."""
    return sum(4 * math.prod(shape) for path, shape in fields.items() if not path.endswith(NOT_NEEDED))


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("bytes of a replay buffer")
    frames = options.frames or (100_000 if options.quick else 1_000_000)
    sent = {"task": "memory", "frames": frames}
    figures, goals = [], []
    for contender in (ours(SAC, **sent), ours(TAAC, **sent), peer(SB3, **sent)):
        with common.started([contender], options) as (_, about, problems):
            if contender.name in problems:
                if problems[contender.name] != "not asked for":
                    figures.append(common.missing_figure(contender.name, problems[contender.name]))
                continue
            told = about[contender.name]
        note = ""
        if "fields" in told:
            needed = frames * float32_copy(told["fields"])
            note = f"{told['said'] / frames:.0f} B a frame by its own count; float32 copy {needed / frames:.0f} B"
            what = f"{contender.name}: bytes of {frames:,} frames over one float32 copy of each field"
            goals.append(goal(what, "<= 1.15", [told["bytes"] / needed], lambda x: x <= 1.15))
        figures.append(common.figure(f"{contender.name}, {frames:,} frames", [told["bytes"] / 1e6], "MB", note=note))
    return {"title": "Memory of a replay buffer", "figures": figures, "goals": goals}


if __name__ == "__main__":
    common.main("memory", parser(), run)
