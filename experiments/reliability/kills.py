"""Runs killed at random moments, which must end as the run that was never killed: the same bits."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.reliability import runs
from experiments.reliability.runs import Setting, Trouble
from taac.runs import files
from taac.runs.checkpoint import Checkpoints

SETTINGS = [
    Setting("taac", "BipedalWalker-v3", 1),
    Setting("taac", "InvertedDoublePendulum-v5", 3),
    Setting("taac", "Hopper-v5", 2, "asynchronous", ("create_environment.asynchronous = True",)),
    Setting("taac", "Pendulum-v1", 1, "compiled", ("create_agent.compile = True",)),
    Setting("taac", "Hopper-v5", 1, "prioritised replay", (
        "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer",
    )),
    Setting("taac_l", "Hopper-v5", 3),
    Setting("taac_q", "LunarLanderContinuous-v3", 1),
    Setting("taac", "LunarLanderContinuous-v3", 32, "a checkpoint before any episode ends", ("checkpoint_interval = 64",)),
    Setting("sac", "BipedalWalker-v3", 3),
    Setting("sac", "LunarLanderContinuous-v3", 1),
    Setting("sac", "Hopper-v5", 2, "asynchronous", ("create_environment.asynchronous = True",)),
    Setting("sac", "InvertedDoublePendulum-v5", 1, "ICM and RND", ("create_agent.reward_signals = (@ICM, @RND)",)),
    Setting("sac_ez", "Hopper-v5", 3),
    Setting("sac_krep", "InvertedDoublePendulum-v5", 2),
    Setting("sac_recurrent", "Pendulum-v1", 2),
    Setting("temporl", "Hopper-v5", 1),
    Setting("sdar", "LunarLanderContinuous-v3", 2),
]  # fmt: skip
KINDS = ("SIGKILL at a random time", "SIGKILL in a random write", "SIGTERM at a random time")
MOST = 12  # kills of one run; then it is let go on to its end


def campaign(folder: Path, given: argparse.Namespace, settings: Sequence[Setting] = SETTINGS) -> list[dict[str, Any]]:
    """`given.kills` kills, spread over the settings; a row for each setting."""
    rows = []
    for setting in settings:
        rows.append(_one_setting(folder, setting, -(-given.kills // len(settings)), runs.seeded(given.seed, setting)))
        print(f"{rows[-1]}", flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| setting | runs | kills | " + " | ".join(KINDS) + " | runs that differ |", "|---" * 7 + "|"]
    total: Counter[str] = Counter()
    for row in rows:
        numbers = {"runs": row["runs"], "kills": row["kills"], **row["by kind"], "differ": len(row["differing"])}
        lines.append("| " + " | ".join(map(str, (row["setting"], *numbers.values()))) + " |")
        total.update(numbers)
    return [*lines, "| all | " + " | ".join(map(str, total.values())) + " |"]


def failures(rows: list[dict[str, Any]]) -> int:
    return sum(len(row["differing"]) for row in rows)


def _one_setting(folder: Path, setting: Setting, kills: int, rng: random.Random) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log, start = folder / "log", time.monotonic()
    calls = folder / "calls"
    code = runs.run(setting, folder / "whole", log, lambda: count_calls(calls))
    if code != 0:
        raise RuntimeError(f"{setting} ended with {code}: {log.read_text()[-2000:]}")
    seconds, num_calls = time.monotonic() - start, int(calls.read_text())
    expected = runs.outcome(folder / "whole")
    row: dict[str, Any] = {
        "setting": str(setting),
        "runs": 0,
        "kills": 0,
        "by kind": dict.fromkeys(KINDS, 0),
        "differing": [],
    }
    while row["kills"] < kills:
        killed = folder / f"killed-{row['runs']}"
        row["runs"] += 1
        for number in itertools.count():
            kind = None if number >= MOST or row["kills"] >= kills else rng.choice(KINDS)
            saved, printed = Checkpoints(killed / "checkpoints").saved(), log.stat().st_size
            code = _attempt(setting, killed, log, kind, rng, seconds, num_calls)
            said = log.read_bytes()[printed:].decode(errors="replace")
            if code in (0, 75) and (wrong := began_wrongly(saved, said)):
                row["differing"].append(f"run {row['runs'] - 1}: {wrong}")
            if code == 0:
                break
            if code not in (-signal.SIGKILL, 75) or kind is None:
                raise RuntimeError(f"{setting} ended with {code} after '{kind}': {log.read_text()[-2000:]}")
            row["kills"] += 1
            row["by kind"][kind] += 1
        differing = runs.differences(expected, killed)
        if differing:
            row["differing"].append(f"run {row['runs'] - 1}: {', '.join(differing)}")
        else:
            shutil.rmtree(killed)
    return row


def began_wrongly(saved: list[int], said: str) -> str | None:
    """Whether a run that got to training began elsewhere than at its newest checkpoint: its bits would not tell.

    Args:
        saved: the checkpoints that were there, the newest first.
        said: what it printed.
    """
    if "finished; nothing to do" in said:
        return None
    begun = [int(steps) for steps in re.findall(r"resuming .* at (\d+) environment steps", said)]
    if begun != saved[:1]:
        return f"it went on at {begun or 'the beginning'}, with checkpoints at {saved}"
    trouble = re.findall(r"taac: .*(?:damaged|cannot be used|did not come to).*", said)
    return trouble[0] if trouble else None


def _attempt(
    setting: Setting, folder: Path, log: Path, kind: str | None, rng: random.Random, seconds: float, calls: int
) -> int:
    """Goes on with a run, and interrupts it in the given way if it lasts that long; its exit code."""
    if kind == KINDS[1]:
        at = rng.randint(1, calls)
        return runs.run(setting, folder, log, lambda: replace_os(Trouble(at, runs.die)))
    child = runs.start(setting, folder, log)
    if kind is not None:
        time.sleep(rng.uniform(0, seconds))
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        os.kill(child, signal.SIGKILL if kind == KINDS[0] else signal.SIGTERM)
    code = runs.wait(child)
    # A SIGTERM before training begins ends the process as it ends any other; nothing has changed then.
    return -signal.SIGKILL if code == -signal.SIGTERM else code


def replace_os(trouble: Trouble) -> None:
    files.os = trouble  # type: ignore[assignment]


def count_calls(path: Path) -> Callable[[], object]:
    trouble = Trouble(0, runs.die)
    replace_os(trouble)
    return lambda: path.write_text(str(trouble.count))
