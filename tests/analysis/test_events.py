"""The reader of event files, against tensorboard's own, and on files that were damaged on purpose."""

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

from taac.analysis.readers import events, tfrecords
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


def spoil(path, at, byte=0xFF):
    """Changes one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= byte
    path.write_bytes(data)


def place(path, number):
    """Where a record's payload begins."""
    return int(tfrecords.read(path).start[number])


# --- Checksums and records ------------------------------------------------------------------------


def test_checksums_are_the_published_ones():
    """RFC 3720, B.4: zeros, ones, rising; and the usual check of "123456789"."""
    texts = [bytes(32), b"\xff" * 32, bytes(range(32)), b"123456789", b""]
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    length = np.array([len(t) for t in texts])
    crc = tfrecords.crc32c(data, np.cumsum(length) - length, length)
    assert [hex(c) for c in crc.tolist()] == ["0x8a9136aa", "0x62a8ab43", "0x46dd794e", "0xe3069283", "0x0"]


def test_records_are_those_that_were_written(tmp_path):
    messages = [point(i, i / 7, tag="x" * (i % 300)) for i in range(600)]
    path = write(tmp_path, "1", messages)
    records = tfrecords.read(path)
    raw = path.read_bytes()
    assert [raw[s : s + n] for s, n in zip(records.start, records.length, strict=True)] == [
        m.SerializeToString() for m in messages
    ]
    assert tfrecords.intact(records, np.arange(600)).all() and not records.notes


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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**53), 2**53),
            st.floats(width=32),
            st.sampled_from(["a", "é", "x" * 109, "y" * 110, "z" * 111, "w" * 200, ""]),
            st.sampled_from([0.5, 1e9, 2e9]),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_every_scalar_is_decoded_as_the_message_is(tmp_path_factory, points):
    folder = tmp_path_factory.mktemp("events")
    write(folder, "1", [start(-(2**63), 1.0), *(point(s, v, tag, wall) for s, v, tag, wall in points)])
    expected = {}
    for step, value, tag, wall in points:
        expected.setdefault(tag, {})[step] = (value, wall)
    found = {}
    for tag, of in events.read(folder).scalars.items():
        found[tag] = dict(zip(of.env_steps.tolist(), zip(of.value.tolist(), of.wall_time.tolist()), strict=True))
        assert (np.diff(of.env_steps.astype(object)) > 0).all()
    assert repr({t: sorted(of.items()) for t, of in sorted(found.items())}) == repr(
        {t: sorted(of.items()) for t, of in sorted(expected.items())}
    )


def test_other_forms_of_scalars(tmp_path):
    """Several in one record, and TensorFlow 2's tensors; a tensor of another kind, and a record without any, are none."""
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb

    both = Event(step=7, summary=Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in (("a", 1), ("b", 2))]))
    tensor = Event(step=8, summary=Summary(value=[*scalar_pb("a", 0.5).value, *text_pb("note", "x" * 3000).value]))
    none = Event(step=9, summary=Summary(value=[Summary.Value(tag="a")]))
    write(tmp_path, "1", [both, tensor, none])
    assert series(tmp_path) == {7: 1, 8: 0.5} and series(tmp_path, "b") == {7: 2}
    assert set(events.read(tmp_path).scalars) == {"a", "b"}


def test_nan_infinities_and_gaps_are_kept_and_reported(tmp_path):
    values = [1.0, math.nan, 3.0, math.inf, 5.0]
    write(tmp_path, "1", [point(s, v) for s, v in zip((10, 20, 30, 40, 141), values)])
    write(tmp_path, "2", [point(s, 1.0, "b", wall_time=200) for s in (10, 20, 30, 130)])
    found = events.read(tmp_path)
    np.testing.assert_array_equal(found.scalars["a"].value, values)
    assert events.flaws(found.scalars["a"]) == [
        "2 value(s) that are not finite, first at step 20", "a gap from step 40 to 141",
    ]  # fmt: skip
    assert events.flaws(found.scalars["b"]) == []
    assert events.flaws(found.scalars["b"]._replace(env_steps=np.array([1]), value=np.ones(1))) == []


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


def test_a_file_without_a_start_voids_its_own_tags_from_their_first_steps(tmp_path):
    write(tmp_path, "1", [point(s, 1.0, tag) for s in (1, 2, 3, 4) for tag in "ab"])
    write(tmp_path, "2", [point(s, 2.0, "a", 200.0) for s in (3, 6)])
    assert series(tmp_path) == {1: 1, 2: 1, 3: 2, 6: 2}
    assert series(tmp_path, "b") == dict.fromkeys((1, 2, 3, 4), 1.0)


def test_files_count_in_the_order_in_which_they_were_begun(tmp_path):
    write(tmp_path, "1", [point(5, 2.0, wall_time=900.0)])
    write(tmp_path, "2", [point(5, 1.0, wall_time=100.0)])
    assert series(tmp_path) == {5: 2}


def test_a_start_in_the_middle_of_a_file(tmp_path):
    write(tmp_path, "1", [point(1, 1.0), point(2, 1.0), start(2), point(3, 1.0)])
    assert series(tmp_path) == {1: 1, 3: 1}


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
    path = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2, 3)])
    data, third = path.read_bytes(), place(path, 2) - 12
    for size in range(third, len(data)):
        path.write_bytes(data[:size])
        assert series(tmp_path) == {1: 1, 2: 2}
        told = ("the last record is torn, left out",) if size > third else ()
        assert events.read(tmp_path).notes == tuple(f"{path.name}: {note}" for note in told)


@pytest.mark.parametrize("offset", [0, 9, 12, 25, -4, -1])
def test_a_payload_that_does_not_fit_its_checksum_is_left_out(tmp_path, offset):
    path = write(tmp_path, "1", [start(0), *(point(s, float(s), "loss/critic") for s in (1, 2, 3))])
    end = place(path, 3) - 12
    spoil(path, place(path, 2) + offset if offset >= 0 else end + offset, 0x01)
    assert series(tmp_path, "loss/critic") == {1: 1, 3: 3}
    assert events.read(tmp_path).notes == (f"{path.name}: 1 damaged record(s), left out",)


@pytest.mark.parametrize("offset", range(12))
def test_reading_continues_after_a_damaged_head(tmp_path, offset):
    path = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2, 3, 4)])
    at, following = place(path, 1) - 12, place(path, 2) - 12
    spoil(path, at + offset)
    assert series(tmp_path) == {1: 1, 3: 3, 4: 4}
    assert events.read(tmp_path).notes == (f"{path.name}: bytes {at} to {following} are damaged, left out",)


@pytest.mark.parametrize("size", [1, 500])
def test_zeros_that_a_machine_left_behind(tmp_path, size):
    path = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2, 3)])
    data, at = path.read_bytes(), place(path, 1) - 12
    path.write_bytes(data[:at] + bytes(size) + data[at:])
    assert series(tmp_path) == {1: 1, 2: 2, 3: 3}
    assert events.read(tmp_path).notes == (f"{path.name}: bytes {at} to {at + size} are damaged, left out",)
    path.write_bytes(data + bytes(size))
    assert series(tmp_path) == {1: 1, 2: 2, 3: 3} and len(events.read(tmp_path).notes) == 1


def test_damage_and_a_torn_end_in_one_file(tmp_path):
    path = write(tmp_path, "1", [point(s, float(s)) for s in (1, 2, 3)])
    at, following = place(path, 1) - 12, place(path, 2) - 12
    spoil(path, at)
    path.write_bytes(path.read_bytes()[: following + 12])  # of the last, the head alone
    assert series(tmp_path) == {1: 1}
    assert events.read(tmp_path).notes == (
        f"{path.name}: bytes {at} to {following} are damaged, left out",
        f"{path.name}: the last record is torn, left out",
    )


def test_no_event_file_at_all(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(os.urandom(3000))
    found = events.read(tmp_path)
    assert not found.scalars and "bytes 0 to 3000 are damaged" in found.notes[0]


def test_a_long_damaged_record_with_scalars_is_left_out_and_a_text_is_not_looked_at(tmp_path):
    many = Event(
        step=1, summary=Summary(value=[Summary.Value(tag=f"{i}/{'x' * 40}", simple_value=1) for i in range(99)])
    )
    path = write(tmp_path, "1", [many, point(2, 2.0)])
    assert len(events.read(tmp_path).scalars) == 100
    spoil(path, place(path, 1) - 12 - 5, 0x01)  # within the last value
    assert series(tmp_path) == {2: 2} and "1 damaged record(s)" in events.read(tmp_path).notes[0]
    path.write_bytes(b"")
    garbage = b"\xff" * 2000
    with open(path, "wb") as file:
        RecordWriter(file).write(garbage)
    assert "1 damaged record(s)" in events.read(tmp_path).notes[0]


def test_the_head_of_a_record_is_what_it_is_said_to_be(tmp_path):
    path = write(tmp_path, "1", [point(1, 1.0)])
    assert struct.unpack("<Q", path.read_bytes()[:8]) == (len(path.read_bytes()) - 16,)
