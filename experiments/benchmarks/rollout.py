"""Rollout steps a second with one environment, without learning.

    python -m experiments.benchmarks.rollout

From the policy alone to all that a training does with a step: the policy on one frame over and over; policy and
environment; and collecting, with the replay buffer and the episodes' books. With an environment that costs nothing, and
with HalfCheetah-v5.
"""

from __future__ import annotations

import argparse
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.common import goal
from experiments.benchmarks.contenders import COMPILED, SAC, SB3, TAAC, ours, peer

FREE, CHEETAH = "Free-v0", "HalfCheetah-v5"


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("rollout steps a second")
    sent = {"task": "rollout", "warmup": 20 if options.quick else 500}
    aimed_at = f"TAAC, compiled, collecting, {CHEETAH}"
    parts = [
        ("policy alone", {"part": "policy", "env": FREE}),
        ("policy and a free environment", {"part": "step", "env": FREE}),
        ("collecting, free environment", {"part": "collect", "env": FREE}),
        (f"policy and {CHEETAH}", {"part": "step", "env": CHEETAH}),
        (f"collecting, {CHEETAH}", {"part": "collect", "env": CHEETAH}),
    ]
    contenders = [
        *(ours(TAAC, f"TAAC, {label}", **sent, **part) for label, part in parts),
        *(ours(TAAC + COMPILED, f"TAAC, compiled, {label}", **sent, **part) for label, part in parts),
        ours(SAC, f"SAC, collecting, {CHEETAH}", **sent, part="collect", env=CHEETAH),
        peer(SB3, "SB3, policy alone", **sent, part="policy", env=FREE),
        peer(SB3, "SB3, collecting, free environment", **sent, part="collect", env=FREE),
        peer(SB3, f"SB3, collecting, {CHEETAH}", **sent, part="collect", env=CHEETAH),
    ]
    rates, _, problems = common.interleaved(contenders, options)
    figures = common.rate_figures(contenders, rates, problems, "steps/s")
    what = f"{aimed_at}: rollout steps/s"
    reached = goal(what, ">= 3,000", rates.get(aimed_at), lambda x: x >= 3000, "steps/s", problems.get(aimed_at))
    return {"title": "Rollout, one environment", "figures": figures, "goals": [reached]}


if __name__ == "__main__":
    common.main("rollout", common.parser(__doc__.splitlines()[0]), run)
