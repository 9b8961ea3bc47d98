"""Readers of files that somebody else made, given what nobody would write: each must return or refuse, and do nothing else.

    python -m experiments.reliability.fuzz [--draws 10000] [--kinds run.json,config.gin] [--seed 0] [--out FOLDER]

Hypothesis changes valid files: their bytes, their text word by word, their JSON value by value, their arrays; where there is
a checksum, it fits in half of the cases. A reader must return, or raise TaacError; within a minute of processor time, and 2 GiB
beside what the process has; and must not open a file for writing, rename or remove one, start a process, or run code that lies in
the folder. Draws are made in batches, each in a child process, which the system ends when a reading takes too long: no reader and
no library can catch that. The files that it was reading then are kept in `--out`. Prints a table and writes it as `fuzz.md`; the
exit code is 1 if a reader did anything else. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

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
# Of one reading: processor time; time in all, in which a busy machine may do something else; memory.
SECONDS, WAIT, BYTES = 60, 1200, 2 << 30
BATCH = 2500  # draws of one child process


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


def run(kind: str, draws: int, seed: int = 0, keep: Path | None = None) -> Outcome:
    """Draws files of one kind and has them read, until all are or a reader misbehaved.

    Args:
        seed: chooses the draws; the same choose the same.
        keep: folder for a copy of the files that a reader did not come back from.
    """
    counts: collections.Counter[str] = collections.Counter()
    longest, failure = 0.0, ""
    with tempfile.TemporaryDirectory() as name:
        folder, WATCH.folder = Path(name) / "files", name
        folder.mkdir()
        strategy, read = fuzz_files.KINDS[kind](folder)
        for first in range(0, draws, BATCH):
            report = Path(name) / "report"
            child = os.fork()
            if not child:
                _be_child(report, strategy, read, min(BATCH, draws - first), seed + first)
            status = os.waitpid(child, 0)[1]
            text = report.read_text(encoding="utf-8", errors="replace")
            if status:
                failure = (
                    f"reading took more than {SECONDS} s of processor time, or {WAIT} s in all, or crashed: " + text
                )
                if keep:
                    shutil.copytree(folder, keep / f"fuzz-{kind.replace(' ', '-')}", dirs_exist_ok=True, symlinks=True)
            else:
                done = json.loads(text)
                counts.update(done["counts"])
                longest, failure = max(longest, done["longest"]), done["failure"]
            if failure:
                break
    return Outcome(kind, sum(counts.values()), counts["returned"], counts["refused"], longest, failure)


def _be_child(report: Path, strategy: Any, read: Callable[[], object], draws: int, seed: int) -> NoReturn:
    """Reads a batch and leaves at `report` what came of it, or where a reading was when the system ended this process."""
    code = 1
    try:
        with report.open("w") as file:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            faulthandler.register(signal.SIGPROF, file, all_threads=False, chain=True)
            done = _batch(file, strategy, read, draws, seed)
        report.write_text(json.dumps(done))
        code = 0
    except BaseException:
        report.write_text(traceback.format_exc())
    finally:
        os._exit(code)  # no clean-up: what the parent has is the parent's


def _batch(file: IO[str], strategy: Any, read: Callable[[], object], draws: int, seed: int) -> dict[str, Any]:
    counts: collections.Counter[str] = collections.Counter()
    longest, failure = [0.0], ""

    def one(drawn: Callable[[], None]) -> None:
        drawn()  # writes the file
        counts[_outcome(read, longest, file)] += 1

    settings = hypothesis.settings(
        max_examples=draws, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + BYTES, limits[1]))
    try:
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(one)))()
    except BaseException as error:  # whatever a reader raised
        failure = "".join(traceback.format_exception(error, limit=-6))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return {"counts": counts, "longest": longest[0], "failure": failure}


def _outcome(read: Callable[[], object], longest: list[float], file: IO[str]) -> str:
    outcome = "returned"
    faulthandler.dump_traceback_later(WAIT, exit=True, file=file)  # for what waits and takes no processor time
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    WATCH.on, WATCH.seen = True, ""
    began = time.process_time()
    try:
        read()
    except TaacError:
        outcome = "refused"
    finally:
        WATCH.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
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
    flags.add_argument("--seed", type=int, default=0, help="of the draws")
    flags.add_argument("--out", type=Path, default=Path("runs/reliability"))
    given = flags.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for kind in given.kinds.split(","):
        outcomes.append(run(kind, given.draws, given.seed, given.out))
        print(table(outcomes)[-1] + outcomes[-1].failure, flush=True)
    (given.out / "fuzz.md").write_text("\n".join(table(outcomes)) + "\n", encoding="utf-8")
    sys.exit(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    main()
