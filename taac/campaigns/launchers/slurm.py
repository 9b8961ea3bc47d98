"""Launches runs as the tasks of a SLURM job array."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import gin

from taac.campaigns.launchers import Outcome
from taac.campaigns.launchers.local import ONE_THREAD
from taac.campaigns.run import ATTEMPT, Run
from taac.errors import RESUMABLE, TaacError
from taac.runs import durable, files, layout
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import is_one_line

_SCRIPT = """\
#!/bin/bash
# {count} runs of `taac compare`, each a task of this array. A task whose run is finished, and not to be extended, does
# nothing. Any other task resumes its run from the last checkpoint, so this script, or any task of it, can be submitted
# again at any time.
# SLURM writes a task's messages to a folder that must exist before, or else the task may not begin:
#   mkdir -p {slurm}
{headers}
cd {cwd} || exit 1
extended=
case "$SLURM_ARRAY_TASK_ID" in
{cases}
*) echo "there is no run '$SLURM_ARRAY_TASK_ID'; SLURM_ARRAY_TASK_ID must be 0 to {last}" >&2; exit 2 ;;
esac
[ -z "$extended" ] && grep -qs '"status": "finished"' "$folder/{run}" && exit 0
# A link there, or a file that has another name, would have what the run prints added to it.
[ -z "$(find "$log" -prune ! '(' -type f -links 1 ')' 2>/dev/null)" ] || {{ echo "$log is a link" >&2; exit 1; }}
mkdir -p "$(dirname "$log")" {slurm} && exec >>"$log" 2>&1 || exit 1
echo "{attempt}$(date -u +%Y-%m-%dT%H:%M:%S+00:00) $(hostname) SLURM ${{SLURM_JOB_ID:-none}}"
child= stop= requeue=
ask_to_stop() {{ stop=1; [ -z "$child" ] || kill -TERM "$child"; }}
trap ask_to_stop TERM                    # cancelled, or preempted: then SLURM itself requeues it
trap 'requeue=1; ask_to_stop' USR1       # the time limit is near
{threads}
{setup}
ended={slurm}/"${{SLURM_ARRAY_JOB_ID:-none}}_$SLURM_ARRAY_TASK_ID.exit"
rm -f "$ended"
code={resumable}
if [ -z "$stop" ]; then
    "${{run[@]}}" &
    child=$!
    [ -z "$stop" ] || kill -TERM "$child"
    while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done  # a signal ends `wait`, not the run
fi
[ -z "$stop" ] || [ "$code" -ne 143 ] || code={resumable}
(set -o noclobber; echo "$code" >"$ended")
if [ -n "$requeue" ] && [ "$code" -eq {resumable} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
REQUEUES = 100  # most requeues of one task, which bounds a run that makes no progress within its time limit
_KEPT = ("task", "words")  # of each run that was submitted
LONGEST_SUBMISSION = 600.0  # seconds to wait for another call that submits
NOTICE = 120  # seconds before the time limit at which a run is asked to stop; SLURM may signal up to a minute early


@gin.configurable
class SlurmArray:
    """Resources that each task of the job array requests. None uses the cluster's default.

    Args:
        partition, time, mem, gres: options of `sbatch`, such as "gpu", "24:00:00", "4G", "gpu:1".
        cpus: CPUs per task. More than one helps only with `create_experiment.num_threads` or asynchronous environments.
        setup: shell lines to run before training, such as "module load cuda".
        options: further options of `sbatch`, such as "--account=me".

    Raises:
        TaacError: `cpus` or `time` is too small, or an option is malformed.
    """

    def __init__(
        self,
        partition: str | None = None,
        time: str | None = None,
        mem: str | None = None,
        cpus: int = 1,
        gres: str | None = None,
        setup: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
    ):
        if cpus < 1:
            raise TaacError(f"SlurmArray.cpus must be 1 or more, got {cpus}")
        for option in options:
            if not option.startswith("-") or "\n" in option:
                raise TaacError(f"SlurmArray.options must be options of sbatch such as '--account=me', got '{option}'")
        if time is not None and _seconds(time) < NOTICE + 180:
            raise TaacError(
                f"SlurmArray.time must be 5 minutes or more, got '{time}': the last {NOTICE} seconds are for saving"
            )
        self.setup = setup
        asked = {"partition": partition, "time": time, "mem": mem, "cpus-per-task": cpus, "gres": gres}
        self.options = [*(f"--{name}={value}" for name, value in asked.items() if value is not None), *options]
        for option in self.options:
            _check_line(f"SlurmArray: the option {option!r}", option)

    def script(self, runs: Sequence[Run], root_dir: str | Path, jobs: int = 0) -> str:
        """Returns the script of the job array, with at most `jobs` tasks at a time (0: no limit).

        The same runs and options yield the same text.
        """
        for path in (str(folder(root_dir)), os.getcwd()):
            _check_line(f"the folder {path!r}", path)
        slurm = shlex.quote(str(folder(root_dir)))
        output = shlex.quote(str(folder(root_dir)).replace("%", "%%"))  # in names of output files, SLURM replaces %A, %j...
        options = [
            "--job-name=taac", f"--array=0-{len(runs) - 1}" + (f"%{jobs}" if jobs else ""),
            f"--output={output}/%A_%a.out", "--open-mode=append",
            # Signals this script with USR1 before the time limit, so that the run can save.
            "--requeue", f"--signal=B:USR1@{NOTICE}", *self.options,
        ]  # fmt: skip
        cases = [
            f"{i}) folder={shlex.quote(os.path.abspath(run.folder))} log={shlex.quote(os.path.abspath(run.log))}\n"
            f"    {'' if run.steps is None else 'extended=yes '}run=({shlex.join(run.command)}) ;;"
            for i, run in enumerate(runs)
        ]
        return _SCRIPT.format(
            count=len(runs),
            last=len(runs) - 1,
            headers="\n".join(f"#SBATCH {option}" for option in options),
            cwd=shlex.quote(os.getcwd()),
            cases="\n".join(cases),
            slurm=slurm,
            attempt=ATTEMPT,
            run=layout.RUN,
            threads="export " + " ".join(f"{name}={value}" for name, value in ONE_THREAD.items()),
            setup="\n".join(self.setup),
            resumable=RESUMABLE,
            requeues=REQUEUES,
        )


class SlurmQueue:
    """Submits the runs that are not already queued, and follows them in SLURM's queue.

    Stopping this object leaves the array running. SLURM requeues interrupted tasks.

    Args:
        runs: all runs of the script, in its order.
        script: the file of the job array.
        jobs: how many tasks may run at a time; 0: no limit.
        interval: seconds between two checks of the queue.
        grace: seconds to wait for the files of a task that has left the queue to become visible here.

    Raises:
        TaacError: there is no SLURM on this machine, or its queue does not answer.
    """

    attempts = 1

    def __init__(self, runs: Sequence[Run], script: Path, jobs: int = 0, interval: float = 15.0, grace: float = 60.0):
        if missing := [name for name in ("sbatch", "squeue") if shutil.which(name) is None]:
            raise TaacError(
                f"--launcher slurm: there is no {missing[0]} on this machine; submit {script} where there is one"
            )
        self.interval, self._grace, self._script = interval, grace, script
        self._limit = f"%{jobs}" if jobs else ""
        self._index = {run: i for i, run in enumerate(runs)}
        self._pending: list[Run] = []
        self._tasks: dict[Run, str] = {}  # queued runs: "<job>_<index>"
        self._left: dict[Run, float] = {}  # when a run was first missing from the queue
        self._known = folder(script.parent) / "tasks.json"
        files.check_folder(self._known.parent)
        looked = self._look()
        if looked is None:  # treating it as empty would submit queued runs again
            raise TaacError(
                "squeue does not answer, so nothing was submitted: tasks that are already in SLURM's queue could be started "
                "twice. Run the same command again when squeue answers"
            )
        self._queue = looked

    def begin(self, run: Run) -> None:
        task, words = self._submitted().get(os.path.abspath(run.folder), ("", None))
        if task not in self._queue:
            self._pending.append(run)
            return
        if words not in (None, _words(run)):  # it would train what was asked for then
            raise TaacError(
                f"{run.name} is in SLURM's queue as task {task}, asked for by other words; nothing was submitted. Give the same "
                f"words again, cancel it (scancel {task}), or give another --root_dir. It was: {words}; it is: {_words(run)}"
            )
        self._tasks[run] = task  # submitted by an earlier call

    def begun(self, run: Run) -> bool:
        return self._queue.get(self._tasks.get(run, ""), "PENDING") != "PENDING"

    def ended(self) -> list[tuple[Run, Outcome]]:
        if self._pending:
            self._submit()
        looked = self._look()
        if looked is None:  # the queue did not answer; the next call asks again
            return []
        self._queue = looked
        over = []
        for run, task in list(self._tasks.items()):
            if task in self._queue:
                self._left.pop(run, None)  # one answer of squeue lacked it
                continue
            outcome = self._outcome(run, task)
            if outcome is not None:
                over.append((run, outcome))
                del self._tasks[run]
        return over

    def stop(self) -> None:
        pass

    def _submit(self) -> None:
        """Submits what is pending, unless another call has submitted it meanwhile or the queue does not answer."""
        make_folder(self._script.parent)
        with RunFolder(self._known.parent).lock(LONGEST_SUBMISSION):
            if (looked := self._look()) is None:
                return
            self._queue, pending, self._pending = looked, self._pending, []
            for run in pending:
                self.begin(run)
            if self._pending:
                self._submit_pending()

    def _submit_pending(self) -> None:
        indices = ",".join(str(self._index[run]) for run in self._pending)
        command = ["sbatch", "--parsable", f"--array={indices}{self._limit}", str(self._script)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise TaacError(f"{shlex.join(command)} failed: {result.stderr.strip()}")
        job = result.stdout.strip().split(";")[0]  # the name of a cluster may follow
        tasks = {run: f"{job}_{self._index[run]}" for run in self._pending}
        now = {os.path.abspath(run.folder): (task, _words(run)) for run, task in tasks.items()}
        known = {path: dict(zip(_KEPT, entry)) for path, entry in {**self._submitted(), **now}.items()}
        durable.write(self._known, (json.dumps(known, indent=1) + "\n").encode())
        self._tasks.update(tasks)
        self._pending = []

    def _submitted(self) -> dict[str, tuple[str, str | None]]:
        """Returns the last task of each run that was ever submitted, and the words that asked for it (None: not known).

        The keys are whole paths, because a call may name the root otherwise.
        """
        try:
            known = files.read_bounded_json(self._known, files.MAX_JSON_BYTES)
        except FileNotFoundError:
            return {}
        entries = known.values() if isinstance(known, dict) else [None]
        if not all(isinstance(e, str) or (isinstance(e, dict) and isinstance(e.get("task"), str)) for e in entries):
            raise TaacError(f"{self._known} holds no tasks by run; if none of them is in SLURM's queue, remove it")
        # Earlier versions kept the task alone.
        found = {path: {"task": entry} if isinstance(entry, str) else entry for path, entry in known.items()}
        return {os.path.abspath(path): (entry["task"], entry.get("words")) for path, entry in found.items()}

    def _look(self) -> dict[str, str] | None:
        """Returns the state of each of the user's array tasks in the queue; None if the queue does not answer."""
        command = ["squeue", "--me", "--noheader", "--array", "--format", "%F_%K %T"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            return None
        words = (line.split() for line in result.stdout.splitlines())
        return {pair[0]: pair[1] for pair in words if len(pair) == 2}

    def _outcome(self, run: Run, task: str) -> Outcome | None:
        """Returns how a task that has left the queue ended; None while that is not yet known."""
        if run.finished():
            return Outcome(0)
        code = None
        with contextlib.suppress(OSError, ValueError):
            code = int(files.read_bounded(self._known.parent / f"{task}.exit", 64))
        if code:
            killed_by = code - 128  # shells report a signal n as 128 + n; 255 is no signal
            return Outcome(-killed_by if killed_by in signal.valid_signals() else code)
        now = time.monotonic()
        if now - self._left.setdefault(run, now) < self._grace:
            return None  # after 0 too: its run has finished, which may not be visible here yet
        if code == 0:
            return Outcome(0)
        return Outcome(None, f"SLURM task {task} is gone: cancelled, out of memory or time, or its machine failed")


def _words(run: Run) -> str:
    """Returns what a run was asked for by, wherever it is."""
    return shlex.join(run.asked.words())


def _check_line(what: str, text: str) -> None:
    """Raises TaacError if a text would occupy more than one line of the script."""
    if not is_one_line(text):
        raise TaacError(f"{what} holds line ends or control characters, which would be lines of the script")


def _seconds(limit: str) -> float:
    """Returns the seconds of a time limit of `sbatch`: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Returns infinity for any other text, which SLURM itself will check.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit.strip())
    if match is None:
        return math.inf
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None or match[4] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second


def folder(root_dir: str | Path) -> Path:
    """Returns the folder for SLURM's own output about the runs below `root_dir`."""
    return Path(os.path.abspath(root_dir)) / "slurm"


def make_folder(root_dir: str | Path) -> None:
    """Creates that folder if it does not exist.

    Raises:
        NotPlain: a link is there, which SLURM would follow when writing.
    """
    if not files.check_folder(folder(root_dir)):
        folder(root_dir).mkdir(parents=True, exist_ok=True)
