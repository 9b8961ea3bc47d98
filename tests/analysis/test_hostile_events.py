"""Event files that were made to break, stop or fill their reader."""

from __future__ import annotations

import math
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto import types_pb2
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from taac.analysis.readers import events, tfrecords
from tests.analysis.test_events import point, series, write


def tensor(step=1, tag="t", sizes=(), **fields):
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    value = Summary.Value(tag=tag, tensor=TensorProto(tensor_shape=shape, **fields), metadata=metadata)
    return Event(step=step, summary=Summary(value=[value]))


def read(folder):
    found = events.read(folder)
    for scalar in found.scalars.values():
        events.flaws(scalar)
    return found


@pytest.mark.parametrize(
    "message",
    [
        tensor(dtype=types_pb2.DT_STRING, string_val=[b"text"]),
        tensor(dtype=types_pb2.DT_FLOAT, sizes=(10**6, 10**6), float_val=[1.0]),
        tensor(dtype=types_pb2.DT_FLOAT, sizes=(1,) * 100, float_val=[1.0]),
        tensor(dtype=types_pb2.DT_FLOAT, sizes=(-1,), float_val=[1.0]),
        tensor(dtype=types_pb2.DT_FLOAT, tensor_content=b"\0" * 3),
        tensor(dtype=types_pb2.DT_COMPLEX128, dcomplex_val=[1.0, 2.0]),
        tensor(dtype=types_pb2.DT_RESOURCE),
        tensor(dtype=10**5),
        point(1, 2.0, tag="long" * 300),
        point(2**62, 2.0, tag="far"),
        point(1, 2.0, tag="never", wall_time=math.nan),
    ],
    ids=lambda message: message.summary.value[0].tag[:5] + str(message.summary.value[0].tensor.dtype),
)
def test_records_that_are_not_scalars_are_skipped(tmp_path, message):
    write(tmp_path, "1", [point(1, 2.0), message, point(3, 4.0)])
    assert list(read(tmp_path).scalars) == ["a"]
    assert series(tmp_path) == {1: 2.0, 3: 4.0}


def test_a_value_too_large_for_a_mean_becomes_infinite(tmp_path):
    messages = [tensor(i, dtype=types_pb2.DT_DOUBLE, double_val=[v]) for i, v in enumerate((1.7e308, -1e61, 1e59))]
    write(tmp_path, "1", messages)
    assert series(tmp_path, "t") == {0: math.inf, 1: -math.inf, 2: 1e59}


def checked(data: bytes) -> bytes:
    bytes_ = np.frombuffer(data, dtype=np.uint8)
    crc = int(tfrecords._masked_crc(bytes_, np.array([0]), np.array([len(data)]))[0])
    return data + struct.pack("<I", crc)


def test_good_and_bad_heads_in_turn_are_looked_at_once_each(tmp_path, monkeypatch):
    whole = checked(struct.pack("<Q", 0)) + b"\0\0\0\0"
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes((whole + b"\0" * 16) * 2000)
    looked = []
    real = tfrecords._masked

    def counting(crc):
        looked.append(crc.size)
        return real(crc)

    monkeypatch.setattr(tfrecords, "_masked", counting)
    found = tfrecords.read(path)
    assert found.start.tolist() == [32 * i + 12 for i in range(2000)]
    assert sum(looked) < 2 * path.stat().st_size
    assert len(found.notes) == 5 and found.notes[-1] == "1996 more stretches are damaged, left out"


def test_records_too_long_to_hold_scalars_are_not_looked_into(tmp_path, monkeypatch):
    values = [Summary.Value(tag="many", simple_value=1.0)] * 10_000
    write(tmp_path, "1", [point(1, 2.0), Event(step=2, summary=Summary(value=values))])
    monkeypatch.setattr(events, "_event", lambda payload: pytest.fail(f"{len(payload)} bytes") if payload[9:] else None)
    assert series(tmp_path) == {1: 2.0}


def test_only_plain_files_of_a_bounded_size_are_read(tmp_path, monkeypatch):
    write(tmp_path, "1", [point(1, 2.0)])
    with open(tmp_path / "events.out.tfevents.2", "wb") as file:
        os.truncate(file.fileno(), tfrecords.MAX_BYTES + 1)
    found = read(tmp_path)
    assert series(tmp_path) == {1: 2.0}
    (note,) = found.notes
    assert "tfevents.2: cannot be read, left out" in note and str(tfrecords.MAX_BYTES) in note


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_damage_of_a_file_is_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("events")
    path = write(
        folder,
        "1",
        [point(1, 2.0), tensor(dtype=types_pb2.DT_FLOAT, float_val=[1.0]), point(2, 3.0, "b"), point(3, math.nan)],
    )
    content = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.dictionaries(st.integers(0, len(content) - 1), st.integers(0, 255), max_size=8)
    ).items():
        content[at] = byte
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(bytes(content) + data.draw(st.binary(max_size=40)) + bytes(content[cut:]))
    read(folder)
    # Whole records, with any content.
    payloads = data.draw(st.lists(st.binary(max_size=60), max_size=4))
    path.write_bytes(b"".join(checked(struct.pack("<Q", len(p))) + checked(p) for p in payloads))
    read(folder)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_heads_are_found_wherever_they_are(data):
    """Against the checksum of all 8 bytes at every place; the file is longer than a block."""
    pieces = st.binary(max_size=30) | st.integers(0, 2**32 - 1).map(lambda n: checked(struct.pack("<Q", n)))
    parts = data.draw(st.lists(pieces | st.just(b"\0" * 20), max_size=8))
    content = np.frombuffer(b"".join(parts) + b"end", dtype=np.uint8)
    places = np.arange(max(0, content.size - 11))
    expected = places[tfrecords._whole_heads(content, places)]
    at = data.draw(st.integers(0, content.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecords, "_BLOCK", data.draw(st.integers(1, 40)))
        assert tfrecords._find_heads(content, at, 1000).tolist() == expected[expected >= at].tolist()


def test_damage_costs_a_look_at_few_places(tmp_path, monkeypatch):
    """A checksum of eight bytes at every place of a GiB took 17 minutes."""
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(np.random.default_rng(0).bytes(1 << 20) + checked(struct.pack("<Q", 0)) + b"\0\0\0\0")
    looked = []
    real = tfrecords._masked
    monkeypatch.setattr(tfrecords, "_masked", lambda crc: (looked.append(crc.size), real(crc))[1])
    monkeypatch.setattr(tfrecords, "_whole_heads", lambda data, at: np.zeros(at.size, dtype=bool))
    assert tfrecords.read(path).start.tolist() == [(1 << 20) + 12]
    assert sum(looked) < 10


def test_only_so_many_records_files_and_tags_are_read(tmp_path, monkeypatch):
    for name in "123":
        write(tmp_path, name, [point(10 * int(name) + i, 1.0, tag=f"{name}{i}") for i in range(3)])
    everything = read(tmp_path)
    assert len(everything.scalars) == 9 and not everything.notes
    for module, bound, value, left, told in (
        (events, "MAX_FILES", 2, 6, "1 event file(s) left out"),
        (events, "MAX_TAGS", 4, 4, "9 tags, of which 4 are read"),
        (tfrecords, "MAX_RECORDS", 5, 5, "only the first 2 records are read"),
        (tfrecords, "MAX_BYTES", 2 * (tmp_path / "events.out.tfevents.1").stat().st_size, 6, "1 event file(s) left out"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, bound, value)
            found = read(tmp_path)
            assert len(found.scalars) == left and any(told in note for note in found.notes), (bound, found)


def slowly_merged(found):
    """One file after another, each start by itself."""
    kept, seconds, offset = events._no_points(), np.zeros(0), 0.0
    for i, file in enumerate(found):
        points = file.points
        live = np.ones(kept.step.size, dtype=bool)
        for place, step in file.starts:
            live &= kept.step < step
            points = points.of((points.place > place) | (points.step < step))
        if not file.starts and points.step.size:
            for tag in np.unique(points.tag):
                live &= (kept.tag != tag) | (kept.step < points.step[points.tag == tag].min())
        kept, seconds = kept.of(live), seconds[live]
        if i == 0 or file.starts:
            offset = file.began - seconds.max(initial=0)
        kept = events._Points(*(np.concatenate(columns) for columns in zip(kept, points)))
        seconds = np.append(seconds, points.wall_time - offset)
    return kept, seconds


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_files_are_merged_as_one_after_another(data):
    steps, found = st.integers(-3, 12), []
    for number in range(data.draw(st.integers(0, 5))):
        n = data.draw(st.integers(0, 6))
        tags, step = (np.array(data.draw(st.lists(s, min_size=n, max_size=n)), dtype=int) for s in (st.integers(0, 2), steps))
        wall = 100.0 * number + np.arange(n) + data.draw(st.integers(-150, 150))
        starts = [(place, data.draw(steps)) for place in sorted(data.draw(st.sets(st.integers(0, 7), max_size=3)))]
        points = events._Points(np.arange(1, n + 1), tags, step, wall, np.arange(n, dtype=float))
        found.append(events._File(str(number), 100.0 * number, starts, points, (), n))
    points, seconds = events._merged(found)
    expected, expected_seconds = slowly_merged(found)
    assert [c.tolist() for c in points] == [c.tolist() for c in expected]
    assert seconds.tolist() == expected_seconds.tolist()
