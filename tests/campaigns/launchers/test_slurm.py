"""The tasks of the job array, run as SLURM would run them; and `sbatch`, as played by a small script."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taac.analysis.report.text import missing_warnings
from taac.campaigns.comparison import Comparison
from taac.campaigns.launchers import slurm
from taac.campaigns.run import Run
from taac.configuration import RunRequest
from taac.errors import TaacError
from tests.campaigns.launched import POINT, SMALL, compare, compared, evaluations, finish, processes, wait_for

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="SLURM's scripts are for bash")


def array_of(root, params=(), methods=("taac",), **options):
    runs = Comparison(methods, (POINT,), seeds=1).plan(root, RunRequest(gin_params=(*SMALL, *params)))
    script = Path(root) / "compare.sbatch"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(slurm.SlurmArray(**options).script(runs, root))
    return runs, script


def start(script, index, path=None, **variables):
    env = {
        **os.environ,
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_JOB_ID": "77",
        **variables,
    }
    env["PATH"] = f"{path}:{env['PATH']}" if path else env["PATH"]
    return subprocess.Popen(["bash", str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def slurm_commands(tmp_path):
    """A folder with `scontrol`, which notes what it is called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command(folder, "scontrol", f'echo "$@" >>{folder}/scontrol.called')
    return folder


def command(folder, name, text):
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
def test_a_task_that_is_stopped_and_run_again_ends_with_the_same_bits(tmp_path, slurm_commands):
    assert compared(tmp_path / "whole", methods="taac")[0] == 0
    runs, script = array_of(tmp_path / "stopped")
    task = start(script, 0, slurm_commands)
    wait_for(lambda: any(runs[0].folder.glob("checkpoints/*.json")), task)
    task.send_signal(signal.SIGUSR1)
    code, _, _ = finish(task)
    assert code == 75 and not runs[0].finished()
    assert not processes(str(tmp_path / "stopped"))
    assert (slurm_commands / "scontrol.called").read_text() == "requeue 77\n"
    assert finish(start(script, 0, slurm_commands))[0] == 0 and runs[0].finished()
    assert evaluations(tmp_path / "stopped") == evaluations(tmp_path / "whole")
    assert runs[0].log.read_text().count("=== ") == 2 and "SLURM 77" in runs[0].log.read_text()


def test_a_finished_task_does_nothing_and_an_unknown_one_is_refused(tmp_path):
    runs, script = array_of(tmp_path)
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / "run.json").write_text('{\n  "status": "finished"\n}\n')
    before = sorted(tmp_path.rglob("*"))
    assert finish(start(script, 0)) == (0, "", "")
    assert sorted(tmp_path.rglob("*")) == before
    code, _, err = finish(start(script, 1))
    assert code == 2 and "0 to 0" in err


def test_a_task_extends_a_finished_run(tmp_path):
    runs, script = planned(tmp_path)
    finish_folder(runs[0])
    longer = runs[0]._replace(command=("touch", str(tmp_path / "trained")), steps=500)
    script.write_text(slurm.SlurmArray().script([longer], script.parent))
    assert finish(start(script, 0))[0] == 0 and (tmp_path / "trained").exists()


def test_a_task_that_fails_says_so_and_setup_lines_come_before(tmp_path):
    runs, script = planned(tmp_path)
    (run, *_) = runs = [runs[0]._replace(command=("bash", "-c", "echo taac train: it is $MINE >&2; exit 1"))]
    script.write_text(slurm.SlurmArray(setup=("echo set up $SLURM_JOB_ID", "export MINE=1")).script(runs, script.parent))
    assert finish(start(script, 0))[0] == 1
    lines = run.log.read_text().splitlines()
    assert lines[1] == "set up 77" and run.error().startswith("taac train: it is 1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_set_up_starts_nothing(tmp_path, slurm_commands, number):
    """SLURM requeues a task that it preempts; near the time limit the task has to ask for it."""
    runs, script = array_of(tmp_path, setup=(f"touch {tmp_path}/on; sleep 0.3",))
    task = start(script, 0, slurm_commands)
    wait_for((tmp_path / "on").exists, task)
    task.send_signal(number)
    assert finish(task)[0] == 75 and not runs[0].folder.exists()
    called = slurm_commands / "scontrol.called"
    assert (called.read_text() if called.exists() else "") == ("requeue 77\n" if number == signal.SIGUSR1 else "")


def test_a_task_is_not_requeued_for_ever(tmp_path, slurm_commands):
    _, script = array_of(tmp_path, setup=(f"touch {tmp_path}/on; sleep 0.3",))
    task = start(script, 0, slurm_commands, SLURM_RESTART_COUNT="100")
    wait_for((tmp_path / "on").exists, task)
    task.send_signal(signal.SIGUSR1)
    assert finish(task)[0] == 75 and not (slurm_commands / "scontrol.called").exists()


def test_names_that_slurm_or_the_shell_would_read_otherwise(tmp_path):
    """SLURM replaces %j and the like in the name of the output, and reads %% as one of them."""
    script = slurm.SlurmArray().script([], tmp_path / "at 50%job")
    assert f"\n#SBATCH --output='{tmp_path}/at 50%%job/slurm'/%A_%a.out\n" in script
    assert f"mkdir -p '{tmp_path}/at 50%job/slurm'\n" in script
    with pytest.raises(TaacError, match="holds line ends or control characters, which would be lines of the script"):
        slurm.SlurmArray().script([], tmp_path / "x\ntouch ran")


def test_the_script_asks_for_what_was_asked_for(tmp_path):
    _, script = array_of(tmp_path / "with space")
    assert finish(start(script, 9))[0] == 2  # bash reads it
    code, out, err = compared(
        tmp_path / "R", "--launcher", "slurm", "--dry_run", "--jobs", "3", "--slurm_partition", "p", "--slurm_time", "1-2",
        "--slurm_mem", "4G", "--slurm_cpus", "2", "--slurm_gres", "gpu:1", "--slurm_setup", "module load x",
        "--slurm_options=--account=me", "--slurm_options=--qos=low", seeds=2,
    )  # fmt: skip
    assert code == 0, err
    asked = [line.removeprefix("#SBATCH ") for line in out.splitlines() if line.startswith("#SBATCH ")]
    assert asked == [
        "--job-name=taac", "--array=0-3%3", f"--output={tmp_path}/R/slurm/%A_%a.out", "--open-mode=append", "--requeue",
        "--signal=B:USR1@120", "--partition=p", "--time=1-2", "--mem=4G", "--cpus-per-task=2", "--gres=gpu:1",
        "--account=me", "--qos=low",
    ]  # fmt: skip
    assert "\nmodule load x\n" in out and not (tmp_path / "R").exists()
    assert f"mkdir -p {tmp_path}/R/slurm\n" in out.split("#SBATCH")[0], "said, as nothing was made"


# Submission ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A folder with an `sbatch` that notes what it is called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command(folder, "sbatch", f'echo "$@" >>{folder}/sbatch.called; echo "Submitted batch job 5"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def planned(tmp_path):
    runs = [Run("T", m, 0, tmp_path / "R" / m, ("true",)) for m in ("a", "b", "c", "d")]
    (tmp_path / "R").mkdir(exist_ok=True)
    return runs, tmp_path / "R" / "compare.sbatch"


def finish_folder(run):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "run.json").write_text('{"status": "finished"}')


def test_what_is_not_finished_is_submitted(tmp_path, sbatch):
    runs, script = planned(tmp_path)
    finish_folder(runs[1])
    assert slurm.submit(runs, script.parent, slurm.SlurmArray(), jobs=2) == "Submitted batch job 5"
    assert (sbatch / "sbatch.called").read_text() == f"--array=0,2,3%2 {script}\n"
    for run in runs:
        finish_folder(run)
    assert "nothing was submitted" in slurm.submit(runs, script.parent, slurm.SlurmArray())
    assert (sbatch / "sbatch.called").read_text().count("\n") == 1


def test_a_report_names_runs_that_never_begin(tmp_path, sbatch):
    code, _, err = compared(tmp_path / "R", "--launcher", "slurm")
    assert code == 0, err
    runs = json.loads((tmp_path / "R" / "compare.json").read_text())["runs"]
    assert len(runs) > 1 and {run["status"] for run in runs} == {"waiting"}
    assert len(missing_warnings(tmp_path / "R", [])) == len(runs)


def test_without_slurm_the_script_is_left_for_another_machine(tmp_path):
    env = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    code, _, err = finish(compare(tmp_path / "R", "--launcher", "slurm", env=env))
    script = tmp_path / "R" / "compare.sbatch"
    assert code == 1 and "no sbatch on this machine" in err and str(script) in err
    assert script.read_text().startswith("#!/bin/bash")
    (output,) = re.findall(r"#SBATCH --output=(.*)", script.read_text())
    assert Path(output).parent.is_dir(), "where the tasks print"


def test_what_sbatch_refuses_is_told(tmp_path, sbatch):
    command(sbatch, "sbatch", "echo 'invalid partition' >&2; exit 1")
    code, _, err = compared(tmp_path / "R", "--launcher", "slurm")
    assert code == 1 and "invalid partition" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "gpu\ntouch ran"},
        {"mem": "4G\ntouch ran"},
        {"gres": "gpu:1\ntouch ran"},
        {"time": "UNLIMITED\ntouch ran"},
        {"options": ("--account=me\rx",)},
    ],
)
def test_options_are_one_line(options):
    with pytest.raises(TaacError, match=r"touch ran|account"):
        slurm.SlurmArray(**options)
