"""Checkpoints: whole or not there, the one before used when the newest is damaged, safe to load, refused with a reason."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taac.data_structures import Experience, TimeStep
from taac.errors import TaacError
from taac.replay import ReplayBuffer
from taac.runs import checkpoint, files, frame_chunks, tensor_files
from taac.runs.checkpoint import Checkpoints
from taac.runs.files import Damaged
from taac.runs.frame_chunks import FrameChunks
from taac.runs.run_folder import RunFolder
from taac.specs import TensorSpec
from tests.replay.saved import held
from tests.runs.test_files import Stumbling, replace_os

failing_calls = pytest.mark.parametrize(
    "call, number", [(call, number) for call in ("open", "write", "fsync", "replace") for number in (1, 2, 3)]
)
SCALAR = TensorSpec(())
SPEC = Experience(TimeStep(TensorSpec((), torch.uint8), SCALAR, SCALAR, SCALAR, SCALAR, TensorSpec((), torch.int16)), ())
FRAME = 1 + 4 * 4 + 2  # bytes


def frame(number, num_envs=2):
    one = torch.full((num_envs,), float(number))
    return Experience(TimeStep(one.to(torch.uint8), one, one, one, one, one.to(torch.int16)), ())


def filled(length, count, num_envs=2):
    buffer = ReplayBuffer(SPEC, num_envs, length)
    for number in range(count):
        buffer.add(frame(number, num_envs))
    return buffer


@pytest.fixture
def parts_of(monkeypatch):
    """Says how many frames a part of a buffer of two environments has."""
    return lambda frames: monkeypatch.setattr(frame_chunks, "CHUNK_BYTES", frames * FRAME * 2)


def state(number):
    return {"number": number, "agent": {"weight": torch.full((50,), float(number))}}


def saved(path, *numbers, **more):
    kept = Checkpoints(path / "c")
    for number in numbers:
        kept.save(number, state(number), **more)
    return kept


def names(kept):
    return sorted(p.name for p in kept.path.iterdir())


# Keeping --------------------------------------------------------------------------------------------------------------


def test_the_newest_comes_back_and_the_one_before_is_kept(tmp_path):
    kept = saved(tmp_path, 9, 10, 100)
    found = kept.newest()
    assert (found.env_steps, found.state["number"]) == (100, 100)
    assert torch.equal(found.part("agent")["weight"], torch.full((50,), 100.0))
    assert names(kept) == ["10.json", "10.safetensors", "100.json", "100.safetensors"]
    assert Checkpoints(kept.path).saved() == [100, 10]
    with pytest.raises(TaacError, match=r"holds no 'critic'; it holds: number, agent"):
        found.part("critic")


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_are_kept_as_are_promised(tmp_path, keep):
    """Also where a signal stopped the run between two that were due."""
    with pytest.raises(TaacError, match="there is no checkpoint in"):
        Checkpoints(tmp_path / "checkpoints", keep).newest()
    for number, steps in enumerate((3, 5, 10, 20, 23, 27, 30), 1):
        kept = Checkpoints(tmp_path / "checkpoints", keep)  # as another process that goes on
        kept.save(steps, state(steps))
        assert kept.saved()[0] == steps and len(kept.saved()) == min(keep, number)


def test_the_best_agent_as_of_the_last_checkpoint_is_kept_for_a_kill(tmp_path):
    """An evaluation comes before the checkpoint at its step."""
    folder, agent = RunFolder(tmp_path), {"agent": 1}
    for steps in (5, 8, 10):
        folder.save_best(steps, agent)
        assert folder.best.saved() == [steps]  # there is no checkpoint to go back to
    folder.checkpoints.save(10, {})
    folder.trim_best(10)
    assert folder.best.saved() == [10]
    for steps in (20, 30):
        folder.save_best(steps, agent)
        assert folder.best.saved() == [steps, 10]  # killed now, the run goes on from 10
    folder.checkpoints.save(40, {})
    folder.trim_best(40)
    assert folder.best.saved() == [30, 10]  # for the run that goes on from 10, because the checkpoint of 40 is damaged
    folder.trim_best(10)
    assert folder.best.saved() == [10]


def test_left_overs_of_a_kill_are_swept_away_and_what_is_not_ours_is_left_alone(tmp_path):
    kept = saved(tmp_path, 1, 2)
    kept.set_aside(newer_than=1)
    assert kept.saved() == [1] and kept.newest().env_steps == 1
    mine = ["my.json", "my.safetensors", "notes.txt"]
    for name in ("2.safetensors", "frames-0-7.safetensors", "4.json.0123456789abcdef.tmp", *mine):
        (kept.path / name).write_text("half")
    assert kept.newest().env_steps == 1
    kept.save(2, state(2))
    assert names(kept) == ["1.json", "1.safetensors", "2.json", "2.safetensors", *mine]


@failing_calls
def test_a_full_disk_leaves_those_before_as_they_were(tmp_path, monkeypatch, call, number):
    kept = saved(tmp_path, 1, 2)
    before = {p.name: p.read_bytes() for p in kept.path.iterdir()}
    replace_os(monkeypatch, Stumbling(call, number))
    chunks = FrameChunks(filled(4, 6))
    with pytest.raises(TaacError, match=r"disk is full .*: \d+ bytes are needed.*the checkpoint at 2 .* is whole"):
        kept.save(3, state(3), chunks)
    monkeypatch.undo()
    assert kept.newest().env_steps == 2
    assert before.items() <= {p.name: p.read_bytes() for p in kept.path.iterdir()}.items()
    kept.save(3, state(3), chunks)
    assert kept.newest().env_steps == 3


@failing_calls
def test_one_that_is_written_again_at_its_step_is_whole_until_it_is_replaced(tmp_path, monkeypatch, call, number):
    """As by a run that resumes and then stops before its first step, because its environment fails again."""
    kept = saved(tmp_path, 1, 2)
    for attempt in (3, 4):
        replace_os(monkeypatch, Stumbling(call, number))
        with pytest.raises(TaacError, match=r"the checkpoint at 2 .* is whole"):
            kept.save(2, state(attempt), FrameChunks(filled(4, 6)))
        monkeypatch.undo()
        assert kept.newest().state["number"] == (2 if attempt == 3 else 3)
        kept = Checkpoints(kept.path)  # as another process that goes on
        kept.save(2, state(attempt))
        assert kept.newest().state["number"] == attempt
        tensors = "2-again.safetensors" if attempt == 3 else "2.safetensors"
        assert {*names(kept)} == {"1.json", "1.safetensors", "2.json", tensors}


def test_what_would_be_refused_on_reading_is_refused_on_writing(tmp_path, monkeypatch):
    kept = saved(tmp_path, 1)
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 1000)
    with pytest.raises(TaacError, match=r"would hold \d+ bytes .* at most 1000 can be read again.*summary_interval"):
        kept.save(2, {"ended": ["an episode"] * 100})
    assert kept.newest().env_steps == 1


# Damage ---------------------------------------------------------------------------------------------------------------


def damages(data):
    rng = random.Random(0)
    for region in range(8):
        at = int((region + rng.random()) / 8 * len(data))
        yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        yield data[:at]
        yield data[:at] + rng.randbytes(9) + data[at:]
        yield data[:at] + rng.randbytes(20) + data[at + 20 :]


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_damaged_one_is_said_and_the_one_before_is_used(tmp_path, capsys, kind):
    kept = saved(tmp_path, 1, 2)
    file = kept.path / f"2.{kind}"
    whole, count = file.read_bytes(), 0
    for damaged in damages(whole):
        file.write_bytes(damaged)
        assert kept.newest().state["number"] == 1
        assert f"{kept.path / '2.json'} is damaged" in capsys.readouterr().err
        count += 1
    assert count == 32
    file.unlink()
    assert kept.newest().state["number"] == 1
    assert ("damaged" in capsys.readouterr().err) == (kind != "json")  # without a manifest there is no checkpoint
    file.write_bytes(whole)
    assert kept.newest().state["number"] == 2 and not capsys.readouterr().err


def test_of_two_files_changed_for_each_other_neither_is_taken(tmp_path, capsys):
    kept = saved(tmp_path, 1, 2, 3)
    (kept.path / "3.json").write_bytes((kept.path / "2.json").read_bytes())
    assert kept.newest().env_steps == 2
    kept = saved(tmp_path, 4)
    (kept.path / "4.safetensors").write_bytes((kept.path / "2.safetensors").read_bytes())
    with pytest.raises(TaacError, match=r"no checkpoint .* is whole; remove that folder"):
        kept.newest()
    assert capsys.readouterr().err.count("damaged") == 3


def test_one_that_the_run_replaces_while_it_is_read_is_no_damage(tmp_path, monkeypatch, capsys):
    """As `taac play` may read one while the run trains on."""
    running = Checkpoints(tmp_path / "c", keep=1)
    running.save(1, {"x": 1})
    read = checkpoint.read_manifest

    def after_the_next_was_written(path):
        if path.stem == "1":
            running.save(2, {"x": 2})
        return read(path)

    monkeypatch.setattr(checkpoint, "read_manifest", after_the_next_was_written)
    assert Checkpoints(tmp_path / "c").newest().state["x"] == 2
    assert not capsys.readouterr().err


# Other formats, and files from strangers ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 4])
def test_another_format_is_refused_and_not_taken_for_damage(tmp_path, monkeypatch, version):
    kept = saved(tmp_path, 1)
    with monkeypatch.context() as other:
        other.setattr(tensor_files, "FORMAT", version)
        kept.save(2, state(2))
    expected = f"2.json has format {version}, and this version of taac reads format 3: go on with the version that wrote it, or"
    with pytest.raises(TaacError, match=re.escape(expected)) as refused:
        kept.newest()
    assert not isinstance(refused.value, Damaged)


class Malicious:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_loading_cannot_run_code(tmp_path, kind):
    kept = saved(tmp_path, 1)
    (kept.path / f"1.{kind}").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(TaacError):
        kept.newest()
    torch.save(Malicious(), kept.path / f"1.{kind}")
    with pytest.raises(TaacError):
        kept.newest()


def forged(kept, number, change):
    """A checkpoint as a stranger would make it: whatever is in it, its checksums are right."""
    path = kept.path / f"{number}.json"
    content = tensor_files.read_manifest(path)
    change(content)
    path.write_bytes(tensor_files.make_manifest(content))


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../1.safetensors", "..", "", "a/b.safetensors", "1.safetensors/../x", "1.json", "\0", 3, None],
)
def test_a_manifest_reaches_no_other_files(tmp_path, name, capsys):
    kept = saved(tmp_path, 1)
    forged(kept, 1, lambda content: content["tensors"].update(name=name))
    with pytest.raises(TaacError, match="is whole"):
        kept.newest()
    assert "which no checkpoint has" in capsys.readouterr().err


def test_links_and_sizes_that_lie(tmp_path, capsys, monkeypatch):
    kept = saved(tmp_path, 1)
    forged(kept, 1, lambda content: content["tensors"].update(bytes=2**60))
    with pytest.raises(TaacError):
        kept.newest()
    assert "bytes, expected 1152921504606846976" in capsys.readouterr().err
    kept = saved(tmp_path, 2)
    (kept.path / "2.safetensors").unlink()
    (kept.path / "2.safetensors").symlink_to("/dev/zero")
    with pytest.raises(TaacError):
        kept.newest()
    assert "is not a plain file" in capsys.readouterr().err
    kept = saved(tmp_path, 3)
    with open(kept.path / "3.safetensors", "r+b") as file:
        file.truncate(2**40)  # takes no room on the disk, and would take a terabyte of memory
    forged(kept, 3, lambda content: content["tensors"].update(bytes=2**40))
    with pytest.raises(TaacError, match="does not fit into memory"):
        kept.newest()
    with open(kept.path / "3.json", "r+b") as file:
        file.truncate(2**40)
    with pytest.raises(TaacError):
        kept.newest()
    assert "expected at most" in capsys.readouterr().err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def wrapped():
    """A buffer with room for the frames of `filled(3, 5)`."""
    buffer = ReplayBuffer(SPEC, 2, 3)
    buffer.load_state_dict({"position": torch.tensor([2, 3, 3, 5])})
    return buffer


def places(content, path=()):
    yield path
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from places(content[key], (*path, key))


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_forged_is_read_or_refused(tmp_path, data):
    """Any value at any place of the manifest, its checksum right: a `TaacError`, or a checkpoint."""
    kept = saved(tmp_path, 1, frames=FrameChunks(filled(3, 5)))
    content = tensor_files.read_manifest(kept.path / "1.json")
    *way, last = data.draw(st.sampled_from([p for p in places(content) if p]))
    inner = content
    for key in way:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    (kept.path / "1.json").write_bytes(tensor_files.make_manifest(content))
    with contextlib.suppress(TaacError):
        FrameChunks(wrapped()).load(kept.path, kept.newest().frames)


def test_bytes_that_are_no_booleans_are_damage():
    """What torch computes with them depends on the operation."""
    data = tensor_files.pack({"mask": torch.tensor([True, False, True])})
    assert data.endswith(b"\1\0\1") and tensor_files.unpack(data, Path("a"))["mask"].tolist() == [True, False, True]
    with pytest.raises(Damaged, match="a holds bytes that are no booleans"):
        tensor_files.unpack(data[:-1] + b"\xff", Path("a"))


@pytest.mark.parametrize("steps", ["x", float("nan"), float("inf"), None, 2])
def test_steps_that_are_none(tmp_path, steps, capsys):
    kept = saved(tmp_path, 1)
    forged(kept, 1, lambda content: content.update(env_steps=steps))
    with pytest.raises(TaacError, match="is whole"):
        kept.newest()
    assert re.search("is not (a|the) manifest", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["start", "stop", "added"])
def test_places_of_frames_that_are_no_integers(tmp_path, name):
    kept = saved(tmp_path, 1, frames=FrameChunks(filled(3, 5)))
    forged(kept, 1, lambda content: content["frames"][0].update({name: float(content["frames"][0][name])}))
    with pytest.raises(TaacError, match="a manifest in"):
        FrameChunks(wrapped()).load(kept.path, kept.newest().frames)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "null", "[]", "\xff", ""])
def test_manifests_that_are_none(tmp_path, text, capsys):
    kept = saved(tmp_path, 1)
    body = text.encode("latin-1")
    header = {"taac_checkpoint": tensor_files.FORMAT, "blake2b": tensor_files._digest(tensor_files.FORMAT, body)}
    for content in (json.dumps(header).encode() + b"\n" + body, body, body + b"\n" + body):
        (kept.path / "1.json").write_bytes(content)
        with pytest.raises(TaacError, match="is whole"):
            kept.newest()
        assert "damaged" in capsys.readouterr().err


def test_another_network_is_refused_with_both_shapes(tmp_path):
    with pytest.raises(TaacError, match=r"(?s)\[3, 2\].*\[5, 2\]"):
        checkpoint.load_into(torch.nn.Linear(2, 5), torch.nn.Linear(2, 3).state_dict(), tmp_path / "c.json")
    for other in ({"weight": 3}, [], None):
        with pytest.raises(TaacError, match="another network"):
            checkpoint.load_into(torch.nn.Linear(2, 5), other, tmp_path / "c.json")


# The replay buffer in parts -------------------------------------------------------------------------------------------


def restored(kept, length, num_envs=2):
    found, buffer = kept.newest(), ReplayBuffer(SPEC, num_envs, length)
    buffer.load_state_dict(found.part("replay"))
    chunks = FrameChunks(buffer)
    chunks.load(kept.path, found.frames)
    return buffer, chunks


def save_buffer(kept, number, buffer, chunks):
    kept.save(number, {"replay": buffer.state_dict()}, chunks)


def assert_same_buffer(a, b):
    first, second = held(a), held(b)
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(2, 12), part=st.integers(1, 5), plan=st.lists(st.integers(0, 15), min_size=1, max_size=5),
       follow=st.booleans(), again=st.booleans())  # fmt: skip
def test_a_buffer_saved_in_parts_comes_back(tmp_path_factory, parts_of, length, part, plan, follow, again):
    parts_of(part)
    buffer, kept = filled(length, 0), Checkpoints(tmp_path_factory.mktemp("c"))
    chunks, number = FrameChunks(buffer), 0
    for step, count in enumerate(plan, 1):
        for _ in range(count):
            buffer.add(frame(number))
            number += 1
            if follow and chunks.moved_on():
                kept.follow(chunks)
        save_buffer(kept, step, buffer, chunks)
        other, others = restored(kept, length)
        assert_same_buffer(other, buffer)
        if again:  # go on as the process that resumed
            buffer, chunks = other, others
        before = {p.name for p in kept.path.glob("frames-*")}
        assert chunks.stale_bytes() == 0 and {e["name"] for e in kept.newest().frames} <= before


def test_only_what_has_changed_is_written(tmp_path, parts_of):
    parts_of(3)
    buffer, kept = filled(9, 9), Checkpoints(tmp_path)
    chunks = FrameChunks(buffer)
    save_buffer(kept, 1, buffer, chunks)
    assert sorted(p.name for p in tmp_path.glob("frames-*")) == [f"frames-{k}-9.safetensors" for k in range(3)]
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("frames-*")}
    buffer.add(frame(9))
    assert chunks.stale_bytes() == 3 * 2 * FRAME
    save_buffer(kept, 2, buffer, chunks)
    after = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("frames-*")}
    assert after.keys() - before.keys() == {"frames-0-10.safetensors"} and before.items() <= after.items()
    _, resumed = restored(kept, 9)
    assert resumed.stale_bytes() == 0  # what is on the disk is known after resuming
    buffer.add(frame(10))
    save_buffer(kept, 3, buffer, chunks)
    assert not (tmp_path / "frames-0-9.safetensors").exists()  # only the checkpoint at 1, now forgotten, named it
    assert (tmp_path / "frames-1-9.safetensors").exists()


def test_a_part_is_written_when_it_is_full_and_a_checkpoint_then_writes_the_rest(tmp_path, parts_of):
    parts_of(3)
    buffer, kept = filled(9, 0), Checkpoints(tmp_path)
    chunks, written = FrameChunks(buffer), []
    for number in range(13):
        buffer.add(frame(number))
        if chunks.moved_on():
            kept.follow(chunks)
            written.append((number, names(kept)))
    # The ring of 9 in parts of 3: full after frames 2, 5, 8 and, the second time around, 11.
    first, second, third = (f"frames-{k}-{3 * k + 3}.safetensors" for k in range(3))
    again = "frames-0-12.safetensors"
    assert written == [(2, [first]), (5, [first, second]), (8, [first, second, third]), (11, [again, second, third])]
    assert names(kept) == ["frames-0-12.safetensors", "frames-1-6.safetensors", "frames-2-9.safetensors"]
    save_buffer(kept, 1, buffer, chunks)
    assert "frames-1-13.safetensors" in names(kept) and "frames-1-6.safetensors" not in names(kept)
    assert_same_buffer(restored(kept, 9)[0], buffer)


def test_parts_that_a_checkpoint_names_outlive_those_that_take_their_place(tmp_path, parts_of):
    parts_of(3)
    buffer, kept = filled(6, 6), Checkpoints(tmp_path)
    chunks = FrameChunks(buffer)
    save_buffer(kept, 1, buffer, chunks)
    then = held(buffer)
    for number in range(6, 17):
        buffer.add(frame(number))
        if chunks.moved_on():
            kept.follow(chunks)
    back, _ = restored(kept, 6)
    assert all(torch.equal(held(back)[k], then[k]) for k in then)


def test_damaged_frames_and_frames_of_another_buffer(tmp_path, parts_of):
    parts_of(2)
    buffer, kept = filled(6, 6), Checkpoints(tmp_path)
    save_buffer(kept, 1, buffer, FrameChunks(buffer))
    file = tmp_path / "frames-1-6.safetensors"
    whole = file.read_bytes()
    for damaged in damages(whole):
        file.write_bytes(damaged)
        with pytest.raises(Damaged, match=r"frames-1-6\.safetensors"):
            restored(kept, 6)
    file.write_bytes(whole)
    with pytest.raises(TaacError, match=r"frames of another shape: .*\[2, 2\].*expected.*\[2, 3\]"):
        restored(kept, 6, num_envs=3)
    for change in (lambda c: c["frames"].pop(1), lambda c: c["frames"].reverse(), lambda c: c["frames"].pop()):
        forged(kept, 1, change)
        with pytest.raises(Damaged, match="a manifest in"):
            restored(kept, 6)


def test_a_buffer_cut_otherwise_by_another_version_is_read_and_written_anew(tmp_path, parts_of):
    parts_of(2)
    buffer, kept = filled(7, 9), Checkpoints(tmp_path)
    save_buffer(kept, 1, buffer, FrameChunks(buffer))
    parts_of(3)
    back, chunks = restored(kept, 7)
    assert_same_buffer(back, buffer)
    assert chunks.stale_bytes() > 0
    save_buffer(kept, 2, back, chunks)
    assert_same_buffer(restored(kept, 7)[0], buffer)
