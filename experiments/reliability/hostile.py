"""Hostile run folders and files, by the hundreds: no command touches, runs, waits for or is stopped by what is in them."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reliability import runs
from experiments.reliability.attacks import PLACES, Attack, NotPossible
from experiments.reliability.attacks_on_checkpoints import CHECKPOINTS
from experiments.reliability.attacks_on_texts import TEXTS
from experiments.reliability.sandbox import COMMANDS, Sandbox

ATTACKS = (*PLACES, *TEXTS, *CHECKPOINTS)
OUTCOMES = {
    "refused": "exit code 1 and a message",
    "named": "exit code 0, and what is wrong is said",
    "unsaid": "exit code 0 without a word: what was done to the folder is none of the command's business, or harmless",
}
BAD = {
    "IMPORTED": "a module was imported", "CANARY": "a file elsewhere was changed", "HANG": "it did not end in 90 s",
    "SLOW": "it took more than 45 s of a processor", "MEMORY": "it took more than 2 GiB", "TRACEBACK": "a traceback",
    "DIED": "another exit code, or a signal", "WORDLESS": "exit code 1 without a message",
    "CONTROL": "control characters of the folder's reached the terminal",
    "RAW": "HTML or a formula of the folder's is in a report as it is",
}  # fmt: skip
SAID = (
    "warning", "damaged", "left out", "not as it", "cannot", "is no", "problem", "was not", "no finite", "not a plain",
)  # fmt: skip


def campaign(folder: Path, given: argparse.Namespace, chosen: Sequence[Attack] | None = None) -> list[dict[str, Any]]:
    """`given.hostile` cases, each kind of attack in turn; a row for each command that was called on one."""
    sandbox, kinds = Sandbox(folder), chosen or ATTACKS
    sandbox.prepare()
    sandbox.begin("killed")
    usual = {name: _lines(sandbox.call(sandbox.words(name)).said) for name in COMMANDS}
    rows: list[dict[str, Any]] = []
    for number in range(given.hostile):
        attack = kinds[number % len(kinds)]
        rng = runs.seeded(given.seed, "hostile", number)
        about = ""
        for command in _commands(attack, number // len(kinds)):
            sandbox.begin("killed" if command == "train" else rng.choice(("killed", "finished")))
            try:
                about = attack.do(sandbox, runs.seeded(given.seed, "attack", number))
            except (NotPossible, OSError) as error:
                refused = {"about": str(error), "command": "", "outcome": "not possible"}
                rows.append({"number": number, "kind": attack.kind, **refused})
                break
            rows.append({"number": number, "kind": attack.kind, "about": about, **_try(sandbox, command, usual)})
            if rows[-1]["outcome"] in BAD:
                print(json.dumps(rows[-1])[:3000], flush=True)
        (folder / "rows.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows


def _commands(attack: Attack, turn: int) -> list[str]:
    """Two of those that read what was attacked, or the one, in turn."""
    many = len(attack.commands)
    return [attack.commands[(2 * turn + i) % many] for i in range(min(2, many))]


def _lines(said: str) -> set[str]:
    """What was printed, but for numbers and what the progress bar draws over."""
    return {re.sub(r"[\d.]+", "0", line.rsplit("\r", 1)[-1]) for line in said.splitlines()}


def _try(sandbox: Sandbox, command: str, usual: dict[str, set[str]]) -> dict[str, Any]:
    before = sandbox.snapshot()
    end = sandbox.call(sandbox.demonstrated() if command == "demonstrations" else sandbox.words(command))
    wrong = sandbox.wrong(before, end)
    if wrong is not None:
        outcome = wrong.split(":")[0]
    elif end.code == 1:
        outcome = "refused"
    else:
        more = _lines(end.said) - usual.get(command, set())
        outcome = "named" if any(word in line for line in more for word in SAID) else "unsaid"
    return {
        "command": command, "outcome": outcome, "said": wrong or end.said[-300:], "seconds": round(end.processor, 1),
        "MB": end.peak >> 20,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> list[str]:
    bad = [name for name in BAD if any(row["outcome"] == name for row in rows)]
    columns = [*OUTCOMES, *bad]
    lines = ["| attack | cases | commands | " + " | ".join(columns) + " |", "|---" * (3 + len(columns)) + "|"]
    for kind in (*dict.fromkeys(row["kind"] for row in rows), "all"):
        of = [row for row in rows if kind in (row["kind"], "all")]
        found, called = Counter(row["outcome"] for row in of), sum(bool(row["command"]) for row in of)
        cells = kind, len({row["number"] for row in of}), called, *(found[name] for name in columns)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    meanings = {**OUTCOMES, **{name: BAD[name] for name in bad}}
    missing = sorted({row["about"] for row in rows if row["outcome"] == "not possible"})
    return [
        *lines,
        "",
        *(f"- {name}: {about}" for name, about in meanings.items()),
        *(f"- not possible here: {m}" for m in missing),
    ]


def failures(rows: list[dict[str, Any]]) -> int:
    return sum(row["outcome"] in BAD for row in rows)
