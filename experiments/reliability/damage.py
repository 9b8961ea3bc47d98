"""Files of a killed run, damaged one at a time: each damage but of event files must be said, and cost nothing or be refused."""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.reliability import runs
from experiments.reliability.runs import Setting, Trouble
from taac.runs.checkpoint import Checkpoints

SETTINGS = (Setting("taac", "InvertedDoublePendulum-v5", 1), Setting("sac", "LunarLanderContinuous-v3", 2))
KINDS = {
    "manifest": "checkpoints/*.json",
    "tensors": "checkpoints/[0-9]*.safetensors",
    "frames": "checkpoints/frames-*.safetensors",
    "evaluations.csv": "evaluations.csv",
    "run.json": "run.json",
    "config.gin": "config.gin",
    "events": "events.out.tfevents.*",
}
REGIONS = 10  # of each file, hit in turn
VERDICTS = {
    "same bits": "said, and the run ended with the bits of the undamaged one",
    "summaries": "the run ended with the same bits, but its event files lack points",
    "refused": "said, and refused",
    "no matter": "not said; the run ended with the same bits all the same: the file was not needed any more",
    "UNDETECTED": "not said, and the outcome differs",
    "DIFFERS": "said, and yet the outcome differs",
    "CRASHED": "ended without a message",
}
DAMAGES: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "flip": lambda data, at, rng: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
    "zeros": lambda data, at, rng: data[:at] + bytes(min(32, len(data) - at)) + data[at + 32 :],
    "noise": lambda data, at, rng: data[:at] + rng.randbytes(min(32, len(data) - at)) + data[at + 32 :],
    "cut": lambda data, at, rng: data[:at],
    "gap": lambda data, at, rng: data[:at] + data[at + rng.randint(1, 32) :],
    "more": lambda data, at, rng: data[:at] + rng.randbytes(rng.randint(1, 32)) + data[at:],
}


def campaign(folder: Path, given: argparse.Namespace, settings: Sequence[Setting] = SETTINGS) -> list[dict[str, Any]]:
    """`given.damages` damaged files, spread over the settings; a row for each."""
    rows: list[dict[str, Any]] = []
    for setting in settings:
        rng = runs.seeded(given.seed, setting)
        base, expected = _prepare(folder, setting, rng)
        for number in range(-(-given.damages // len(settings))):
            row = _damage(folder / "victim", base, number, rng)
            if row is not None:
                rows.append({"setting": str(setting), **row, **_verdict(setting, folder, expected, row)})
    return rows


def _prepare(folder: Path, setting: Setting, rng: random.Random) -> tuple[Path, dict[str, Any]]:
    """Makes a run that was killed late, with two checkpoints. Returns it and what it should come to."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    calls, expected = runs.whole(setting, folder)
    at = calls - 30  # in its last checkpoint
    runs.run(setting, folder / "base", folder / "log", lambda: runs.replace_os(Trouble(at, runs.die)))
    return folder / "base", expected


def _damage(victim: Path, base: Path, number: int, rng: random.Random) -> dict[str, Any] | None:
    """Copies a run and damages one file of the copy. Returns what was done to it."""
    shutil.rmtree(victim, ignore_errors=True)
    shutil.copytree(base, victim)
    kind = list(KINDS)[number % len(KINDS)]
    path = rng.choice(_needed(victim) if kind == "frames" else sorted(victim.glob(KINDS[kind]), key=_newest)[-1:])
    data, region = path.read_bytes(), number // len(KINDS) % REGIONS
    at = min(len(data) - 1, int((region + rng.random()) / REGIONS * len(data)))
    damage = rng.choice(list(DAMAGES))
    damaged = DAMAGES[damage](data, at, rng)
    if damaged == data:
        return None  # zeros over zeros
    path.write_bytes(damaged)
    return {"kind": kind, "file": path.name, "region": region, "damage": damage, "at": at}


def _newest(path: Path) -> tuple[int, str]:
    return (int(path.stem) if path.stem.isdecimal() else 0, path.name)


def _needed(victim: Path) -> list[Path]:
    """Returns the files of frames that the newest checkpoint names."""
    newest = Checkpoints(victim / "checkpoints").newest()
    return [victim / "checkpoints" / entry["name"] for entry in newest.frames]


def _verdict(setting: Setting, folder: Path, expected: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    log = folder / "victim.log"
    log.unlink(missing_ok=True)
    code = runs.run(setting, folder / "victim", log)
    text = log.read_text(errors="replace")
    said = [line for line in text.replace("\r", "\n").splitlines() if line.startswith("taac")]
    if "Traceback" in text or code not in (0, 1) or (code == 1 and not said):
        return {"verdict": "CRASHED", "said": text[-2000:]}
    if code == 1:
        return {"verdict": "refused", "said": said}
    differing = runs.differences(expected, folder / "victim")
    if differing == ["summaries"] and row["kind"] == "events":
        return {"verdict": "summaries", "said": said}
    if differing:
        return {"verdict": "DIFFERS" if said else "UNDETECTED", "said": said, "differing": differing}
    return {"verdict": "same bits" if said else "no matter", "said": said}


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| file | damaged | " + " | ".join(VERDICTS) + " |", "|---" * (2 + len(VERDICTS)) + "|"]
    for kind in (*KINDS, "all"):
        verdicts = [row["verdict"] for row in rows if kind in (row["kind"], "all")]
        lines.append("| " + " | ".join(map(str, (kind, len(verdicts), *map(verdicts.count, VERDICTS)))) + " |")
    return [*lines, "", *(f"- {name}: {meaning}" for name, meaning in VERDICTS.items())]


failures = runs.failures
