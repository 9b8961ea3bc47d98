"""Training on a GPU: updates a second, and environment steps a second of whole trainings on HalfCheetah-v5.

    python -m experiments.benchmarks.gpu

Takes about five minutes. Networks, batches and environments are those of `updates` and `training`; the buffer is on the GPU.
Compiled rows replay loss and gradients, and acting, as CUDA graphs, unless a warning says that one could not be captured.
Where torch finds no GPU, every row says "not measured". `--device cpu` tries the command without one.

Published, of other protocols: LeanRL's SAC with CUDA graphs makes 725 environment steps a second on an H100, one update a step.
"""

from __future__ import annotations

import argparse
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.contenders import ON_S_ALONE, SBX, peer

MANY = 64  # environments of the rows with many
COMPILE, RATIO = "create_agent.compile = True", "UpdateRatio.updates_per_env_step"
ROWS: dict[str, dict[str, Any]] = {
    "SAC, updates/s": {"task": "updates", "method": "sac", "gin_params": [ON_S_ALONE]},
    "SAC, compiled, updates/s": {"task": "updates", "method": "sac", "gin_params": [ON_S_ALONE, COMPILE]},
    "TAAC, updates/s": {"task": "updates", "method": "taac"},
    "TAAC, compiled, updates/s": {"task": "updates", "method": "taac", "gin_params": [COMPILE]},
    "SAC, compiled, one update a step, steps/s": {"task": "training", "method": "sac", "gin_params": [ON_S_ALONE, COMPILE]},
    "TAAC, compiled, one update a step, steps/s": {"task": "training", "method": "taac", "gin_params": [COMPILE]},
    f"TAAC, compiled, {MANY} environments, an update every {MANY} steps, steps/s": {
        "task": "training", "method": "taac",
        "gin_params": [COMPILE, f"num_envs = {MANY}", f"{RATIO} = {1 / MANY}"],
    },
}  # fmt: skip
PUBLISHED = common.missing_figure("LeanRL's SAC, CUDA graphs, H100, steps/s", "725, published, not measured here")


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the command")
    flags.add_argument("--env", default="HalfCheetah-v5", help="or Free-v0, which costs nothing")
    flags.add_argument("--frames", type=int, default=100_000, help="frames in the replay buffer of updates")
    flags.add_argument("--batch_size", type=int, default=256)
    flags.add_argument("--warmup", type=int, default=200, help="updates or steps before measuring")
    return flags


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    common.say(f"training on {options.device}")
    title = f"Training on {options.device}"
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        why = f"not measured: torch {torch.__version__} finds no CUDA"
        return {"title": title, "figures": [*(common.missing_figure(name, why) for name in ROWS), PUBLISHED], "goals": []}
    if options.device.startswith("cuda"):
        title += f", {torch.cuda.get_device_name(options.device)}"
    sent = {
        "device": options.device, "env": options.env, "frames": options.frames, "batch_size": options.batch_size,
        "per_call": 1, "collect": 1000, "warmup": options.warmup,
    }  # fmt: skip
    contenders = [common.Contender(name, common.OURS, {**sent, **row}) for name, row in ROWS.items()]
    contenders.append(peer(SBX, f"{SBX} on the CPU, one update a step, steps/s", **sent, task="training"))
    rates, _, problems = common.interleaved(contenders, options)
    figures = common.rate_figures(contenders, rates, problems, "")
    return {"title": title, "figures": [*figures, PUBLISHED], "goals": []}


if __name__ == "__main__":
    common.main("gpu", parser(), run)
