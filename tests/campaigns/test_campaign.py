"""Many runs: what is done with those that end, fail or are interrupted, and that being stopped changes nothing."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from taac.analysis.readers import run_records
from taac.analysis.report.text import missing_warnings
from taac.campaigns.campaign import Campaign, State, View
from taac.campaigns.launchers import Outcome
from taac.campaigns.run import ATTEMPT, Run
from taac.errors import TaacError
from taac.runs import durable
from tests.campaigns.launched import (
    BREAKS,
    LONG,
    POINT,
    compare,
    compared,
    evaluations,
    finish,
    processes,
    record,
    wait_for,
)


class Script:
    """A launcher in whose runs the given outcomes happen, one an attempt; 0 finishes the run."""

    interval, attempts = 0.0, 4

    def __init__(self, outcomes):
        self.outcomes = {name: list(codes) for name, codes in outcomes.items()}
        self.running, self.most, self.order, self.stopped = [], 0, [], False

    def begin(self, run):
        self.running.append(run)
        self.most = max(self.most, len(self.running))
        self.order.append(run.method)

    def begun(self, run):
        return True

    def ended(self):
        over = []
        for run in self.running:
            outcome = self.outcomes[run.method].pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome in (0, -6):  # an `Outcome(0)` is not; -6 has crashed at the end of its process
                finish_folder(run)
            run.log.parent.mkdir(parents=True, exist_ok=True)
            run.log.write_text(f"{ATTEMPT}\nlast words of {run.method}\n")
            over.append((run, outcome if isinstance(outcome, Outcome) else Outcome(outcome)))
        self.running = []
        return over

    def stop(self):
        self.stopped = True


def finish_folder(run):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "run.json").write_text('{"status": "finished"}')


def runs_of(tmp_path, names):
    return [Run("T", name, 0, tmp_path / name / "seed_0", ("true",)) for name in names]


def campaign(tmp_path, outcomes, jobs=1):
    launcher = Script(outcomes)
    return launcher, Campaign(runs_of(tmp_path, outcomes), launcher, jobs, tmp_path / "compare.json")


def test_what_failed_is_recorded_and_what_was_interrupted_is_tried_again(tmp_path):
    """75 is asked to stop, -15 and -9 are signals, None a machine that is gone: outside causes. 1 is the run's own.

    69 is another campaign that trains the run: it is asked again after the others, however often.
    """
    launcher, work = campaign(
        tmp_path,
        {
            "good": [0], "bad": [1], "stopped": [75, -15, 0], "gone": [Outcome(None, "node lost"), 0], "killed": [-9] * 4,
            "empty": [Outcome(0)],  # whose run.json says nothing
            "elsewhere": [69] * 6 + [0], "late": [-6],
        },
    )
    end = work.run(lambda state: None)
    assert [run.method for run in end.finished] == ["good", "stopped", "gone", "late", "elsewhere"]
    once = ("empty", "elsewhere", "late")
    assert launcher.order == ["good", "bad", *["stopped"] * 3, *["gone"] * 2, *["killed"] * 4, *once, *["elsewhere"] * 6]
    assert launcher.most == 1
    told = {run["method"]: (run["status"], run["attempts"], run["error"]) for run in record(tmp_path).values()}
    log = "(see " + str(tmp_path / "{0}" / "seed_0.log") + ")"
    assert told == {
        "good": ("finished", 1, None), "stopped": ("finished", 3, None), "gone": ("finished", 2, None),
        "bad": ("failed", 1, f"exit code 1: last words of bad {log.format('bad')}"),
        "killed": ("failed", 4, f"killed by SIGKILL, 4 times: last words of killed {log.format('killed')}"),
        "empty": ("failed", 1, f"exit code 0: last words of empty {log.format('empty')}"),
        "elsewhere": ("finished", 1, None), "late": ("finished", 1, None),
    }  # fmt: skip
    content = json.loads((tmp_path / "compare.json").read_text())
    assert [content[name] for name in ("finished", "running", "waiting", "failed")] == [5, 0, 0, 3]


def test_jobs_bound_how_many_run_at_a_time(tmp_path):
    names = {f"m{i}": [0] for i in range(5)}
    launcher, work = campaign(tmp_path / "two", names, jobs=2)
    work.run(lambda state: None)
    assert launcher.most == 2
    launcher, work = campaign(tmp_path / "all", names, jobs=None)
    work.run(lambda state: None)
    assert launcher.most == 5
    with pytest.raises(TaacError, match="--jobs"):
        campaign(tmp_path, names, jobs=0)


def test_a_campaign_that_is_stopped_stops_its_launcher_and_leaves_the_record_right(tmp_path):
    launcher, work = campaign(tmp_path, {"a": [0], "b": [KeyboardInterrupt()], "c": [0]})
    with pytest.raises(KeyboardInterrupt):
        work.run(lambda state: None)
    assert launcher.stopped
    assert [run["status"] for run in record(tmp_path).values()] == ["finished", "waiting", "waiting"]


def test_a_run_that_cannot_be_started_stops_no_other(tmp_path):
    launcher, work = campaign(tmp_path, {"a": [0], "b": [0], "c": [0]}, jobs=None)
    begin = launcher.begin

    def refuses(run):
        if run.method == "b":
            raise PermissionError(13, "Permission denied", str(run.log))
        begin(run)

    launcher.begin = refuses
    work.run(lambda state: None)
    told = record(tmp_path)
    assert [run["status"] for run in told.values()] == ["finished", "failed", "finished"]
    assert "could not be started: [Errno 13] Permission denied" in told["T", "b", 0]["error"]


def test_a_campaign_that_is_stopped_while_a_run_ends_leaves_the_record_right(tmp_path, monkeypatch):
    _, work = campaign(tmp_path, {"a": [0]})
    monkeypatch.setattr(work, "_conclude", lambda *_: exec("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        work.run(lambda state: None)
    assert [run["status"] for run in record(tmp_path).values()] == ["waiting"]


def test_what_an_earlier_campaign_in_the_folder_planned_stays_in_the_record(tmp_path):
    """`bad` left no folder, and the second call forgot it: no report named it any more. `again` is planned by both."""
    campaign(tmp_path, {"bad": [1], "again": [1]})[1].run(lambda state: None)
    before = record(tmp_path)["T", "bad", 0]
    elsewhere = Path(os.path.relpath(tmp_path))  # the same folder, written otherwise
    _, work = campaign(elsewhere, {"again": [0], "new": [0]})
    work.run(lambda state: None)
    told = record(tmp_path)
    assert told["T", "bad", 0] == before and before["status"] == "failed"
    assert [(run["method"], run["status"]) for run in told.values()] == [
        ("bad", "failed"), ("again", "finished"), ("new", "finished"),
    ]  # fmt: skip
    content = json.loads((tmp_path / "compare.json").read_text())
    assert len(content["runs"]) == 3
    assert [content[name] for name in ("finished", "running", "waiting", "failed")] == [2, 0, 0, 1]
    warnings = missing_warnings(tmp_path, run_records.find(tmp_path))
    assert any("(bad) is planned but missing: failed, exit code 1: last words of bad" in warning for warning in warnings)


def test_campaigns_at_work_in_one_folder_keep_what_the_other_wrote(tmp_path):
    _, first = campaign(tmp_path, {"a": [0]})
    first.run(lambda state: campaign(tmp_path, {"b": [0]})[1].run(lambda state: None))
    assert {run["method"]: run["status"] for run in record(tmp_path).values()} == {"a": "finished", "b": "finished"}


@pytest.mark.parametrize(
    "held",
    [
        b"{", b"\xff", b"[]", b'{"runs": 3}', b'{"runs": [1, {"task": "T"}, {"status": []}]}', b"[" * 100_000,
        b'{"runs": [{"folder": 1, "status": "failed"}]}',
    ],
)
def test_a_record_that_is_damaged_or_of_something_else_stops_no_campaign(tmp_path, held):
    (tmp_path / "compare.json").write_bytes(held)
    assert len(campaign(tmp_path, {"a": [0]})[1].run(lambda state: None).finished) == 1
    assert [run["method"] for run in record(tmp_path).values()] == ["a"]


@pytest.mark.slow
def test_a_campaign_that_is_killed_and_called_again_ends_as_one_that_was_not(tmp_path):
    code, out, err = compared(tmp_path / "whole", "--jobs", "2")
    assert code == 0, err
    assert "2 of 2 runs finished" in out
    killed = tmp_path / "killed"
    process = compare(killed, "--jobs", "2")
    wait_for(lambda: any(killed.glob("**/checkpoints/*.json")), process)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    states = [json.loads(path.read_text())["status"] for path in killed.glob("**/run.json")]
    if sys.platform != "linux":  # there, the runs of a killed campaign go on to their end
        wait_for(lambda: not processes(str(killed)))
    assert compared(killed, "--jobs", "2")[0] == 0  # at once: its runs may still be ending
    assert len(states) < 2 or set(states) != {"finished"}, "it was killed too late"
    assert evaluations(killed) == evaluations(tmp_path / "whole")
    assert len(evaluations(tmp_path / "whole")) == 2
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("whole/tests*/**/*")}
    assert compared(tmp_path / "whole")[0] == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("whole/tests*/**/*")} == before, ("what is finished is left alone")


def test_a_run_that_fails_is_named_and_stops_no_other(tmp_path):
    code, out, err = compared(tmp_path, "--jobs", "2", methods="sac", tasks=f"{BREAKS},{POINT}")
    assert code == 1
    assert f"failed: {BREAKS}/sac/seed 0: exit code 1: taac train: " in out and "not finite" in out
    assert "1 of 2 runs finished" in out and "1 of 2 runs failed" in err
    assert len(next(iter(evaluations(tmp_path / "tests.toy_tasks_taac-test_PointMass-v0").values()))) == 5
    told = record(tmp_path)
    assert told[BREAKS, "sac", 0]["status"] == "failed" and "not finite" in told[BREAKS, "sac", 0]["error"]
    assert told[POINT, "sac", 0]["status"] == "finished" and told[POINT, "sac", 0]["error"] is None


@pytest.mark.parametrize(
    "number, methods", [(signal.SIGINT, "sac"), pytest.param(signal.SIGTERM, "sac,taac", marks=pytest.mark.slow)]
)
def test_ctrl_c_stops_the_runs_and_nothing_is_left_at_work(tmp_path, number, methods):
    process = compare(tmp_path, *LONG, "--jobs", "2", methods=methods)
    wait_for(lambda: len({p.parent for p in tmp_path.glob("**/checkpoints/*.json")}) == len(methods.split(",")), process)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 75 and "the same command resumes" in err and "Traceback" not in err
    assert not processes(str(tmp_path))
    assert all("num_env_steps = 1000000" in path.read_text() for path in tmp_path.glob("**/config.gin"))
    assert {run["status"] for run in record(tmp_path).values()} == {"waiting"}


# What is shown -------------------------------------------------------------------------------------------------------


def states():
    a, b = runs_of(Path("R"), ["a", "b"])
    return [
        State([], [a], [b], {}, None), State([], [a], [b], {}, 3700.0), State([], [b], [], {a: "exit code 1: no"}, 59.9),
        State([b], [], [], {a: "exit code 1: no"}, None),
    ]  # fmt: skip


def test_without_a_terminal_there_is_a_line_whenever_something_has_changed(capfd):
    with View() as view:
        for state in states():
            view.show(state)
    out, err = capfd.readouterr()
    assert err.splitlines() == [
        "0 finished, 1 running, 1 waiting, 0 failed",
        "0 finished, 1 running, 0 waiting, 1 failed, about 00:59 left",
        "1 finished, 0 running, 0 waiting, 1 failed",
    ]
    assert out == "failed: T/a/seed 0: exit code 1: no\n", "once"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_one_line_that_is_kept_up_to_date(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "45")
    with View() as view:
        for state in states():
            view.show(state)
    lines = screen.getvalue().split("\n")
    assert [re.sub(r".*\r\x1b\[K", "", line) for line in lines] == [  # what is left on each line of the screen
        "failed: T/a/seed 0: exit code 1: no", "1 finished, 0 running, 0 waiting, 1 failed", "",
    ]  # fmt: skip
    assert "0 finished, 1 running, 1 waiting, 0 failed, about 1:01:40 left"[:44] in screen.getvalue()
    assert max(len(part) for line in lines[1:] for part in line.split("\r\x1b[K")) <= 44, "it would not be cleared"


class Gone:
    """A stream whose reader has ended."""

    def isatty(self):
        return True

    def write(self, text):
        raise BrokenPipeError

    flush = write


def test_a_view_that_nobody_can_read_any_more_ends_no_campaign(monkeypatch):
    """In a Python program; the command's streams bear it themselves."""
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(sys, "stdout", Gone())
    with View() as view:
        for state in states():
            view.show(state)


def test_a_record_that_cannot_be_written_for_a_while_stops_no_run(tmp_path, monkeypatch, capsys):
    """The disk is full while the second run ends; the next round writes what was not."""
    _, work = campaign(tmp_path, {"a": [0], "b": [0], "c": [0]})
    write, calls = durable.write, []

    def full(file, data):
        calls.append(file)
        if len(calls) in (3, 4):
            raise OSError(28, "No space left on device")
        write(file, data)

    monkeypatch.setattr(durable, "write", full)
    assert len(work.run(lambda state: None).finished) == 3
    assert [run["status"] for run in record(tmp_path).values()] == ["finished"] * 3
    assert capsys.readouterr().err.count("cannot be written") == 1
    monkeypatch.setattr(durable, "write", lambda *_: write(tmp_path / "no" / "where", b""))
    with pytest.raises(OSError, match="no/where"):
        campaign(tmp_path / "new", {"a": [0]})[1].run(lambda state: pytest.fail("a run was begun"))
