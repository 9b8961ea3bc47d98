"""The tasks of the job array, run as SLURM would run them; and the queue, as played by three small scripts."""

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

from taac.campaigns.campaign import Campaign
from taac.campaigns.comparison import Comparison
from taac.campaigns.launchers import Outcome, slurm
from taac.campaigns.run import Run
from taac.configuration import Asked
from taac.errors import TaacError
from tests.campaigns.launched import POINT, SMALL, compare, compared, evaluations, finish, processes, record, wait_for

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="SLURM's scripts are for bash")


def array_of(root, params=(), methods=("taac",), **options):
    runs = Comparison(methods, (POINT,), seeds=1).plan(root, Asked(gin_params=(*SMALL, *params)))
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


def exit_code(script, index):
    return int((script.parent / "slurm" / f"7_{index}.exit").read_text())


def test_a_task_that_is_stopped_twice_and_run_again_ends_with_the_same_bits(tmp_path, slurm_commands):
    assert compared(tmp_path / "whole", methods="taac")[0] == 0
    runs, script = array_of(tmp_path / "stopped")
    called = slurm_commands / "scontrol.called"
    for times, number in enumerate((signal.SIGTERM, signal.SIGUSR1), 1):
        task = start(script, 0, slurm_commands)
        # The second begins with a checkpoint; each training writes an event file of its own.
        wait_for(lambda times=times: len(list(runs[0].folder.glob("events.out.tfevents.*"))) == times, task)
        wait_for(lambda: any(runs[0].folder.glob("checkpoints/*.json")), task)
        task.send_signal(number)
        code, _, _ = finish(task)
        assert code == exit_code(script, 0) == 75 and not runs[0].finished()
        assert not processes(str(tmp_path / "stopped"))
        # SLURM requeues a task that it preempts; near the time limit the task has to ask for it.
        assert (called.read_text() if called.exists() else "") == ("requeue 77\n" if number == signal.SIGUSR1 else "")
    assert finish(start(script, 0, slurm_commands))[0] == 0 and runs[0].finished()
    assert evaluations(tmp_path / "stopped") == evaluations(tmp_path / "whole")
    assert runs[0].log.read_text().count("=== ") == 3 and "SLURM 77" in runs[0].log.read_text()


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
    runs, script = array_of(tmp_path, ["gamma = 7.0"], setup=("echo set up $SLURM_JOB_ID", "export MINE=1"))
    assert finish(start(script, 0))[0] == exit_code(script, 0) == 1
    lines = runs[0].log.read_text().splitlines()
    assert lines[1] == "set up 77" and runs[0].error().startswith("taac train: ")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_log_that_is_a_link_is_not_written_through(tmp_path, link):
    runs, script = array_of(tmp_path / "R")
    (tmp_path / "mine").write_text("mine")
    runs[0].log.parent.mkdir(parents=True)
    link(tmp_path / "mine", runs[0].log)
    code, _, err = finish(start(script, 0))
    assert code == 1 and "is a link" in err
    assert (tmp_path / "mine").read_text() == "mine" and not runs[0].folder.exists()


def test_an_exit_code_is_not_written_through_a_link_that_appears_while_the_run_runs(tmp_path):
    (tmp_path / "mine").write_text("mine")
    ended = tmp_path / "R" / "slurm" / "7_0.exit"
    run = Run("T", "m", 0, tmp_path / "R" / "T" / "m" / "seed_0", ("ln", "-s", str(tmp_path / "mine"), str(ended)))
    (tmp_path / "R").mkdir()
    (tmp_path / "script").write_text(slurm.SlurmArray().script([run], tmp_path / "R"))
    assert finish(start(tmp_path / "script", 0))[0] == 0
    assert ended.is_symlink() and (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", '{"a": [1]}', "\ud800"])
def test_tasks_that_are_none_are_refused(tmp_path, queue, text):
    runs, script = array_of(tmp_path / "R")
    (script.parent / "slurm").mkdir()
    (script.parent / "slurm" / "tasks.json").write_text(text, errors="surrogatepass")
    with pytest.raises(TaacError, match=r"tasks\.json"):
        slurm.SlurmQueue(runs, script).begin(runs[0])


def test_a_folder_of_slurm_that_is_a_link_is_refused(tmp_path, queue):
    runs, script = array_of(tmp_path / "R")
    (tmp_path / "mine").mkdir()
    (script.parent / "slurm").symlink_to(tmp_path / "mine")
    with pytest.raises(TaacError, match="slurm is not a folder but a symbolic link"):
        slurm.SlurmQueue(runs, script)
    with pytest.raises(TaacError, match="slurm is not a folder but a symbolic link"):
        slurm.make_folder(script.parent)


def test_a_signal_during_set_up_starts_nothing(tmp_path, slurm_commands):
    runs, script = array_of(tmp_path, setup=(f"touch {tmp_path}/on; sleep 1",))
    task = start(script, 0, slurm_commands)
    wait_for((tmp_path / "on").exists, task)
    task.send_signal(signal.SIGUSR1)
    assert finish(task)[0] == 75 and not runs[0].folder.exists()
    assert (slurm_commands / "scontrol.called").read_text() == "requeue 77\n"


def test_a_task_is_not_requeued_for_ever(tmp_path, slurm_commands):
    _, script = array_of(tmp_path, setup=(f"touch {tmp_path}/on; sleep 1",))
    task = start(script, 0, slurm_commands, SLURM_RESTART_COUNT="100")
    wait_for((tmp_path / "on").exists, task)
    task.send_signal(signal.SIGUSR1)
    assert finish(task)[0] == 75 and not (slurm_commands / "scontrol.called").exists()


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


def test_a_folder_with_a_percent_sign_is_no_pattern_of_slurm(tmp_path):
    """SLURM replaces %j and the like in the name of the output, and reads %% as one of them."""
    script = slurm.SlurmArray().script([], tmp_path / "at 50%job")
    assert f"\n#SBATCH --output='{tmp_path}/at 50%%job/slurm'/%A_%a.out\n" in script
    assert f"mkdir -p '{tmp_path}/at 50%job/slurm'\n" in script


@pytest.mark.parametrize(
    "limit, seconds",
    [("5", 300), ("4:59", 299), ("0:05:00", 300), ("1-0", 86400), ("1-1:30", 91800), ("2-1:0:1", 176401)],
)
def test_time_limits(limit, seconds):
    assert slurm._seconds(limit) == seconds
    if seconds < 300:
        with pytest.raises(TaacError, match="5 minutes"):
            slurm.SlurmArray(time=limit)
    else:
        slurm.SlurmArray(time=limit)
    slurm.SlurmArray(time="UNLIMITED")


# The queue -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """`sbatch` that answers with job 5, and `squeue` that prints the file `queue` or fails when there is none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command(folder, "sbatch", f'echo "$@" >>{folder}/sbatch.called; echo "5;cluster"')
    command(folder, "squeue", f"cat {folder}/queue")
    (folder / "queue").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def planned(tmp_path):
    runs = [Run("T", m, 0, tmp_path / "R" / m, ("true",)) for m in ("a", "b", "c", "d")]
    (tmp_path / "R").mkdir(exist_ok=True)
    return runs, tmp_path / "R" / "compare.sbatch"


def finish_folder(run):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "run.json").write_text('{"status": "finished"}')


def test_what_becomes_of_the_tasks_is_read_from_queue_and_files(tmp_path, queue):
    runs, script = planned(tmp_path)
    finish_folder(runs[1])
    launcher = slurm.SlurmQueue(runs, script, jobs=2, interval=0.0, grace=0.0)
    for run in (runs[0], runs[2], runs[3]):
        launcher.begin(run)
    (queue / "queue").write_text("5_0 RUNNING\n5_2 PENDING\n5_3 CONFIGURING\n9_1 RUNNING\n")
    assert launcher.ended() == []
    assert (queue / "sbatch.called").read_text() == f"--parsable --array=0,2,3%2 {script}\n"
    assert [launcher.begun(runs[i]) for i in (0, 2, 3)] == [True, False, True]
    # The queue does not answer: nothing is concluded.
    (queue / "queue").rename(queue / "hidden")
    assert launcher.ended() == [] and launcher.begun(runs[0])
    (queue / "hidden").rename(queue / "queue")
    # Another call follows what is there, and submits nothing of it again.
    other = slurm.SlurmQueue(runs, script, interval=0.0, grace=60.0)
    other.begin(runs[0])
    assert other.ended() == [] and (queue / "sbatch.called").read_text().count("\n") == 1
    finish_folder(runs[0])
    (queue / "queue").write_text("")
    assert other.ended() == [(runs[0], Outcome(0))]


@pytest.mark.parametrize("first, second", [("R", "{}/R"), ("{}/R", "R"), ("R", "./x/../R")])
def test_a_queued_task_is_found_however_the_folder_is_named(tmp_path, queue, monkeypatch, first, second):
    monkeypatch.chdir(tmp_path)
    (queue / "queue").write_text("5_0 RUNNING\n")
    for name in (first, second):
        root = Path(name.format(tmp_path))
        run = Run("T", "a", 0, root / "a", ("true",))
        launcher = slurm.SlurmQueue([run], root / "compare.sbatch", interval=0.0)
        launcher.begin(run)
        launcher.ended()
    assert (queue / "sbatch.called").read_text().count("\n") == 1


def test_of_two_calls_at_the_same_time_one_submits_and_the_other_follows(tmp_path, queue):
    runs, script = planned(tmp_path)
    command(queue, "sbatch", f'echo "$@" >>{queue}/sbatch.called; echo "5_0 PENDING" >{queue}/queue; echo 5')
    first, second = (slurm.SlurmQueue(runs, script, interval=0.0, grace=0.0) for _ in range(2))
    for launcher in (first, second):
        launcher.begin(runs[0])
    assert first.ended() == [] == second.ended()
    assert (queue / "sbatch.called").read_text().count("\n") == 1
    finish_folder(runs[0])
    (queue / "queue").write_text("")
    assert first.ended() == second.ended() == [(runs[0], Outcome(0))]


def test_nothing_is_submitted_while_the_queue_does_not_answer(tmp_path, queue):
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0)
    launcher.begin(runs[0])
    (queue / "queue").rename(queue / "hidden")
    assert launcher.ended() == [] and not (queue / "sbatch.called").exists()
    (queue / "hidden").rename(queue / "queue")
    launcher.ended()
    assert (queue / "sbatch.called").read_text().count("\n") == 1


def test_a_queued_task_of_other_settings_is_no_task_of_this_run(tmp_path, queue):
    """It would train what was asked for when it was submitted, and be taken for what is asked for now."""
    runs, script = planned(tmp_path)
    asked = Asked("T", "a", gin_params=("learning_rate = 0.1",))
    (queue / "queue").write_text("5_0 PENDING\n")
    first = runs[0]._replace(asked=asked)
    for _ in range(2):
        launcher = slurm.SlurmQueue([first], script, interval=0.0)
        launcher.begin(first)
        launcher.ended()
    assert (queue / "sbatch.called").read_text().count("\n") == 1
    other = runs[0]._replace(asked=asked._replace(gin_params=("learning_rate = 0.2",)))
    with pytest.raises(TaacError, match=r"SLURM's queue as task 5_0.*scancel 5_0.*rate = 0.1'; it is: .*rate = 0.2'"):
        slurm.SlurmQueue([other], script).begin(other)
    (queue / "queue").write_text("")  # cancelled
    slurm.SlurmQueue([other], script).begin(other)


def test_tasks_that_an_earlier_version_submitted_are_followed(tmp_path, queue):
    runs, script = planned(tmp_path)
    slurm.make_folder(script.parent)
    (script.parent / "slurm" / "tasks.json").write_text(json.dumps({str(runs[0].folder): "5_0"}))
    (queue / "queue").write_text("5_0 PENDING\n")
    launcher = slurm.SlurmQueue(runs, script, interval=0.0)
    for run in runs[:2]:
        launcher.begin(run)
    launcher.ended()
    assert (queue / "sbatch.called").read_text() == f"--parsable --array=1 {script}\n"
    kept = json.loads((script.parent / "slurm" / "tasks.json").read_text())
    assert {entry["task"] for entry in kept.values()} == {"5_0", "5_1"}


def test_a_queue_that_does_not_answer_is_not_an_empty_one(tmp_path, queue):
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0, grace=0.0)
    launcher.begin(runs[0])
    (queue / "queue").write_text("5_0 RUNNING\n")
    launcher.ended()
    (queue / "queue").rename(queue / "hidden")
    assert launcher.ended() == [] and launcher.begun(runs[0])
    with pytest.raises(TaacError, match="squeue does not answer"):
        slurm.SlurmQueue(runs, script)
    assert (queue / "sbatch.called").read_text().count("\n") == 1


def test_a_run_that_was_submitted_again_is_known_by_its_last_task(tmp_path, queue):
    runs, script = planned(tmp_path)
    for answer in ("echo 5", "echo 6", "exit 1"):
        command(queue, "sbatch", answer)
        launcher = slurm.SlurmQueue(runs, script, interval=0.0)
        launcher.begin(runs[0])
        launcher.ended()
        (queue / "queue").write_text("6_0 RUNNING\n" if answer == "echo 6" else "")
    assert not launcher._pending


def test_each_way_to_end(tmp_path, queue):
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0, grace=0.0)
    for run in runs:
        launcher.begin(run)
    (queue / "queue").write_text("5_0 RUNNING\n5_1 RUNNING\n5_2 RUNNING\n5_3 RUNNING\n")
    launcher.ended()
    finish_folder(runs[0])
    for index, code in ((1, 1), (2, 137)):
        (tmp_path / "R" / "slurm" / f"5_{index}.exit").write_text(f"{code}\n")
    (queue / "queue").write_text("")
    ended = dict(launcher.ended())
    assert [ended[run].returncode for run in runs] == [0, 1, -9, None]
    assert str(ended[runs[3]]).startswith("SLURM task 5_3 is gone")


@pytest.mark.parametrize(
    "code, told",
    [(1, "exit code 1"), (128, "exit code 128"), (143, "killed by SIGTERM"), (255, "exit code 255")],
)
def test_exit_codes_that_are_signals_and_those_that_are_not(tmp_path, queue, code, told):
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0, grace=0.0)
    launcher.begin(runs[0])
    (queue / "queue").write_text("5_0 RUNNING\n")
    launcher.ended()
    (tmp_path / "R" / "slurm" / "5_0.exit").write_text(f"{code}\n")
    (queue / "queue").write_text("")
    ((_, outcome),) = launcher.ended()
    assert str(outcome) == told and outcome.interrupted() == ("SIG" in told)


def test_a_signal_without_a_name_is_told_by_its_number():
    assert str(Outcome(-127)) == "killed by signal 127"


def test_the_files_of_a_task_may_be_seen_late(tmp_path, queue):
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0, grace=1000.0)
    launcher.begin(runs[0])
    assert launcher.ended() == [] == launcher.ended()
    (tmp_path / "R" / "slurm" / "5_0.exit").write_text("0\n")  # before the run's own files
    assert launcher.ended() == []
    finish_folder(runs[0])
    assert launcher.ended() == [(runs[0], Outcome(0))]


def test_a_task_that_ends_well_without_its_run_is_told_in_the_end(tmp_path, queue):
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0, grace=0.0)
    launcher.begin(runs[0])
    (queue / "queue").write_text("5_0 RUNNING\n")
    launcher.ended()
    (tmp_path / "R" / "slurm" / "5_0.exit").write_text("0\n")
    (queue / "queue").write_text("")
    assert launcher.ended() == [(runs[0], Outcome(0))]


def test_a_task_that_was_missing_for_a_moment_has_its_whole_grace_when_it_leaves(tmp_path, queue, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    runs, script = planned(tmp_path)
    launcher = slurm.SlurmQueue(runs, script, interval=0.0, grace=60.0)
    launcher.begin(runs[0])
    for seconds, content in ((0, ""), (10, "5_0 RUNNING\n"), (5000, ""), (5059, "")):
        now[0] = float(seconds)
        (queue / "queue").write_text(content)
        assert launcher.ended() == []
    now[0] = 5060.0
    assert [str(outcome)[:22] for _, outcome in launcher.ended()] == ["SLURM task 5_0 is gone"]


def test_a_campaign_does_not_submit_what_the_user_has_cancelled_again(tmp_path, queue):
    runs, script = planned(tmp_path)
    work = Campaign(runs, slurm.SlurmQueue(runs, script, interval=0.0, grace=0.0), None, tmp_path / "compare.json")
    end = work.run(lambda state: None)
    assert len(end.failed) == 4 and (queue / "sbatch.called").read_text().count("\n") == 1
    assert {run["attempts"] for run in record(tmp_path).values()} == {1}


def test_a_whole_campaign_through_the_queue(tmp_path, queue):
    """`sbatch` runs the tasks at once, one after the other, from the script."""
    code = (
        f'for i in $(echo "$2" | sed "s/--array=//; s/,/ /g"); do SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=$i bash "$3"; done'
        f' >&2; echo 5; echo "$2" >>{queue}/sbatch.called'
    )
    command(queue, "sbatch", code)
    root = tmp_path / "R"
    code, out, err = compared(root, "--launcher", "slurm")
    assert code == 0 and "2 of 2 runs finished" in out, err
    assert (queue / "sbatch.called").read_text() == "--array=0,1\n"
    assert compared(root, "--launcher", "slurm")[0] == 0
    assert (queue / "sbatch.called").read_text() == "--array=0,1\n", "nothing is left to submit"


def test_without_slurm_the_script_is_left_for_another_machine(tmp_path):
    env = {**os.environ, "PATH": str(Path(sys.executable).parent)}
    code, _, err = finish(compare(tmp_path / "R", "--launcher", "slurm", env=env))
    script = tmp_path / "R" / "compare.sbatch"
    assert code == 1 and "no sbatch on this machine" in err and str(script) in err
    assert script.read_text().startswith("#!/bin/bash")
    (output,) = re.findall(r"#SBATCH --output=(.*)", script.read_text())
    assert Path(output).parent.is_dir(), "where the tasks print"


def test_what_sbatch_refuses_is_told(tmp_path, queue):
    command(queue, "sbatch", "echo 'invalid partition' >&2; exit 1")
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


def test_the_folder_is_one_line(tmp_path):
    with pytest.raises(TaacError, match="holds line ends or control characters, which would be lines of the script"):
        slurm.SlurmArray().script([], tmp_path / "x\ntouch ran")
