"""The reader of event files, against tensorboard's own, and on files that were damaged or made to break, stop or fill it."""

from __future__ import annotations

import math
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from taac.analysis.readers import events
from taac.runs import layout
from taac.training.summaries import SummaryWriter


def write(folder, name, messages):
    """An event file of our own: messages at wall times 100, 101, ... unless they have one."""
    folder.mkdir(exist_ok=True)
    with open(folder / f"events.out.tfevents.{name}", "wb") as file:
        writer = RecordWriter(file)
        for i, message in enumerate(messages):
            if not message.wall_time:
                message.wall_time = 100.0 + i
            writer.write(message.SerializeToString())
        writer.flush()
    return folder / f"events.out.tfevents.{name}"


def point(step, value, tag="a", wall_time=0.0):
    return Event(step=step, wall_time=wall_time, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def start(step, wall_time=0.0):
    return Event(step=step, wall_time=wall_time, session_log=SessionLog(status=SessionLog.START))


def series(folder, tag="a"):
    scalar = events.read(folder).scalars[tag]
    return dict(zip(scalar.env_steps.tolist(), scalar.value.tolist(), strict=True))


# --- Values ---------------------------------------------------------------------------------------


def test_a_run_reads_as_in_tensorboard(tmp_path):
    """Texts and hyper-parameters among the scalars are passed over."""
    writer = SummaryWriter(tmp_path, purge_step=0)
    writer.text("config", "x = 1\n" * 1000)
    rng = np.random.default_rng(0)
    for step in (0, 1, 127, 128, 20_000, 3_000_000):
        writer.scalars({"loss/critic": rng.normal(), "policy/alpha": 0.0}, step)
        if step > 100:
            writer.scalars({"beta/alpha": -rng.normal()}, step)
    writer._writer.add_hparams({"lr": 0.1}, {"final": 1.0}, run_name=".")
    writer._writer.add_histogram("weights", rng.normal(size=100), 5)
    writer.close()
    theirs = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    theirs.Reload()
    ours = events.read(tmp_path)
    assert (
        list(ours.scalars) == sorted(theirs.Tags()["scalars"]) == ["beta/alpha", "final", "loss/critic", "policy/alpha"]
    )
    for tag, scalar in ours.scalars.items():
        expected = [(p.step, p.wall_time, p.value) for p in theirs.Scalars(tag)]
        assert list(zip(*(c.tolist() for c in (scalar.env_steps, scalar.wall_time, scalar.value)))) == expected
    assert ours.notes == ()


def test_several_scalars_in_a_record_and_none(tmp_path):
    both = Event(step=7, summary=Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in (("a", 1), ("b", 2))]))
    none = Event(step=9, summary=Summary(value=[Summary.Value(tag="a")]))
    write(tmp_path, "1", [both, none])
    assert series(tmp_path) == {7: 1} and series(tmp_path, "b") == {7: 2}


def test_nan_and_infinities_are_kept_and_reported(tmp_path):
    values = [1.0, math.nan, 3.0, math.inf, 5.0]
    write(tmp_path, "1", [point(s, v) for s, v in zip((10, 20, 30, 40, 141), values)])
    found = events.read(tmp_path)
    np.testing.assert_array_equal(found.scalars["a"].value, values)


# --- Restarts -------------------------------------------------------------------------------------


def test_what_a_restarted_run_did_again_is_there_once(tmp_path):
    """Killed after 300, resumed from a checkpoint at 150: 200 and 300 are void, done again or not, whatever the tag."""
    first = SummaryWriter(tmp_path, purge_step=0)
    for s in (100, 200, 300):
        first.scalars({"loss/critic": float(s), "loss/actor": float(s)}, s)
    first.close()
    second = SummaryWriter(tmp_path, purge_step=151)
    for s in (300, 400):
        second.scalars({"loss/critic": -float(s)}, s)
    second.close()
    assert series(tmp_path, "loss/critic") == {100: 100, 300: -300, 400: -400}
    assert series(tmp_path, "loss/actor") == {100: 100}
    assert events.read(tmp_path).notes == ()


def test_files_count_in_the_order_of_the_runs_numbers_and_then_of_names(tmp_path):
    for place, name in enumerate(("3.host.taac-0-0123456789abcdef", "2.host.taac-1-0123456789abcdef", "1")):
        write(tmp_path, name, [point(5, float(place)), point(place, 0.0, "all")])
    assert layout.number_of_event_file("events.out.tfevents.2.host.taac-1-0123456789abcdef") == 1
    assert series(tmp_path) == {5: 2} and set(series(tmp_path, "all")) == {0, 1, 2}


def test_a_file_of_another_program_voids_nothing_of_the_run(tmp_path):
    write(tmp_path, "1.host.taac-0-0123456789abcdef", [start(0), point(5, 5.0)])
    write(tmp_path, "2", [start(0), point(7, 7.0, "other")])
    assert series(tmp_path) == {5: 5} and series(tmp_path, "other") == {7: 7}


def test_later_points_of_a_step_count_and_are_reported(tmp_path):
    write(tmp_path, "1", [point(1, 1.0), point(3, 3.0), point(1, 9.0), point(2, 2.0), point(1, 1.0, "b")])
    found = events.read(tmp_path)
    assert series(tmp_path) == {1: 9, 2: 2, 3: 3}
    assert found.notes == ("steps that occur twice, in a; the later point counts",)


def test_seconds_leave_out_pauses_and_what_was_done_again(tmp_path):
    """A minute to step 2, lost work to step 3; a day later half a minute from the checkpoint at 2 to step 3."""
    write(
        tmp_path,
        "1",
        [start(0, 1000.0), point(1, 0, wall_time=1030), point(2, 0, wall_time=1060), point(3, 0, wall_time=1095)],
    )
    write(tmp_path, "2", [start(3, 90_000.0), point(3, 0, wall_time=90_030), point(4, 0, wall_time=90_070)])
    assert events.read(tmp_path).scalars["a"].seconds.tolist() == [30, 60, 90, 130]
    write(tmp_path, "3", [point(5, 0, "other", wall_time=90_075)])  # written beside, on the same clock
    assert events.read(tmp_path).scalars["other"].seconds.tolist() == [135]


def test_folders_below_and_folders_without_events(tmp_path):
    (tmp_path / "events.out.tfevents.folder").mkdir()
    write(tmp_path / "below", "1", [point(1, 1.0)])
    (tmp_path / "events.out.tfevents.0").write_bytes(b"")
    assert events.read(tmp_path) == events.Events({}, ())
    assert events.read(tmp_path / "nowhere") == events.Events({}, ())


# --- Damage ---------------------------------------------------------------------------------------


def test_a_file_torn_anywhere_yields_its_whole_records(tmp_path):
    path = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2)])
    third = len(path.read_bytes())
    data = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2, 3)]).read_bytes()
    for size in range(third, len(data)):
        path.write_bytes(data[:size])
        assert series(tmp_path) == {1: 1, 2: 2}
        told = (f"{path.name}: the record at byte {third} is torn or damaged; the rest is left out",)
        assert events.read(tmp_path).notes == (told if size > third else ())


def test_a_file_is_read_up_to_its_first_damaged_record(tmp_path):
    path = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2, 3)])
    data, size = path.read_bytes(), len(path.read_bytes()) // 3
    path.write_bytes(data[: size + 12] + b"\xff" * (size - 16) + data[2 * size - 4 :])
    assert series(tmp_path) == {1: 1}
    assert events.read(tmp_path).notes == (f"{path.name}: the record at byte {size} is damaged; the rest is left out",)
    path.write_bytes(data + bytes(500))  # zeros that a machine left behind
    assert series(tmp_path) == {1: 1, 2: 2, 3: 3}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_content_of_a_file_is_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("events")
    path = write(folder, "1", [point(1, 2.0), start(1), point(3, math.nan)])
    content = bytearray(path.read_bytes())
    for at, byte in data.draw(st.dictionaries(st.integers(0, len(content) - 1), st.integers(0, 255), max_size=8)).items():
        content[at] = byte
    cut = data.draw(st.integers(0, len(content)))
    payloads = data.draw(st.lists(st.binary(max_size=60), max_size=4))
    whole = b"".join(struct.pack("<QI", len(p), 0) + p + bytes(4) for p in payloads)
    path.write_bytes(whole + bytes(content) + data.draw(st.binary(max_size=40)) + bytes(content[cut:]))
    events.read(folder)


def test_a_long_record_is_passed_over(tmp_path):
    long = Event(step=1, summary=Summary(value=[Summary.Value(tag="t", simple_value=1.0)] * 10_000))
    write(tmp_path, "1", [long, point(2, 2.0)])
    assert set(events.read(tmp_path).scalars) == {"a"} and series(tmp_path) == {2: 2}


@pytest.mark.parametrize("message", [point(2**60, 1.0), point(5, 1.0, wall_time=1e300), point(5, 1.0, wall_time=math.nan)])
def test_steps_and_times_out_of_range_end_a_file(tmp_path, message):
    write(tmp_path, "1", [point(1, 1.0), message, point(6, 1.0)])
    (note,) = events.read(tmp_path).notes
    assert series(tmp_path) == {1: 1} and "is out of range; the rest is left out" in note


def test_only_so_much_is_read(tmp_path, monkeypatch):
    for name in "12":
        write(tmp_path, name, [start(0), *(point(10 * int(name) + i, 1.0, tag=f"{name}{i}") for i in range(3))])
    size = (tmp_path / "events.out.tfevents.1").stat().st_size
    write(tmp_path, "2", [point(20 + i, 1.0, tag=f"2{i}") for i in range(3)])
    for bound, value, left in (("MAX_TAGS", 4, 4), ("MAX_POINTS", 5, 5), ("MAX_BYTES", size + 1, 3), ("MAX_RESTARTS", 0, 3)):
        with monkeypatch.context() as patch:
            patch.setattr(events, bound, value)
            found = events.read(tmp_path)
            assert len(found.scalars) == left and len(found.notes) == 1 and "left out" in found.notes[0], (bound, found)


def test_only_plain_files_are_read(tmp_path):
    write(tmp_path, "1", [point(1, 2.0)])
    (tmp_path / "events.out.tfevents.2").symlink_to(tmp_path / "events.out.tfevents.1")
    os.mkfifo(tmp_path / "events.out.tfevents.3")
    found = events.read(tmp_path)
    assert series(tmp_path) == {1: 2.0} and len(found.notes) == 2
