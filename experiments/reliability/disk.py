"""Disks that fill up: by an injected error at every call that changes the disk, and by a small file system where root allows."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reliability import kills, runs
from experiments.reliability.runs import Setting, Trouble
from taac.runs.checkpoint import Checkpoints

SETTING = Setting("sac", "LunarLanderContinuous-v3", 1)
SIZES = (40, 64, 96, 128, 192)  # kilobytes


def campaign(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Makes every call fail in turn, or every n-th (`given.every`); then tries file systems of several sizes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    calls, expected = runs.whole(SETTING, folder)
    rows = [_full_at(folder, number, expected) for number in range(1, calls + 1, given.every)]
    return rows + [_small_disk(folder, size, expected) for size in SIZES]


def _full_at(folder: Path, number: int, expected: dict[str, Any]) -> dict[str, Any]:
    """Fills the disk at one call, and calls the same command again when there is room."""
    run, log = folder / "run", folder / "run.log"
    shutil.rmtree(run, ignore_errors=True)
    log.unlink(missing_ok=True)
    then = folder / "checkpoints_then"  # what had been saved when the disk was full
    then.write_text("[]")

    def no_room(name: str, *args: Any) -> None:
        then.write_text(json.dumps(Checkpoints(run / "checkpoints").saved()))
        if name == "write":
            os.write(args[0], args[1][: len(args[1]) // 2])  # as disks do, it takes a part
        elif name == "close":
            os.close(args[0])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    code = runs.run(SETTING, run, log, lambda: runs.replace_os(Trouble(number, no_room)))
    return {"how": "injected", "at": number, **_verdict(run, log, code, expected, json.loads(then.read_text()))}


def _small_disk(folder: Path, kilobytes: int, expected: dict[str, Any]) -> dict[str, Any]:
    mounted, log = folder / "small", folder / "small.log"
    mounted.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(mounted)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        return {"how": "tmpfs", "at": kilobytes, "verdict": "not possible here", "said": done.stderr}
    try:
        code = runs.run(SETTING, mounted / "run", log)
        subprocess.run(["mount", "-o", "remount,size=64m", str(mounted)], check=True)
        return {"how": "tmpfs", "at": kilobytes, **_verdict(mounted / "run", log, code, expected)}
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def _verdict(run: Path, log: Path, code: int, expected: dict[str, Any], then: Sequence[int] = ()) -> dict[str, Any]:
    text = log.read_text(errors="replace")
    if code == 0:  # what could not be done was tidying up
        differing = runs.differences(expected, run)
        return {"verdict": "went on" if not differing else "DIFFERS", "said": "", "differing": differing}
    said = re.findall(r"taac train: .*", text)
    if code != 1 or "Traceback" in text or not said:
        return {"verdict": "CRASHED", "said": text[-2000:]}
    before, printed = Checkpoints(run / "checkpoints").saved(), log.stat().st_size
    if max(then, default=0) > max(before, default=0):
        return {"verdict": "CHECKPOINT LOST", "said": said}
    code = runs.run(SETTING, run, log)
    if wrong := kills.began_wrongly(before, log.read_bytes()[printed:].decode(errors="replace")):
        return {"verdict": "CHECKPOINT LOST", "said": [*said, wrong]}
    differing = runs.differences(expected, run) if code == 0 else [f"exit code {code}"]
    named = "bytes named" if re.search(r"\d+ bytes are needed", said[0]) else "no bytes named"
    return {"verdict": "DIFFERS" if differing else f"stopped, {named}", "said": said, "differing": differing}


def table(rows: list[dict[str, Any]]) -> list[str]:
    verdicts = sorted({row["verdict"] for row in rows})
    lines = ["| how | times | " + " | ".join(verdicts) + " |", "|---" * (2 + len(verdicts)) + "|"]
    for how in sorted({row["how"] for row in rows}):
        found = [row["verdict"] for row in rows if row["how"] == how]
        lines.append("| " + " | ".join(map(str, (how, len(found), *map(found.count, verdicts)))) + " |")
    return lines


failures = runs.failures
