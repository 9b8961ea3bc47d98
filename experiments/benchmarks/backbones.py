"""Updates a second of SAC and TAAC with the critics of gin/backbones, beside those that SBX has, at equal widths.

    python -m experiments.benchmarks.backbones

Sizes are those of `updates`: observations of 17, actions of 6, hidden layers or blocks of 256, batch 256. Ours are compiled.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

from experiments.benchmarks import common, floor, updates
from experiments.benchmarks.common import OURS, PEERS, Contender, ratio_goal
from experiments.benchmarks.contenders import ON_S_ALONE
from experiments.benchmarks.updates import PEAK

# File, what makes widths and numbers equal, and SBX's name of the same, with its policy and what makes it the same.
BACKBONES: dict[str, tuple[str, list[str], tuple[Any, ...] | None]] = {
    "plain": ("", [], ("SAC", "MlpPolicy")),
    "layer norm": ("layer_norm", [], None),
    "categorical": ("categorical", [], None),
    "TQC, 2 critics": (
        "tqc", ["CriticEnsemble.hidden_layers = (256, 256)", "CriticEnsemble.num_critics = 2"], ("TQC", "MlpPolicy"),
    ),
    "CrossQ": ("crossq", ["critic/MlpBody.hidden_layers = (256, 256)"], ("CrossQ", "MlpPolicy")),
    "SimBa": (
        "simba", ["actor/SimbaBody.blocks = 2", "critic/SimbaBody.width = 256", "actor/SimbaBody.width = 256"],
        ("SAC", "SimbaPolicy"),
    ),
    "DroQ, an actor's update every 20": (
        "droq", ["UpdateRatio.updates_per_env_step = 1"],
        ("SAC", "MlpPolicy", {"policy_kwargs": {"dropout_rate": 0.01, "layer_norm": True}, "policy_delay": 20}),
    ),
    "REDQ, an actor's update every 20": ("redq", ["UpdateRatio.updates_per_env_step = 1"], None),
    "SimbaV2, 256": ("simbav2", ["critic/SimbaV2Body.width = 256", "actor/SimbaV2Body.width = 256"], None),
    "Flash, small": ("flash_small", [], None),
    "Flash, batches of 512": ("flash", ["batch_size = 512"], None),
    "XQC, 256": (
        "xqc", ["critic/MlpBody.hidden_layers = (256, 256, 256, 256)", "UpdateRatio.updates_per_env_step = 1"], None,
    ),
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--frames", type=int, default=100_000, help="frames in the replay buffer")
    flags.add_argument("--batch_size", type=int, default=256)
    return flags


def run(options: argparse.Namespace) -> dict[str, Any]:
    best = floor.run(options)["peak"]
    common.say("updates a second with each backbone")
    sent = {"task": "updates", "frames": options.frames, "batch_size": options.batch_size, "per_call": 1}
    sent["warmup"] = 10 if options.quick else 30  # the slowest take more than a second each
    contenders = [Contender(PEAK, OURS, {"task": "peak", "path": best["path"], "shape": best["shape"], "warmup": 1})]
    pairs = []
    for name, (file, params, theirs) in BACKBONES.items():
        of_sac = [] if file.startswith("flash") else [ON_S_ALONE]  # with flash the actor learns on s alone anyway
        for method, own in (("sac", of_sac), ("taac", [])):
            row: dict[str, Any] = {"method": method, "count": True, "gin_params": [*params, *own, "create_agent.compile = True"]}
            row["files"] = [f"gin/backbones/{file}.gin"] if file else []
            contenders.append(Contender(f"{method.upper()}, {name}", OURS, {**sent, **row}))
        if theirs is not None:
            algorithm, policy, *same = theirs
            label = f"SBX, {algorithm}, {policy}{', as DroQ' if same else ''}"
            asked = {**sent, "peer": "sbx", "algorithm": algorithm, "policy": policy, "settings": same[0] if same else {}}
            contenders.append(Contender(label, PEERS, asked))
            pairs.append((f"SAC, {name}", label))
    rates, about, problems = common.interleaved(contenders, options)
    note = functools.partial(updates.note, rates, about)
    figures = common.rate_figures(contenders[1:], rates, problems, "updates/s", note)
    goals = [ratio_goal(f"{ours}: updates/s over SBX", rates, ours, theirs, 1.2, problems) for ours, theirs in pairs]
    return {"title": "Backbones", "figures": figures, "goals": goals}


if __name__ == "__main__":
    common.main("backbones", parser(), run)
