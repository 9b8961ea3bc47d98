"""How long the `taac` commands of the README take: processor seconds, and seconds on the clock.

    python -m experiments.command_times --out runs/times            # all of them, in order, as they stand
    python -m experiments.command_times --out runs/times play plot  # those alone, on what is there

Runs `taac` commands in a new folder, each on one thread, and prints a row of a table for each. Processor seconds include those
of a command's own processes. On a machine that has other work the clock says more than the command needs.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from taac.runs.provenance import processor

ROOT = Path(__file__).resolve().parents[1]


def commands(text: str) -> list[list[str]]:
    """Returns the words of each `taac` command in the fences of a page, but for those that name the reader's own module."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(body for language, body in fences if not language).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("taac ") and "my_module" not in line]


def measure(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """Runs a command; returns its processor seconds and seconds on the clock.

    Raises:
        RuntimeError: it failed; the message ends with what it printed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    before, start = _processor_seconds(), time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if ended.returncode:
        raise RuntimeError(f"{shlex.join(words)} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return _processor_seconds() - before, seconds


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="the folder in which the commands run")
    parser.add_argument("chosen", nargs="*", help="names of commands, such as train; all by default")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=bool(given.chosen))
    print(f"{processor()}, {os.cpu_count()} cores\n\n| command | processor seconds | seconds | load before |\n|---|---|---|---|")
    for words in commands((ROOT / "README.md").read_text(encoding="utf-8")):
        if not given.chosen or words[1] in given.chosen:
            load = os.getloadavg()[0]
            used, seconds = measure(words, given.out)
            print(f"| `{shlex.join(words)}` | {used:.0f} | {seconds:.0f} | {load:.1f} |", flush=True)


if __name__ == "__main__":
    main()
