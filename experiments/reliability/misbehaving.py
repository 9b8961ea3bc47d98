"""Environments that misbehave late: each is named, nothing hangs, and a checkpoint is there from which the run goes on."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.reliability import interruptions, kills, runs
from experiments.reliability.runs import Setting
from experiments.reliability.tasks import MISBEHAVIOURS, UNRULY
from taac.runs.checkpoint import Checkpoints

LIMIT = 120.0  # seconds; a hang is ended by step_timeout long before
STEP_TIMEOUT = 6.0
# In the training process these end or stop it, or let its messages go into its files: nothing can be done there.
ONLY_ASYNCHRONOUS = (
    "hangs", "dies by SIGKILL", "dies by SIGSEGV", "leaves by os._exit(0)", "leaves by os._exit(3)", "closes standard error",
)  # fmt: skip
# What a process of its own is free to do.
HARMLESS = {
    "asynchronous": (
        "changes torch's default dtype", "turns gradients off", "goes to another folder", "closes standard error",
        "observation of a rank more",  # its numbers are as many as they should be, and go through shared memory
        "terminated is NaN",
    ),
    "synchronous": ("goes to another folder", "terminated is NaN"),  # Gymnasium takes NaN for true
}  # fmt: skip
MORE_THAN_ALLOWED = 99
WHERE = ("synchronous", "asynchronous", "asynchronous, again and again", "evaluation")
AGAIN = ("raises", "hangs", "dies by SIGKILL", "leaves by os._exit(0)", "sys.exit(0)", "nothing")
IN_EVALUATION = (
    "raises", "raises KeyboardInterrupt", "sys.exit(0)", "observation of NaN", "reward of NaN", "observation None", "nothing",
)  # fmt: skip
VERDICTS = {
    "stopped": "exit code 1 and a message that names the environment; run.json says so; there is a checkpoint, and the same "
    "command goes on to the end",
    "restarted": "said, the environments made anew, and the run ended",
    "no matter": "nothing said; the run ended",
    "HANG": "it did not end",
    "TRACEBACK": "a traceback",
    "NOT NAMED": "it stopped without naming the environment, or with another exit code",
    "STATUS": "run.json does not say that it stopped",
    "NO CHECKPOINT": "there is no checkpoint to go on from",
    "NOT ENDED": "the same command, called again, did not go on from the checkpoint to the end",
    "LEFT BEHIND": "processes outlive it",
}


class Case(NamedTuple):
    """What is tried."""

    how: str
    where: str


def cases() -> list[Case]:
    found = []
    for how in MISBEHAVIOURS:
        for where in WHERE:
            left_out = {
                "synchronous": how in ONLY_ASYNCHRONOUS, "asynchronous, again and again": how not in AGAIN,
                "evaluation": how not in IN_EVALUATION,
            }  # fmt: skip
            if not left_out.get(where, False):
                found.append(Case(how, where))
    return found


def campaign(folder: Path, given: argparse.Namespace, chosen: Sequence[Case] | None = None) -> list[dict[str, Any]]:
    """Returns a row for each case."""
    if chosen is None:
        chosen = cases()[:: 6 if getattr(given, "quick", False) else 1]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = runs.seeded(given.seed, "misbehaving")
    rows = []
    for case in chosen:
        rows.append({**case._asdict(), **_try(folder, case, rng.randint(120, 185))})
        if rows[-1]["verdict"].isupper():
            print(json.dumps(rows[-1]), flush=True)
        (folder / "rows.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows


def _setting(case: Case, at: int, log: Path) -> Setting:
    asynchronous = case.where.startswith("asynchronous")
    num_envs = 2 if case.where.endswith("again") else 1
    if case.where == "evaluation":  # steps are counted in each process: these come after 75 of training
        at = 76 + at % 30
    times = MORE_THAN_ALLOWED if case.where.endswith("again") else 1
    if case.where.endswith("again"):
        at = 30 + at % 30  # so that there is time for it
    kwargs = {"how": case.how, "at": at // num_envs, "log": str(log), "times": times, "workers": asynchronous}
    params = [f"create_environment.env_kwargs = {kwargs!r}", "num_env_steps = 220", "checkpoint_interval = 70"]
    params += ["initial_collect_steps = 60", "Evaluator.initial_evaluation = False"]
    if asynchronous:
        params += ["create_environment.asynchronous = True", f"create_environment.step_timeout = {STEP_TIMEOUT}"]
        params += ["create_environment.max_restarts = 1"] * (times > 1)
    return Setting("sac", UNRULY, num_envs, "", tuple(params))


def _try(folder: Path, case: Case, at: int) -> dict[str, Any]:
    """Trains, and goes on when the environment has been mended."""
    run, log, misbehaved = folder / "run", folder / "log", folder / "misbehaved"
    shutil.rmtree(run, ignore_errors=True)
    for path in (log, misbehaved):
        path.unlink(missing_ok=True)
    setting, start = _setting(case, at, misbehaved.resolve()), time.monotonic()
    child = runs.start(setting, run, log)
    code = kills.ended(child, time.monotonic() + LIMIT)
    said = log.read_text(errors="replace")
    row = {"at": at, "code": code, "said": _last_words(said)[:400]}
    if not misbehaved.exists():
        raise RuntimeError(f"{case} was never tried: {said[-2000:]}")
    verdict = _first_verdict(case, run, child, code, said)
    if verdict == "stopped":
        misbehaved.write_text("mended " * (MORE_THAN_ALLOWED + 1))
        saved, printed = Checkpoints(run / "checkpoints").saved(), log.stat().st_size
        code = kills.ended(runs.start(setting, run, log), time.monotonic() + LIMIT)
        said = log.read_bytes()[printed:].decode(errors="replace")
        if code != 0 or _status(run) != "finished" or kills.began_wrongly(saved, said):
            verdict, row = "NOT ENDED", {**row, "code": code, "said": said[-1500:]}
    return {**row, "verdict": verdict, "seconds": round(time.monotonic() - start, 1)}


def _first_verdict(case: Case, run: Path, child: int, code: int, said: str) -> str:
    if code == 124:
        return "HANG"
    if left := interruptions.outliving(child, 10):
        return f"LEFT BEHIND: {len(left)}"
    if "Traceback" in said:
        return "TRACEBACK"
    restarted = "; restarted the environments: all running episodes were truncated" in said
    if code == 0:
        harmless = case.how in HARMLESS.get(case.where, ())
        if _status(run) == "finished" and (restarted or harmless):
            return "restarted" if restarted else "no matter"
        return "STATUS" if _status(run) != "finished" else "NOT NAMED"
    if code != 1 or f"environment '{UNRULY}" not in _last_words(said):
        return "NOT NAMED"
    if _status(run) not in ("failed", "diverged"):
        return "STATUS"
    return "stopped" if Checkpoints(run / "checkpoints").saved() else "NO CHECKPOINT"


def _last_words(said: str) -> str:
    """Returns the message with which a command ends."""
    found = re.findall(r"^taac train: .*", said.replace("\r", "\n"), re.MULTILINE)
    return found[-1] if found else ""


def _status(run: Path) -> str:
    try:
        return json.loads((run / "run.json").read_text())["status"]
    except (OSError, ValueError, KeyError):
        return ""


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| misbehaviour | " + " | ".join(WHERE) + " |", "|---" * (1 + len(WHERE)) + "|"]
    for how in dict.fromkeys(row["how"] for row in rows):
        of = {row["where"]: row["verdict"] for row in rows if row["how"] == how}
        lines.append("| " + " | ".join((how, *(of.get(where, "") for where in WHERE))) + " |")
    verdicts = [row["verdict"].split(":")[0] for row in rows]
    found = [f"- {name} ({verdicts.count(name)}): {meaning}" for name, meaning in VERDICTS.items() if name in verdicts]
    return [*lines, "", f"{len(rows)} cases.", "", *found]


failures = runs.failures
