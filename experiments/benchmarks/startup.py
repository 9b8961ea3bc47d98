"""Seconds from the start of a process to the first environment step, and to the first update, on HalfCheetah-v5.

    python -m experiments.benchmarks.startup

Training begins as with `taac train`, with 8 environment steps before the first update. On one core, files in the cache, and so is
what was compiled before.
"""

from __future__ import annotations

import argparse
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.common import goal
from experiments.benchmarks.contenders import COMPILED, SAC, SB3, SBX, TAAC, ours, peer


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("seconds to the first step and the first update")
    sent = {"task": "startup"}
    contenders = [ours(SAC, **sent), ours(TAAC, **sent), ours(TAAC + COMPILED, **sent)]
    contenders += [peer(SB3, **sent), peer(SBX, **sent)]
    first_steps: dict[str, list[float]] = {c.name: [] for c in contenders}
    first_updates: dict[str, list[float]] = {c.name: [] for c in contenders}
    problems: dict[str, str] = {}
    for _ in range(options.rounds):
        for contender in contenders:
            if contender.name in problems:
                continue
            with common.started([contender], options) as (processes, about, found):
                problems |= found
                if contender.name in processes:
                    begun, events = processes[contender.name].created, about[contender.name]["events"]
                    first_steps[contender.name].append(events["first_step"] - begun)
                    first_updates[contender.name].append(events["first_update"] - begun)
    figures, goals = [], []
    for contender in contenders:
        name = contender.name
        if name in problems:
            if problems[name] != "not asked for":
                figures.append(common.missing_figure(name, problems[name]))
            continue
        figures.append(common.figure(f"{name}, first environment step", first_steps[name], "s"))
        figures.append(common.figure(f"{name}, first update", first_updates[name], "s"))
        if contender.module == common.OURS and not name.endswith(COMPILED):  # which waits, as was asked for
            waits = [update - step for step, update in zip(first_steps[name], first_updates[name])]
            goals.append(
                goal(f"{name}: start to first environment step", "<= 3 s", first_steps[name], lambda x: x <= 3, "s")
            )
            goals.append(goal(f"{name}: from there to the first update", "<= 1 s", waits, lambda x: x <= 1, "s"))
    return {"title": "Start-up", "figures": figures, "goals": goals}


if __name__ == "__main__":
    common.main("startup", common.parser(__doc__.splitlines()[0]), run)
