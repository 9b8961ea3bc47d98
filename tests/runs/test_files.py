"""Files: whole or not there, whatever happens; tensors and JSON, whatever is in them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taac.errors import TaacError
from taac.runs import durable, files, tensor_files, terminal
from taac.runs.files import Damaged


class Stumbling:
    """`os`, but for one call that fails."""

    def __init__(self, name, number=1, code=errno.ENOSPC):
        self.name, self.number, self.code = name, number, code

    def __getattr__(self, name):
        call = getattr(os, name)

        def watched(*args, **more):
            if name == self.name:
                self.number -= 1
                if self.number == 0:
                    if name == "write":
                        call(args[0], args[1][:2])
                    raise OSError(self.code, os.strerror(self.code))
            return call(*args, **more)

        return watched if name in ("open", "write", "fsync", "replace") else call


def replace_os(monkeypatch, other):
    for module in (files, durable):
        monkeypatch.setattr(module, "os", other)


@pytest.mark.parametrize("name", ["open", "write", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside(tmp_path, monkeypatch, name):
    durable.write(tmp_path / "f", b"before")
    replace_os(monkeypatch, Stumbling(name))
    with pytest.raises(OSError):
        durable.write(tmp_path / "f", b"after that")
    assert (tmp_path / "f").read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_error_of_the_disk_names_the_file(tmp_path, monkeypatch, call, code):
    (tmp_path / "f").write_bytes(b"before")
    for act in (durable.write, durable.append):
        with monkeypatch.context() as patch, pytest.raises(OSError, match=f"{tmp_path / 'f'}'$"):
            replace_os(patch, Stumbling(call, code=code))
            act(tmp_path / "f", b"after")


def test_an_error_while_reading_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "f").mkdir()
    fails = SimpleNamespace(read=lambda most=-1: os.read(-1, 1), seek=lambda at: None, fileno=lambda: 0)
    monkeypatch.setattr(files, "open_file", lambda path, flags: 0)
    monkeypatch.setattr(files.os, "fdopen", lambda descriptor, mode: contextlib.nullcontext(fails))
    for act in (files.read_bytes, lambda path: files.read_end(path, 9)):
        with pytest.raises(OSError, match=f"{tmp_path / 'f'}'$"):
            act(tmp_path / "f")


def test_a_write_is_on_the_disk_before_it_takes_its_name_and_the_name_too(tmp_path, monkeypatch):
    order = []

    class Watched:
        def __getattr__(self, name):
            call = getattr(os, name)
            if name == "write":  # piece by piece, as a system may do
                return lambda descriptor, data: (order.append((name, (descriptor,))), call(descriptor, data[:6]))[1]
            return (lambda *a, **k: (order.append((name, a)), call(*a, **k))[1]) if callable(call) else call

    replace_os(monkeypatch, Watched())
    durable.write(tmp_path / "f", b"x" * 10)
    changing = ("open", "write", "fsync", "replace")
    calls = [(name, args[0] if name in ("open", "replace") else None) for name, args in order if name in changing]
    beside = calls[0][1]
    assert beside.parent == tmp_path and beside.name.startswith("f.") and durable.is_temporary(f"x.csv{beside.name[1:]}")
    assert calls == [
        ("open", beside), ("write", None), ("write", None), ("fsync", None), ("replace", beside), ("open", tmp_path),
        ("fsync", None),
    ]  # fmt: skip
    order.clear()
    durable.append(tmp_path / "f", b"and more")
    assert [name for name, _ in order if name in changing] == ["open", "write", "write", "fsync"]
    assert (tmp_path / "f").read_bytes() == b"x" * 10 + b"and more"


@pytest.mark.parametrize("code, of_folder, written", [("EINVAL", True, True), ("EIO", True, False), ("EINVAL", False, False)])
def test_a_file_system_that_cannot_flush_folders_is_written_to(tmp_path, monkeypatch, code, of_folder, written):
    """Some that are mounted from elsewhere say EINVAL. A file that cannot be flushed is an error, as is a disk that fails."""
    fsync = os.fsync

    def fails(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == of_folder:
            raise OSError(getattr(errno, code), "no")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    with contextlib.nullcontext() if written else pytest.raises(OSError, match="no"):
        durable.write(tmp_path / "a.json", b"x")
        assert (tmp_path / "a.json").read_bytes() == b"x"


@pytest.mark.parametrize(
    "code, free, expected",
    [
        ("ENOSPC", 10, r"the disk is full at .*: 12345 bytes are needed, 10 bytes are free \(.*; make room and run"),
        ("ENOSPC", 10**11, r"12345 bytes are needed; 100000000000 bytes are free now, so look for a quota, too"),
        ("EDQUOT", 10, r"your quota of the disk is used up at .*: 12345 bytes are needed \(.*; make room"),
        ("EFBIG", 10, r"a file may not become that large.*: 12345 bytes are needed \(.*; raise it"),
        ("EIO", 10, r"cannot write .*Input/output error.*run the same command again once it can be written$"),
    ],
)
def test_a_full_disk_says_of_what_it_is_full(tmp_path, monkeypatch, code, free, expected):
    """A quota may also be reported as a full disk, and what filled it may have been removed."""
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    error = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
    refused = str(durable.refusal(error, tmp_path / "new", 12345, "what was there is whole"))
    assert re.search(expected, refused) and "what was there is whole" in refused and str(tmp_path) in refused


def test_nothing_is_added_to_a_file_that_has_another_name(tmp_path):
    """As of a hard link to a file of the user's."""
    (tmp_path / "mine").write_bytes(b"mine")
    os.link(tmp_path / "mine", tmp_path / "f")
    with pytest.raises(files.NotPlain, match=r"f has a second name \(a hard link\)"):
        durable.append(tmp_path / "f", b"a stranger's")
    durable.write(tmp_path / "f", b"a stranger's")  # takes its place
    assert (tmp_path / "mine").read_bytes() == b"mine"
    durable.append(tmp_path / "f", b" more")
    assert (tmp_path / "f").read_bytes() == b"a stranger's more"


def test_parts_of_files(tmp_path):
    data = os.urandom(1000)
    (tmp_path / "f").write_bytes(data)
    for most in (1, 999, 1000, 1001):
        assert files.read_end(tmp_path / "f", most) == data[-most:]
    with pytest.raises(Damaged, match="f has 1000 bytes, expected at most 999"):
        files.read_text(tmp_path / "f", most=999)


def test_reading_back(tmp_path):
    path, data = tmp_path / "f.safetensors", tensor_files.pack({"x": torch.arange(100)})
    entry = tensor_files.write_entry(path, data)
    assert tensor_files.read_entry(tmp_path, entry)["x"].tolist() == list(range(100))
    with pytest.raises(Damaged, match=f"has {len(data)} bytes, expected 999"):
        tensor_files.read_entry(tmp_path, {**entry, "bytes": 999})
    durable.write(path, data[:500] + bytes([data[500] ^ 1]) + data[501:])
    with pytest.raises(Damaged, match="checksum"):
        tensor_files.read_entry(tmp_path, entry)
    with pytest.raises(Damaged, match="cannot be read"):
        tensor_files.read_entry(tmp_path, {**entry, "name": "g.safetensors"})


def test_only_plain_files_are_read(tmp_path):
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")  # opening one waits for a writer, forever
    (tmp_path / "folder").mkdir()
    (tmp_path / "whole").write_bytes(b"x" * 10)
    (tmp_path / "other").symlink_to(tmp_path / "whole")  # could lead to any file of the reader's
    for name in ("link", "other", "pipe", "folder"):
        for use in (
            files.read_bytes, files.read_text, files.check_file, lambda p: files.open_file(p, os.O_RDWR | os.O_CREAT),
            lambda p: durable.write(p, b"y"), lambda p: durable.append(p, b"y"),
        ):  # fmt: skip
            with pytest.raises(files.NotPlain, match=f"{name} is not a plain file but a"):
                use(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == b"x" * 10
    for name, error in (("link", files.NotPlain), ("whole", files.NotPlain), ("folder", None), ("none", None)):
        with pytest.raises(error) if error else contextlib.nullcontext():
            assert files.check_folder(tmp_path / name) == (name == "folder")


def test_a_link_that_appears_after_the_look_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "f").symlink_to(tmp_path / "target")
    monkeypatch.setattr(files, "check_file", lambda path: True)  # a plain file was there then
    for use in (files.read_bytes, lambda p: durable.append(p, b"y"), lambda p: files.open_file(p, os.O_RDWR | os.O_CREAT)):
        with pytest.raises(OSError):
            use(tmp_path / "f")
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_what_waits_under_the_temporary_name_is_not_written_through(tmp_path, monkeypatch):
    """Where the random name is guessed all the same."""
    (tmp_path / "mine").write_bytes(b"mine")
    monkeypatch.setattr(durable.secrets, "token_hex", lambda n: "00" * n)
    durable.temporary(tmp_path / "f").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        durable.write(tmp_path / "f", b"a stranger's")
    assert (tmp_path / "mine").read_bytes() == b"mine" and not (tmp_path / "f").exists()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


TENSORS = st.sampled_from(
    [
        torch.zeros(()), torch.arange(6).reshape(2, 3), torch.zeros(0, 3), torch.tensor([True]), torch.ones(4)[::2],
        torch.rand(3, dtype=torch.float64), torch.zeros(2, dtype=torch.bfloat16),
    ]
)  # fmt: skip
NESTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(NESTS)
@example({"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}})  # two ways to one path
@example({"$tensor": "x", "y": [(1, {2: torch.ones(2)})]})
def test_what_is_encoded_comes_back(state):
    import json

    tree, tensors = tensor_files.encode(state)
    back = tensor_files.decode(json.loads(json.dumps(tree)), tensor_files.unpack(tensor_files.pack(tensors), "f"))
    assert same(state, back), (state, back)


@pytest.mark.parametrize("value", [object(), {"a": {1.5: 2}}, {"a": b"bytes"}, {1, 2}])
def test_what_has_no_place_in_json_is_refused_on_writing(value):
    with pytest.raises(TypeError):
        tensor_files.encode(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["t", "$tensor", "$items"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$tensor", "$items", "$tuple", "$else", "a"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(JSON)
def test_any_tree_is_read_or_refused(tree):
    with contextlib.suppress(Damaged):
        tensor_files.decode(tree, {"t": torch.zeros(1)})


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_bytes_are_tensors_or_refused(data):
    """A header of any kind, before any numbers; no more memory is taken than the bytes that are there."""
    whole = tensor_files.pack({"a": torch.arange(5), "b": torch.zeros(2, 3)})
    kind = data.draw(st.sampled_from(["noise", "change", "header"]))
    if kind == "noise":
        found = data.draw(st.binary(max_size=200))
    elif kind == "change":
        at, piece = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.binary(min_size=1, max_size=9))
        found = whole[:at] + piece + whole[at + data.draw(st.integers(0, 12)) :]
    else:
        numbers = st.integers(-(2**63), 2**64) | st.integers(0, 40)
        entry = {
            "dtype": data.draw(st.sampled_from(["F32", "I64", "U8", "F4", "F8_E4M3", "X", "BOOL"])),
            "shape": data.draw(st.lists(numbers, max_size=4)),
            "data_offsets": data.draw(st.lists(numbers, min_size=2, max_size=2)),
        }
        import json

        header = json.dumps({data.draw(st.text(max_size=4)): entry}).encode()
        length = data.draw(st.just(len(header)) | st.integers(0, 2**64 - 1))
        found = length.to_bytes(8, "little") + header + data.draw(st.binary(max_size=64))
    try:
        tensors = tensor_files.unpack(found, "f")
    except TaacError as error:
        assert isinstance(error, Damaged) and ("f holds no tensors" in str(error) or "f holds tensors of" in str(error))
    else:
        assert sum(t.nbytes for t in tensors.values()) <= len(found)


def test_tensors_of_kinds_that_are_never_written_are_refused():
    data = tensor_files.pack({"fine": torch.zeros(2), "odd": torch.zeros(2, dtype=torch.float8_e4m3fn)})
    with pytest.raises(files.Damaged, match=r"f holds tensors of torch\.float8_e4m3fn"):
        tensor_files.unpack(data, "f")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("\x1b[2Jevil\x07", "\\x1b[2Jevil\\x07"),
        ("over\rwritten\x9b", "over\\rwritten\\x9b"),
        ("exe.\u202egnp\ud800", "exe.\\u202egnp\\ud800"),
        ("two\n\tlines, \u00e9 \u4e2d \U0001f600", "two\n\tlines, \u00e9 \u4e2d \U0001f600"),
    ],
)
def test_terminals_are_shown_what_they_would_obey(text, shown):
    assert terminal.printable(text) == shown
    terminal.printable(text).encode()


@pytest.mark.parametrize("channel", [os.pipe, os.openpty])
def test_a_run_goes_on_when_nobody_can_read_what_it_says(monkeypatch, channel):
    """Ctrl-C ends `tee` too, and a job that was disowned outlives its terminal."""
    from taac.commands.main import BrokenPipeTolerant
    from taac.training.progress_bar import ProgressBar

    reader, writer = channel()
    with os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with ProgressBar(10, 0, interval=1e-9) as bar:
            os.close(reader)
            for step in range(1, 4):
                bar(step, 0, None, 0.0)
        terminal.warn_user("it says")
        tolerant = BrokenPipeTolerant(stderr)
        tolerant.write("it says")
        tolerant.flush()
        closed = io.StringIO()
        closed.close()
        for gone in (closed, None):  # a program of windows has none
            monkeypatch.setattr(sys, "stderr", gone)
            with ProgressBar(10, 0, interval=1e-9) as bar:
                bar(1, 0, None, 0.0)
            terminal.warn_user("it says")
        monkeypatch.undo()


def test_warnings_that_quote_files_are_printable(monkeypatch):
    from taac.commands import main

    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main._run("check", lambda: None, ["check"]) == 0  # as every command begins
    shown = warnings.formatwarning(UserWarning("Glyph 27 (\x1b) missing"), UserWarning, "plots.py", 1, "a line")
    assert "Glyph 27 (\\x1b) missing" in shown and "\x1b" not in shown and shown.count("\n") == 2


def test_messages_that_quote_files_are_printable(tmp_path, capsys, monkeypatch):
    """Errors of all commands, and what `check --batch` tells of a stranger's file."""
    from taac.commands import main
    from taac.errors import NotFiniteError, TaacError
    from taac.runs import inspection

    def raises():
        raise TaacError("\x1b[2J")

    assert main._attempt("plot", raises) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "shortened", lambda error: terminal.shortened("x" * 10 + str(error), 12))
        assert main._attempt("plot", raises) == 1
    assert terminal.shortened("x" * 12, 12) == "x" * 12
    terminal.warn_user("\x1b[2J")
    evidence = {"sampled/\x1b[2J": torch.zeros(2)}
    file = inspection.write(tmp_path, 3, NotFiniteError("\x1b]0;title\x07", evidence))
    from taac.commands import check

    check._batch(file)
    printed = capsys.readouterr()
    assert "plot: xxxxxxxxxx\\x1b[... and 2 characters more" in printed.err
    assert "\\x1b[2J" in printed.out and "title" in printed.out and printed.err.count("\\x1b[2J") == 2
    assert "\x1b" not in printed.out + printed.err
