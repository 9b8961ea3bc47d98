"""Runs interrupted at random moments, in every way, which must end as the run that was never interrupted: the same bits."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
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

from experiments.reliability import interruptions, runs, settings
from experiments.reliability.interruptions import Compilations, DiskCalls, Interruption
from experiments.reliability.runs import Setting
from taac.errors import RESUMABLE
from taac.machine import compiled
from taac.runs.checkpoint import Checkpoints
from taac.training import interruption as taac_interruption

MOST = 8  # interruptions of one run; then it is let go on to its end
LIMIT = 240.0  # seconds that an attempt may take
FINISHING = "finishing this iteration"


def campaign(folder: Path, given: argparse.Namespace, chosen: Sequence[Setting] | None = None) -> list[dict[str, Any]]:
    """`given.kills` interruptions of each setting; a row for each."""
    if chosen is None:
        every = (*settings.METHODS, *settings.MORE, *settings.COMPILING, *settings.WORKERS)
        chosen = settings.QUICK if getattr(given, "quick", False) else every
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for setting in chosen:
        rng = runs.seeded(given.seed, setting)
        try:
            rows.append(Campaign(folder / "runs", settings.with_demonstrations(setting, folder), rng).run(given.kills))
        except RuntimeError as error:
            rows.append({"setting": str(setting), "runs": 0, "by kind": {}, "failed": [str(error)], "seconds": 0})
        print(json.dumps(rows[-1]), flush=True)
        (folder / "rows.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return rows


class Campaign:
    """The interruptions of one setting.

    Args:
        folder: for its runs, and what they print; emptied first.
    """

    def __init__(self, folder: Path, setting: Setting, rng: random.Random):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.setting, self.rng = folder, setting, rng
        self.log, self.handling = folder / "log", folder / "handling"  # see `mark`
        compiling, worker = setting in settings.COMPILING, setting.compared == "restarts"
        kinds = interruptions.COMPILING if compiling else interruptions.WORKER if worker else interruptions.EVERY
        self.draw = interruptions.deck(kinds, rng)
        self.row: dict[str, Any] = {
            "setting": str(setting), "compared": setting.compared, "runs": 0, "by kind": Counter(), "failed": [],
        }  # fmt: skip

    def run(self, kills: int) -> dict[str, Any]:
        started = time.monotonic()
        self._whole()
        while sum(self.row["by kind"].values()) < kills and not self.row["failed"]:
            run = self.folder / f"killed-{self.row['runs']}"
            self.row["runs"] += 1
            if self._to_the_end(run, kills):
                differing = runs.differences(self.expected, run, self.setting.compared)
                if differing:
                    self._failed(f"differs in {', '.join(differing)}")
            if not self.row["failed"]:
                shutil.rmtree(run)
        return {**self.row, "by kind": dict(self.row["by kind"]), "seconds": round(time.monotonic() - started)}

    def _whole(self) -> None:
        """Trains the run that nothing interrupts: what it comes to, its time, and how often it does what kills will hit."""
        whole, counted, start = self.folder / "whole", self.folder / "counted", time.monotonic()

        def count() -> Callable[[], object]:
            calls, compilations = DiskCalls(whole), Compilations(self.folder / "cache")
            calls.install(), compilations.install(compiled)
            return lambda: counted.write_text(json.dumps([calls.count, compilations.seconds]))

        code = runs.run(self.setting, whole, self.log, count)
        if code != 0:
            raise RuntimeError(f"{self.setting} ended with {code}: {self.log.read_text()[-2000:]}")
        self.seconds = time.monotonic() - start
        self.calls, self.compilations = json.loads(counted.read_text())
        self.expected = runs.outcome(whole)
        self.end = max(Checkpoints(whole / "checkpoints").saved())

    def _to_the_end(self, run: Path, kills: int) -> bool:
        """Interrupts a run again and again until it ends; whether it did, and as it should each time."""
        for number in itertools.count():
            enough = number >= MOST or sum(self.row["by kind"].values()) >= kills
            kind = None if enough else self.draw()
            saved, printed = Checkpoints(run / "checkpoints").saved(), self.log.stat().st_size
            code, sent, handling = self._attempt(run, kind, saved)
            said = self.log.read_bytes()[printed:].decode(errors="replace")
            if kind is not None and sent and (code != 0 or kind.when == "worker"):
                self.row["by kind"][str(kind)] += 1
            if wrong := self._judge(run, kind if sent else None, code, handling, saved, said):
                self._failed(f"{kind}: {wrong}")
                return False
            if code == 0:
                return True
        return False

    def _failed(self, why: str) -> None:
        self.row["failed"].append(f"run {self.row['runs'] - 1}: {why}")

    def _attempt(self, run: Path, kind: Interruption | None, saved: list[int]) -> tuple[int, bool, str]:
        """Goes on with a run, and interrupts it if it lasts that long.

        Returns:
            its exit code; whether the interruption was sent, as far as that can be known; what `mark` says at its end.
        """
        self.handling.unlink(missing_ok=True)
        rng, when = self.rng, kind.when if kind else ""
        at, late = rng.randint(1, max(1, self.calls.get(when, 1) // 2)), rng.random() < 0.5
        number = rng.randrange(max(1, len(self.compilations)))
        after = rng.uniform(0, self.compilations[number]) if self.compilations else 0.0
        cache = self.folder / "cache"
        if when == "compiling" and rng.random() < 0.5:  # else it finds what was half compiled
            shutil.rmtree(cache, ignore_errors=True)

        def prepare() -> None:
            mark(self.handling)
            Compilations(cache, kind if when == "compiling" else None, number, after).install(compiled)
            if when in interruptions.CALLS:
                DiskCalls(run, when, at, late).install()

        child = self.child = runs.start(self.setting, run, self.log, prepare)
        deadline, sent = time.monotonic() + LIMIT, when in (*interruptions.CALLS, "compiling")
        if when == "worker":
            sent = self._kill_workers(child)
        elif when == "time":
            left = 1 - max(saved, default=0) / self.end
            time.sleep(rng.uniform(0, self.seconds * (0.2 + 0.8 * left)))
            sent = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            if sent and kind is not None:
                interruptions.deliver(kind, child, rng)
        code = ended(child, deadline)
        return code, sent, self.handling.read_text() if self.handling.exists() else ""

    def _kill_workers(self, child: int) -> bool:
        """Kills one process of an environment, up to twice; whether any was."""
        killed = False
        for _ in range(self.rng.randint(1, 2)):
            while (
                not self.handling.exists() and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                time.sleep(0.05)
            time.sleep(self.rng.uniform(0, self.seconds / 3))
            if self.handling.exists() and (found := interruptions.workers(child)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.rng.choice(found), signal.SIGKILL)
                    killed = True
        return killed

    def _judge(
        self, run: Path, kind: Interruption | None, code: int, handling: str, saved: list[int], said: str
    ) -> str | None:
        """Returns what is wrong with an attempt's end; None: nothing."""
        if left := self._left_behind(kind):
            return left
        expected = {0} if kind is None or kind.when == "worker" else {0, RESUMABLE, *(-s for s in kind.signals)}
        if kind is not None and signal.SIGINT in kind.signals:
            expected |= {-signal.SIGINT, 130}  # while it starts
        if code not in expected:
            return f"ended with {code}: {said[-1500:]}"
        killed = kind is not None and signal.SIGKILL in kind.signals
        if (
            "Traceback" in said and handling and not killed
        ):  # workers may find their pipe closed before they are ended too
            return f"a traceback: {said[-1500:]}"
        if handling == "now" and code not in (0, RESUMABLE) and not killed:
            return f"ended with {code} where signals are handled: {said[-1500:]}"
        if (code == 0 or (code == RESUMABLE and FINISHING in said)) and (wrong := began_wrongly(saved, said)):
            return wrong
        if code == RESUMABLE and FINISHING in said and "stopped at once" not in said:
            status = json.loads((run / "run.json").read_text())["status"]
            if status != "interrupted":
                return f"run.json says {status} after an orderly end"
        return None

    def _left_behind(self, kind: Interruption | None) -> str | None:
        """Kills processes that outlive the run and says so; a compiler may, until it is done. None: there are none."""
        if kind is not None and kind.when == "compiling":
            return None
        left = interruptions.outliving(self.child, 20)
        for process in left:
            os.kill(process, signal.SIGKILL)
        return f"{len(left)} processes outlive it" if left else None


def ended(child: int, deadline: float) -> int:
    """Returns the exit code of a process, or minus the signal that ended it; it is killed at the deadline, which gives 124."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            runs.wait(child)
            return 124
        time.sleep(0.01)


def mark(path: Path) -> None:
    """Has this process write "now" at `path` when it begins to handle signals that ask it to stop, and "no more" after."""
    kind = taac_interruption.Interruption
    enter, leave = kind.__enter__, kind.__exit__

    def entered(self: Any) -> Any:
        found = enter(self)
        path.write_text("now")
        return found

    def left(self: Any, *error: Any) -> None:
        path.write_text("no more")
        leave(self, *error)

    kind.__enter__, kind.__exit__ = entered, left  # type: ignore[method-assign]


def began_wrongly(saved: list[int], said: str) -> str | None:
    """Says if a run that got to training began elsewhere than at its newest checkpoint, which its bits would not tell; else None.

    Args:
        saved: the checkpoints that were there, the newest first.
        said: what it printed.
    """
    if "finished; nothing to do" in said:
        return None
    begun = [int(steps) for steps in re.findall(r"resuming .* at (\d+) environment steps", said)]
    if begun != saved[:1]:
        return f"it went on at {begun or 'the beginning'}, with checkpoints at {saved}"
    trouble = re.findall(r"taac: .*(?:damaged|cannot be used|reached another state).*", said)
    return trouble[0] if trouble else None


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| setting | compared | runs | interruptions | failed |", "|---" * 5 + "|"]
    total, kinds = [0, 0, 0], Counter[str]()
    for row in rows:
        numbers = row["runs"], sum(row["by kind"].values()), len(row["failed"])
        lines.append("| " + " | ".join(map(str, (row["setting"], row.get("compared", "bits"), *numbers))) + " |")
        total = [a + b for a, b in zip(total, numbers)]
        kinds.update(row["by kind"])
    lines += [f"| all | | {total[0]} | {total[1]} | {total[2]} |", "", "| how | times |", "|---|---|"]
    return [*lines, *(f"| {name} | {count} |" for name, count in sorted(kinds.items()))]


def failures(rows: list[dict[str, Any]]) -> int:
    for why in (f"{row['setting']}: {why}" for row in rows for why in row["failed"]):
        print(why)
    return sum(len(row["failed"]) for row in rows)
