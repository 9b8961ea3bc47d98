"""Launches runs as the tasks of a SLURM job array."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import gin

from taac.campaigns.launchers.local import ONE_THREAD
from taac.campaigns.run import ATTEMPT, Run
from taac.errors import RESUMABLE, TaacError, refuse_below
from taac.runs import durable, files, layout
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
mkdir -p "$(dirname "$log")" {slurm} && exec >>"$log" 2>&1 || exit 1
echo "{attempt}$(date -u +%Y-%m-%dT%H:%M:%S+00:00) $(hostname) SLURM ${{SLURM_JOB_ID:-none}}"
child= stop= requeue=
ask_to_stop() {{ stop=1; [ -z "$child" ] || kill -TERM "$child"; }}
trap ask_to_stop TERM                    # cancelled, or preempted: then SLURM itself requeues it
trap 'requeue=1; ask_to_stop' USR1       # the time limit is near
{threads}
{setup}
code={resumable}
if [ -z "$stop" ]; then
    "${{run[@]}}" &
    child=$!
    [ -z "$stop" ] || kill -TERM "$child"
    while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done  # a signal ends `wait`, not the run
fi
[ -z "$stop" ] || [ "$code" -ne 143 ] || code={resumable}
if [ -n "$requeue" ] && [ "$code" -eq {resumable} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
REQUEUES = 100  # most requeues of one task, which bounds a run that makes no progress within its time limit
NOTICE = 120  # seconds before the time limit at which a run is asked to stop; SLURM may signal up to a minute early


@gin.configurable
class SlurmArray:
    """Resources that each task of the job array requests. None uses the cluster's default.

    Args:
        partition, time, mem, gres: options of `sbatch`, such as "gpu", "24:00:00", "4G", "gpu:1".
        cpus: CPUs per task. More than one helps only with `create_experiment.num_threads` or asynchronous environments.
        setup: shell lines to run before training, such as "module load cuda".
        options: further options of `sbatch`, such as "--account=me".
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
        refuse_below(1, "SlurmArray", cpus=cpus)
        for option in options:
            if not option.startswith("-"):
                raise TaacError(f"SlurmArray.options must be options of sbatch such as '--account=me', got '{option}'")
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


def submit(runs: Sequence[Run], root_dir: str | Path, array: SlurmArray, jobs: int = 0) -> str:
    """Writes the script, and submits the tasks of the runs that are not finished. Returns what `sbatch` answers.

    A run whose task is still in the queue may be submitted twice: its folder is locked, so it is trained once. Where there is no
    SLURM, it refuses once the script is written.
    """
    if not files.check_folder(folder(root_dir)):  # for the tasks' output, whoever submits them
        folder(root_dir).mkdir(parents=True, exist_ok=True)
    script = Path(root_dir) / "compare.sbatch"
    durable.write(script, array.script(runs, root_dir, jobs).encode())
    if shutil.which("sbatch") is None:
        raise TaacError(f"--launcher slurm: there is no sbatch on this machine; submit {script} where there is one")
    unfinished = ",".join(str(number) for number, run in enumerate(runs) if not run.finished())
    if not unfinished:
        return "all runs are finished; nothing was submitted"
    command = ["sbatch", f"--array={unfinished}" + (f"%{jobs}" if jobs else ""), str(script)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise TaacError(f"{shlex.join(command)} failed: {result.stderr.strip()}")
    return result.stdout.strip()


def _check_line(what: str, text: str) -> None:
    """Raises TaacError if a text would occupy more than one line of the script."""
    if not is_one_line(text):
        raise TaacError(f"{what} holds line ends or control characters, which would be lines of the script")


def folder(root_dir: str | Path) -> Path:
    """Returns the folder for SLURM's own output about the runs below `root_dir`."""
    return Path(os.path.abspath(root_dir)) / "slurm"
