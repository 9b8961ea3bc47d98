"""Readers of files that somebody else made, given what nobody would write: each must return or refuse, and do nothing else.

    python -m experiments.reliability.fuzz [--draws 10000] [--kinds run.json,config.gin] [--out FOLDER]

Hypothesis changes valid files: their bytes, their text word by word, their JSON value by value, their arrays; where there is
a checksum, it fits in half of the cases. A reader must return, or raise TaacError; within a minute, and 2 GiB beside what the
process has; and must not open a file for writing, rename or remove one, start a process, or run code that lies in the folder.
Prints a table and writes it as `fuzz.md`; the exit code is 1 if a reader did anything else. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis

from experiments.reliability import fuzz_files
from taac.errors import TaacError

_CHANGES = {
    "os.rename",
    "os.remove",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.mkdir",
    "os.system",
    "subprocess.Popen",
}
SECONDS, BYTES = 60, 2 << 30  # of one reading; the clock runs on while a busy machine does something else


class Misbehaved(Exception):
    """What a reader did that it must not do."""


class Outcome(NamedTuple):
    """Of all draws of one kind of file."""

    kind: str
    draws: int
    returned: int
    refused: int
    seconds: float  # the longest reading
    failure: str  # empty: none


class Watch:
    """Notes what the interpreter does while a reader reads; it can be installed once in a process."""

    def __init__(self) -> None:
        self.on, self.seen, self.folder = False, "", ""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, values: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, _, flags = values
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if changes and path != os.devnull:
                self.seen = f"opened {path!r} for writing"
        elif event in _CHANGES or (event == "exec" and self.folder in str(getattr(values[0], "co_filename", ""))):
            self.seen = f"{event} {values!r:.200}"


WATCH = Watch()


def _ring(*_: object) -> None:
    raise Misbehaved(f"reading took more than {SECONDS} s")


def run(kind: str, draws: int) -> Outcome:
    """Draws files of one kind and has them read."""
    counts: collections.Counter[str] = collections.Counter()
    longest = [0.0]
    with tempfile.TemporaryDirectory() as name:
        folder, WATCH.folder = Path(name), name
        strategy, read = fuzz_files.KINDS[kind](folder)

        def one(drawn: Callable[[], None]) -> None:
            drawn()  # writes the file
            counts[_outcome(read, longest)] += 1

        test = hypothesis.given(strategy)(one)
        test = hypothesis.settings(
            max_examples=draws, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )(test)
        before = signal.signal(signal.SIGALRM, _ring)
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + BYTES, limits[1]))
        try:
            test()
            failure = ""
        except BaseException as error:  # whatever a reader raised
            failure = "".join(traceback.format_exception(error, limit=-6))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            signal.alarm(0), signal.signal(signal.SIGALRM, before)
    return Outcome(kind, sum(counts.values()), counts["returned"], counts["refused"], longest[0], failure)


def _outcome(read: Callable[[], object], longest: list[float]) -> str:
    WATCH.on, WATCH.seen, outcome = True, "", "returned"
    signal.alarm(SECONDS)
    began = time.process_time()
    try:
        read()
    except TaacError:
        outcome = "refused"
    finally:
        signal.alarm(0)
        WATCH.on = False
        longest[0] = max(longest[0], time.process_time() - began)
    if WATCH.seen:
        raise Misbehaved(WATCH.seen)
    return outcome


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def table(outcomes: list[Outcome]) -> list[str]:
    rows = [
        f"| {o.kind} | {o.draws} | {o.returned} | {o.refused} | {o.seconds:.2f} | {1 if o.failure else 0} |"
        for o in outcomes
    ]
    return ["| file | draws | read | refused | longest, s | FAILED |", "|---|---|---|---|---|---|", *rows]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--draws", type=int, default=10_000, help="of each kind")
    flags.add_argument("--kinds", default=",".join(fuzz_files.KINDS), help="which, by comma")
    flags.add_argument("--out", type=Path, default=Path("runs/reliability"))
    given = flags.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for kind in given.kinds.split(","):
        outcomes.append(run(kind, given.draws))
        print(table(outcomes)[-1] + outcomes[-1].failure, flush=True)
    (given.out / "fuzz.md").write_text("\n".join(table(outcomes)) + "\n", encoding="utf-8")
    sys.exit(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    main()
