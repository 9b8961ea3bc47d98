"""Whole training on HalfCheetah-v5, one update a step: environment steps a second.

    python -m experiments.benchmarks.training

The loop that `taac train` runs, with its summaries, from the first update on; without evaluation and checkpoints, which
peers do not make by themselves. Measured in turn as `updates` is.
"""

from __future__ import annotations

import argparse
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.common import ratio_goal
from experiments.benchmarks.contenders import (
    BFLOAT16,
    COMPILED,
    OURS_OPTIONS,
    PRIORITIZED,
    SAC,
    SAC_S,
    SB3,
    SBX,
    THREE,
    ours,
    peer,
)


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--env", default="HalfCheetah-v5", help="or Free-v0, which costs nothing")
    flags.add_argument("--collect", type=int, default=1000, help="environment steps before the first update")
    flags.add_argument("--warmup", type=int, default=200, help="environment steps with updates before measuring")
    return flags


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("whole training, environment steps a second")
    sent = {"task": "training", "env": options.env, "collect": options.collect, "warmup": options.warmup}
    contenders = [ours(name, **sent) for name in OURS_OPTIONS if name != PRIORITIZED]
    contenders += [peer(SB3, **sent), peer(SBX, **sent)]
    rates, about, problems = common.interleaved(contenders, options)
    note = lambda name: f"version {about[name]['version']}" if "version" in about[name] else ""  # noqa: E731
    figures = common.rate_figures(contenders, rates, problems, "steps/s", note)
    goals = [
        ratio_goal(f"{name}: whole training over {SBX}, {options.env}", rates, name, SBX, 1.2, problems)
        for name in (SAC_S, SAC_S + COMPILED, SAC_S + THREE, SAC_S + BFLOAT16, SAC)
    ]
    return {"title": f"Whole training, {options.env}", "figures": figures, "goals": goals}


if __name__ == "__main__":
    common.main("training", parser(), run)
