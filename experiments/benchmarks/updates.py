"""Updates a second: SAC and TAAC here, SAC of peers; and how the cost grows.

    python -m experiments.benchmarks.updates

An update is both critics, actor, temperature, targets, and sampling from a replay buffer of 100k frames: observations of
17, actions of 6, hidden layers 256-256, batch 256, as on HalfCheetah-v5. Each contender has a process of its own, pinned to
one core and one thread; they are measured in turn.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks import common, floor
from experiments.benchmarks.common import OURS, Contender, goal, rates_goal, ratio_goal
from experiments.benchmarks.contenders import (
    BFLOAT16,
    COMPILED,
    OURS_OPTIONS,
    SAC,
    SAC_S,
    SB3,
    SBX,
    TAAC,
    THREE,
    ours,
    peer,
)

MANY = 64
MANY_A_CALL = f", {MANY} a call"
PEAK = "peak product"


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--frames", type=int, default=100_000, help="frames in the replay buffer")
    flags.add_argument("--batch_size", type=int, default=256)
    flags.add_argument("--no_growth", action="store_true", help="leave out how the cost grows (as --contenders does)")
    flags.add_argument("--long_seconds", type=float, help="of the long run that shows whether the rate stays")
    return flags


def run(options: argparse.Namespace, best: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measures. `best`: the peak product as `floor.run` found it; measured first if not given."""
    if best is None:
        best = floor.run(options)["peak"]
    common.say("updates a second")
    sizes = {"task": "updates", "frames": options.frames, "batch_size": options.batch_size}
    one = {**sizes, "per_call": 1, "warmup": 10 if options.quick else 100}
    many = {**sizes, "per_call": MANY, "warmup": MANY if options.quick else 4 * MANY}
    contenders = [
        Contender(PEAK, OURS, {"task": "peak", "path": best["path"], "shape": best["shape"], "warmup": 1}),
        *(ours(name, **one, count=True) for name in OURS_OPTIONS),
        *(ours(name, name + MANY_A_CALL, **many, count=True) for name in (SAC_S, TAAC)),
        peer(SB3, **one), peer(SB3, SB3 + MANY_A_CALL, **many),
        peer(SBX, **one), peer(SBX, SBX + MANY_A_CALL, **many),
    ]  # fmt: skip
    rates, about, problems = common.interleaved(contenders, options)
    for name in (SB3, SB3 + MANY_A_CALL, SBX, SBX + MANY_A_CALL):
        if name in about and SAC_S in about:  # of the same sizes
            about[name]["gflop"] = about[SAC_S]["gflop"]
    figures = common.rate_figures(contenders[1:], rates, problems, "updates/s", functools.partial(note, rates, about))
    if PEAK in rates:
        figures.insert(0, common.figure(f"{PEAK}: {best['path']}, {best['shape']}", rates[PEAK], "GFLOP/s"))
    goals = _goals(rates, about, problems)
    if not options.no_growth and not options.contenders:
        grown = growth(options)
        figures, goals = figures + grown["figures"], goals + grown["goals"]
    return {"title": "Updates", "figures": figures, "goals": goals}


def note(rates: dict[str, list[float]], about: dict[str, dict[str, Any]], name: str) -> str:
    """Returns what stands beside a contender's rate: its version, its operations, and its share of the peak rate."""
    notes = [f"version {about[name]['version']}"] if "version" in about[name] else []
    if PEAK in rates and "gflop" in about[name]:
        share = statistics.median(_shares(name, rates, about))
        notes.append(f"{about[name]['gflop']:.2f} GFLOP, {share:.0%} of the peak rate")
    return "; ".join(notes)


def _shares(name: str, rates: dict[str, list[float]], about: dict[str, dict[str, Any]]) -> list[float]:
    """Returns the rate of an update's products over the peak rate of the same round."""
    return [about[name]["gflop"] * rate / peak for rate, peak in zip(rates[name], rates[PEAK])]


def _goals(
    rates: dict[str, list[float]], about: dict[str, dict[str, Any]], problems: dict[str, str]
) -> list[dict[str, Any]]:
    goals = []
    for name in (SAC_S, SAC_S + COMPILED, SAC_S + THREE, SAC_S + BFLOAT16, SAC):
        goals.append(ratio_goal(f"{name}: updates/s over SBX", rates, name, SBX, 1.2, problems))
        goals.append(
            ratio_goal(f"{name}: updates/s over SBX{MANY_A_CALL}", rates, name, SBX + MANY_A_CALL, 1.0, problems)
        )
    for name in (SAC_S, SAC_S + COMPILED, SAC, TAAC, TAAC + COMPILED):  # with products as exact as those that the peak rate is of
        shares = functools.partial(_shares, name, rates, about)
        goals.append(rates_goal(f"{name}: share of the peak rate", 0.7, rates, (name, PEAK), shares, problems))
    for name in (SAC_S, TAAC):
        goals.append(
            ratio_goal(
                f"{name}: compiled, bfloat16 over float32", rates, name + BFLOAT16, name + COMPILED, 1.5, problems
            )
        )
    return goals


# Growth --------------------------------------------------------------------------------------------------------------


def growth(options: argparse.Namespace) -> dict[str, Any]:
    """Updates a second by size of the buffer, T and batch, and over a long run."""
    base = {"task": "updates", "per_call": 1, "warmup": 10 if options.quick else 100}
    base |= {"frames": options.frames, "batch_size": options.batch_size}
    figures, goals = [], []

    buffers = [options.frames // 10, options.frames, options.frames * 10]
    for method in (SAC, TAAC):
        common.say(f"{method}: buffers of {buffers} frames")
        made = [ours(method, f"{method}, buffer of {n:,}", **{**base, "frames": n}) for n in buffers]
        rates, _, problems = common.interleaved(made, options)
        figures += common.rate_figures(made, rates, problems, "updates/s")
        what = f"{method}: updates/s with a buffer of {buffers[-1]:,} over one of {buffers[0]:,}"
        goals.append(ratio_goal(what, rates, made[-1].name, made[0].name, 0.95, problems))

    lengths = [2, 4, 8]
    common.say(f"TAAC: segments of {lengths} frames")
    made = [ours(TAAC, f"TAAC, T = {n}", **base, segment_length=n, count=True) for n in lengths]
    rates, about, problems = common.interleaved(made, options)
    figures += common.rate_figures(made, rates, problems, "updates/s")
    for a, b in ((0, 1), (1, 2)):
        products = [about.get(made[i].name, {}).get("gflop", 1.0) for i in (a, b)]  # 1: failed, and is not compared
        goals.append(_linear("TAAC", "T", lengths[a], lengths[b], made[a], made[b], products, rates, problems))

    batches = [options.batch_size // 2, options.batch_size, options.batch_size * 2]
    for method in (SAC, TAAC):
        common.say(f"{method}: batches of {batches}")
        made = [ours(method, f"{method}, batch {n}", **{**base, "batch_size": n}) for n in batches]
        rates, _, problems = common.interleaved(made, options)
        figures += common.rate_figures(made, rates, problems, "updates/s")
        for a, b in ((0, 1), (1, 2)):
            goals.append(
                _linear(method, "batch", batches[a], batches[b], made[a], made[b], batches[a : b + 1], rates, problems)
            )

    seconds = options.long_seconds or (3.0 if options.quick else 60.0)
    common.say(f"TAAC: one run of {seconds:g} s")
    windows = argparse.Namespace(**{**vars(options), "rounds": 9, "seconds": seconds / 9})
    rates, _, problems = common.interleaved([ours(TAAC, "long", **base)], windows)
    what = "TAAC: rate at the end of a long run over that at its start"
    if "long" in rates:
        last, first = statistics.median(rates["long"][-3:]), statistics.median(rates["long"][:3])
        goals.append(goal(what, ">= 0.95", [last / first], lambda x: x >= 0.95))
    else:
        goals.append(goal(what, ">= 0.95", None, problem=problems["long"]))
    return {"figures": figures, "goals": goals}


def _linear(
    method: str,
    size: str,
    small: int,
    large: int,
    one: Contender,
    other: Contender,
    products: Sequence[float],
    rates: dict[str, list[float]],
    problems: dict[str, str],
) -> dict[str, Any]:
    """Returns the growth of time over growth of the products: 1 is linear, less is an overhead that is shared by more work."""
    what = f"{method}: growth of time over growth of work, {size} {small} to {large}"
    if one.name not in rates or other.name not in rates:
        return goal(what, "<= 1.05", None, problem="; ".join(problems.values()))
    work = products[1] / products[0]
    grown = [a / b / work for a, b in zip(rates[one.name], rates[other.name])]
    return goal(what, "<= 1.05", grown, lambda x: x <= 1.05)


if __name__ == "__main__":
    common.main("updates", parser(), run)
